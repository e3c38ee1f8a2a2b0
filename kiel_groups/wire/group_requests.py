"""The requests to group coordinators: find coordinator, join, sync, heartbeat, leave, list, describe and delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.metadata import BrokerAddress
from kiel_groups.wire.primitives import BYTES, INT32, STRING, array, fields, mapping, structure, throttled

# FindCoordinator v0: ask any broker which broker coordinates a group.
#
# Kafka 0.8.2 has the same request under the name ConsumerMetadata; its coordinators store offsets, and know no members.


class FoundCoordinator(NamedTuple):
    """The coordinator of a group. After an error, ``broker`` has the node id -1, no host, and the port -1."""

    error: ErrorCode
    broker: BrokerAddress


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request[FoundCoordinator]):
    """
    Ask for the coordinator of a group.

    The first such request to a cluster creates ``__consumer_offsets``. Until that topic has a leader, the response is
    an error.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 10, 0, "a find-coordinator response"
    BODY = fields(group=STRING)
    ANSWER = structure(FoundCoordinator, ERROR, structure(BrokerAddress, INT32, STRING, INT32))

    group: str


# JoinGroup v0, v1 and v4: become a member of a group, or take part in its next generation.
#
# v1 exists from 0.10.1 on, and has a rebalance timeout of its own. Brokers of 0.9 and 0.10.0 do not answer it at all.
# v4 exists from 2.2 on (KIP-394): the coordinator names a new member before the member waits for the others.


class GroupProtocol(NamedTuple):
    """
    An assignment strategy that a member supports, such as ``range``, with the member's metadata for the leader.

    For consumers, ``metadata`` is an encoded ``ConsumerSubscription``.
    """

    name: str
    metadata: bytes


_PROTOCOLS = array(structure(GroupProtocol, STRING, BYTES))


class JoinGroupResponse(NamedTuple):
    """
    The new generation of the group, as this member gets it.

    ``protocol`` is the name of a protocol that all members support. The member is the leader if its ``member_id``
    equals ``leader_id``. ``members`` has the metadata of each member by member id. ``members`` is empty unless this
    member is the leader.
    """

    error: ErrorCode
    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class JoinGroupRequest(Request[JoinGroupResponse]):
    """
    Join a group. The coordinator answers when all members have joined, or have been removed because they did not join.

    A new member sends an empty ``member_id``, and gets its id in the response. ``protocols`` are in the member's order
    of preference. The coordinator waits for the members at most for the longest session timeout in the group.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 11, 0, "a join-group response"
    BODY = fields(group=STRING, session_timeout_ms=INT32, member_id=STRING, protocol_type=STRING, protocols=_PROTOCOLS)
    ANSWER = structure(JoinGroupResponse, ERROR, INT32, STRING, STRING, STRING, mapping(STRING, BYTES, "member"))

    group: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]


@dataclass(frozen=True, slots=True)
class JoinGroupRequestV1(JoinGroupRequest):
    """
    Join a group, with a rebalance timeout.

    The coordinator waits for the members at most for the longest ``rebalance_timeout_ms`` in the group.
    """

    API_VERSION = 1
    BODY = fields(
        group=STRING,
        session_timeout_ms=INT32,
        rebalance_timeout_ms=INT32,
        member_id=STRING,
        protocol_type=STRING,
        protocols=_PROTOCOLS,
    )

    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class JoinGroupRequestV4(JoinGroupRequestV1):
    """
    Join a group as with v1, but a new member joins twice.

    The response to an empty ``member_id`` comes at once: the error MEMBER_ID_REQUIRED, with the id that the member has
    to join with. So a member that waits for a rebalance has an id, and can leave.
    """

    API_VERSION = 4
    ANSWER = throttled(JoinGroupRequest.ANSWER)


class SyncGroupResponse(NamedTuple):
    """
    The member's assignment. For consumers, it is an encoded ``ConsumerAssignment``.

    The assignment is empty after an error, or if the leader has sent no assignment for the member.
    """

    error: ErrorCode
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest(Request[SyncGroupResponse]):
    """
    Ask for the member's assignment. The coordinator answers when it has received the leader's request.

    ``assignments`` has the assignment of each member by member id. Only the leader sends assignments.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 14, 0, "a sync-group response"
    BODY = fields(group=STRING, generation=INT32, member_id=STRING, assignments=mapping(STRING, BYTES, "member"))
    ANSWER = structure(SyncGroupResponse, ERROR, BYTES)

    group: str
    generation: int
    member_id: str
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Request[ErrorCode]):
    """
    Renew a member's session.

    The response is REBALANCE_IN_PROGRESS if the member has to rejoin, and UNKNOWN_MEMBER_ID if the coordinator has
    removed the member. During a rebalance, 0.9 answers REBALANCE_IN_PROGRESS even to a removed member.
    """

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 12, 0, "a heartbeat response", ERROR
    BODY = fields(group=STRING, generation=INT32, member_id=STRING)

    group: str
    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest(Request[ErrorCode]):
    """Remove a member from its group. The response is UNKNOWN_MEMBER_ID if the group has no such member any more."""

    API_KEY, API_VERSION, ANSWER_NAME, ANSWER = 13, 0, "a leave-group response", ERROR
    BODY = fields(group=STRING, member_id=STRING)

    group: str
    member_id: str


