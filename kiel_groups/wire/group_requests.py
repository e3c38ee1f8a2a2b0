"""The requests by which brokers coordinate groups: find the coordinator, join, sync, beat, leave, list, describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kiel_groups.wire.error_codes import ErrorCode, error_code
from kiel_groups.wire.metadata import BrokerAddress
from kiel_groups.wire.primitives import Buffer, Reader, Writer

__all__ = [
    "FindCoordinatorRequest",
    "FoundCoordinator",
    "GroupProtocol",
    "JoinGroupRequest",
    "JoinGroupRequestV1",
    "JoinGroupResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "HeartbeatRequest",
    "LeaveGroupRequest",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListedGroup",
    "DescribeGroupsRequest",
    "DescribedGroup",
    "DescribedMember",
]


# FindCoordinator v0: ask any broker which broker coordinates a group.
#
# Kafka 0.8.2 has the same request under the name ConsumerMetadata; its coordinators store offsets, and know no members.


class FoundCoordinator(NamedTuple):
    """The coordinator of a group. After an error, ``broker`` has the node id -1, no host, and the port -1."""

    error: ErrorCode
    broker: BrokerAddress


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    """Ask for the coordinator of a group. The first such request to a cluster creates the topic of the offsets."""

    API_KEY: ClassVar[int] = 10
    API_VERSION: ClassVar[int] = 0

    group: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> FoundCoordinator:
        reader = Reader(payload, "a find-coordinator response")
        error = error_code(reader.int16())
        broker = BrokerAddress(reader.int32(), reader.string(), reader.int32())
        reader.end()
        return FoundCoordinator(error, broker)


# JoinGroup v0 and v1: become a member of a group, or take part in its next generation.
#
# v1 exists from 0.10.1 on, and has a rebalance timeout of its own. Brokers of 0.9 and 0.10.0 do not answer it at all.


_LEAST_MEMBER_BYTES = 2 + 4


class GroupProtocol(NamedTuple):
    """
    A way of assigning partitions that a member offers, such as ``range``.

    ``metadata`` is what the member tells the group's leader: for consumers, a ``ConsumerSubscription``.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """
    The generation of the group that the member belongs to now.

    ``protocol`` is one that all members have offered. The member whose ``member_id`` equals ``leader_id`` is the
    leader. ``members`` has the metadata of each member by its id, and is empty unless the member is the leader.
    """

    error: ErrorCode
    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """
    Join a group. The coordinator answers when all members have joined, or when those that have not are removed.

    ``member_id`` is empty for a new member, which finds its id in the answer. ``protocols`` are in the member's order
    of preference. The coordinator waits for other members as long as the longest session timeout among them.
    """

    API_KEY: ClassVar[int] = 11
    API_VERSION: ClassVar[int] = 0

    group: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]

    @property
    def expects_response(self) -> bool:
        return True

    @property
    def timeouts_ms(self) -> tuple[int, ...]:
        """The timeouts in the order of the request."""
        return (self.session_timeout_ms,)

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        for timeout_ms in self.timeouts_ms:
            writer.int32(timeout_ms)
        writer.string(self.member_id)
        writer.string(self.protocol_type)
        writer.int32(len(self.protocols))
        for protocol in self.protocols:
            writer.string(protocol.name)
            writer.blob(protocol.metadata)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> JoinGroupResponse:
        reader = Reader(payload, "a join-group response")
        error, generation = error_code(reader.int16()), reader.int32()
        protocol, leader_id, member_id = reader.string(), reader.string(), reader.string()
        members = _read_members(reader)
        reader.end()
        return JoinGroupResponse(error, generation, protocol, leader_id, member_id, members)


@dataclass(frozen=True, slots=True)
class JoinGroupRequestV1(JoinGroupRequest):
    """
    Join a group, with a rebalance timeout.

    The coordinator waits for other members as long as the longest ``rebalance_timeout_ms`` among them.
    """

    API_VERSION: ClassVar[int] = 1

    rebalance_timeout_ms: int

    @property
    def timeouts_ms(self) -> tuple[int, ...]:
        """The timeouts in the order of the request."""
        return (self.session_timeout_ms, self.rebalance_timeout_ms)


def _read_members(reader: Reader) -> Mapping[str, bytes]:
    members: dict[str, bytes] = {}
    for _ in reader.array(_LEAST_MEMBER_BYTES):
        member_id = reader.string()
        if member_id in members:
            raise reader.refuse(f"member {member_id!r} twice")
        members[member_id] = bytes(reader.blob())
    return members


class SyncGroupResponse(NamedTuple):
    """
    The member's assignment: for consumers, a ``ConsumerAssignment``.

    It is empty after an error, and if the leader has named no assignment for the member.
    """

    error: ErrorCode
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """
    Ask for the member's assignment. The coordinator answers when the leader's request has arrived.

    ``assignments`` are by member id. Every member except the leader sends none.
    """

    API_KEY: ClassVar[int] = 14
    API_VERSION: ClassVar[int] = 0

    group: str
    generation: int
    member_id: str
    assignments: Mapping[str, bytes]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        writer.int32(len(self.assignments))
        for member_id, assignment in self.assignments.items():
            writer.string(member_id)
            writer.blob(assignment)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> SyncGroupResponse:
        reader = Reader(payload, "a sync-group response")
        response = SyncGroupResponse(error_code(reader.int16()), bytes(reader.blob()))
        reader.end()
        return response


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """
    Renew a member's session.

    The answer is REBALANCE_IN_PROGRESS while the member has to rejoin. After an eviction it is UNKNOWN_MEMBER_ID;
    0.9 answers REBALANCE_IN_PROGRESS to an evicted member, too, as long as the others rejoin.
    """

    API_KEY: ClassVar[int] = 12
    API_VERSION: ClassVar[int] = 0

    group: str
    generation: int
    member_id: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.int32(self.generation)
        writer.string(self.member_id)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ErrorCode:
        reader = Reader(payload, "a heartbeat response")
        error = error_code(reader.int16())
        reader.end()
        return error


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    """Remove a member from its group. The answer is UNKNOWN_MEMBER_ID if the coordinator has removed it already."""

    API_KEY: ClassVar[int] = 13
    API_VERSION: ClassVar[int] = 0

    group: str
    member_id: str

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.string(self.group)
        writer.string(self.member_id)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> ErrorCode:
        reader = Reader(payload, "a leave-group response")
        error = error_code(reader.int16())
        reader.end()
        return error


_LEAST_GROUP_BYTES = 2 + 2


class ListedGroup(NamedTuple):
    """
    A group that the broker coordinates.

    ``protocol_type`` is ``consumer`` for groups of consumers, and empty for a group that has only offsets.
    """

    group: str
    protocol_type: str


class ListGroupsResponse(NamedTuple):
    """The groups of one broker, in the broker's order. They are incomplete while the broker reads its offsets."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """Ask a broker for the groups that it coordinates."""

    API_KEY: ClassVar[int] = 16
    API_VERSION: ClassVar[int] = 0

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        return b""

    def decode_response(self, payload: Buffer) -> ListGroupsResponse:
        reader = Reader(payload, "a list-groups response")
        error = error_code(reader.int16())
        groups = tuple(ListedGroup(reader.string(), reader.string()) for _ in reader.array(_LEAST_GROUP_BYTES))
        reader.end()
        return ListGroupsResponse(error, groups)


_LEAST_DESCRIBED_BYTES = 2 + 2 + 2 + 2 + 2 + 4
_LEAST_DESCRIBED_MEMBER_BYTES = 2 + 2 + 2 + 4 + 4


class DescribedMember(NamedTuple):
    """
    A member as its coordinator knows it.

    ``client_host`` is the address that the coordinator sees, such as ``/127.0.0.1``. ``metadata`` and ``assignment``
    are empty unless the group is stable: for consumers, a ``ConsumerSubscription`` and a ``ConsumerAssignment``.
    """

    member_id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """
    A group as its coordinator knows it.

    ``state`` is the broker's name for it: ``Stable``, ``PreparingRebalance``, ``AwaitingSync`` (in later
    releases ``CompletingRebalance``), ``Empty``, or ``Dead``, which is also the state of a group that does not exist.
    """

    error: ErrorCode
    group: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """Ask for some groups. A broker that does not coordinate one of them answers NOT_COORDINATOR_FOR_CONSUMER there."""

    API_KEY: ClassVar[int] = 15
    API_VERSION: ClassVar[int] = 0

    groups: tuple[str, ...]

    @property
    def expects_response(self) -> bool:
        return True

    def encode_body(self) -> bytes:
        writer = Writer()
        writer.int32(len(self.groups))
        for group in self.groups:
            writer.string(group)
        return writer.getvalue()

    def decode_response(self, payload: Buffer) -> tuple[DescribedGroup, ...]:
        reader = Reader(payload, "a describe-groups response")
        groups = tuple(_read_group(reader) for _ in reader.array(_LEAST_DESCRIBED_BYTES))
        reader.end()
        return groups


def _read_group(reader: Reader) -> DescribedGroup:
    error = error_code(reader.int16())
    group, state, protocol_type, protocol = (reader.string() for _ in range(4))
    members = tuple(_read_member(reader) for _ in reader.array(_LEAST_DESCRIBED_MEMBER_BYTES))
    return DescribedGroup(error, group, state, protocol_type, protocol, members)


def _read_member(reader: Reader) -> DescribedMember:
    member_id, client_id, client_host = (reader.string() for _ in range(3))
    return DescribedMember(member_id, client_id, client_host, bytes(reader.blob()), bytes(reader.blob()))