class ListedGroup(NamedTuple):
    """
    A group that the broker coordinates.

    ``protocol_type`` is ``consumer`` for groups of consumers, and empty for a group that has only offsets.
    """

    group: str
    protocol_type: str


class ListGroupsResponse(NamedTuple):
    """The groups of one broker, in the broker's order. The list is incomplete while the broker loads its groups."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest(Request[ListGroupsResponse]):
    """Ask a broker for the groups that it coordinates."""

    API_KEY, API_VERSION, ANSWER_NAME, BODY = 16, 0, "a list-groups response", fields()
    ANSWER = structure(ListGroupsResponse, ERROR, array(structure(ListedGroup, STRING, STRING)))


class DescribedMember(NamedTuple):
    """
    A member, as its coordinator describes it.

    ``client_host`` is the address that the coordinator sees, such as ``/127.0.0.1``. For consumers, ``metadata`` is a
    ``ConsumerSubscription``, and ``assignment`` is a ``ConsumerAssignment``. Both fields are empty unless the group is
    stable.
    """

    member_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


_MEMBER = structure(DescribedMember, STRING, STRING, STRING, BYTES, BYTES)


class DescribedGroup(NamedTuple):
    """
    A group, as its coordinator describes it.

    ``state`` is ``Stable``, ``PreparingRebalance``, ``AwaitingSync`` (in later releases ``CompletingRebalance``),
    ``Empty`` or ``Dead``. A group that does not exist is ``Dead``.
    """

    error: ErrorCode
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest(Request[tuple[DescribedGroup, ...]]):
    """
    Ask a broker for the state and members of groups that it coordinates.

    The result of any other group has the error NOT_COORDINATOR_FOR_CONSUMER.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 15, 0, "a describe-groups response"
    BODY = fields(groups=array(STRING))
    ANSWER = array(structure(DescribedGroup, ERROR, STRING, STRING, STRING, STRING, array(_MEMBER)))

    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request[Mapping[str, ErrorCode]]):
    """
    Delete groups without members, and their offsets. Brokers support this request from 1.1 on.

    The response has the outcome for each group: NON_EMPTY_GROUP if the group has members, GROUP_ID_NOT_FOUND if the
    group does not exist.
    """

    API_KEY, API_VERSION, ANSWER_NAME = 42, 0, "a delete-groups response"
    BODY = fields(groups=array(STRING))
    ANSWER = throttled(mapping(STRING, ERROR, "group"))

    groups: tuple[str, ...]
