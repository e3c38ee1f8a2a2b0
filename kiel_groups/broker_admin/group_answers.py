"""Ask brokers for groups: which there are, what their coordinators know of them, and their committed offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.broker_admin.broker_session import BrokerSession
from kiel_groups.clients.coordinator.coordinator_brokers import CoordinatorBrokers
from kiel_groups.clients.coordinator.group_transport import FindError
from kiel_groups.errors import BrokerError, KielGroupsError
from kiel_groups.model import INTERNAL_TOPICS, TopicPartition
from kiel_groups.wire.error_codes import (
    CONSUMER_COORDINATOR_NOT_AVAILABLE,
    NO_ERROR,
    NOT_COORDINATOR_FOR_CONSUMER,
    OFFSETS_LOAD_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.groups.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wire.groups.coordinator_offsets import OFFSETS_TOPIC, OffsetFetchRequestV1
from kiel_groups.wire.groups.describe_groups_v0 import DescribedGroup, DescribeGroupsRequest
from kiel_groups.wire.groups.list_groups_v0 import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kiel_groups.wording import counted

__all__ = [
    "CommittedOffsets",
    "CoordinatedGroup",
    "GroupList",
    "committed_offsets",
    "describe_group",
    "list_groups",
    "members_type",
    "offsets_of_groups",
]

T = TypeVar("T")

#: While a coordinator is being found, elected, or reads its offsets. A broker answers so for some seconds at most.
_STARTING = frozenset({OFFSETS_LOAD_IN_PROGRESS, CONSUMER_COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR_FOR_CONSUMER})
_STARTING_CODES = frozenset(code.number for code in _STARTING)

#: The first and the longest pause before a request is repeated, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5

#: How many groups one request describes.
_MOST_GROUPS = 200

#: How many groups are asked for their offsets at the same time: enough to keep brokers busy, and few answers in memory.
_MOST_AT_ONCE = 16


class CoordinatedGroup(NamedTuple):
    """A group, and the node id of the broker that coordinates it."""

    described: DescribedGroup
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupList:
    """
    The groups of a cluster, by name, and the ``problems`` for which some may be missing.

    Brokers of 0.9 do not list groups without members.
    """

    groups: tuple[CoordinatedGroup, ...]
    problems: tuple[str, ...] = ()


class CommittedOffsets(NamedTuple):
    """The committed offsets of a group; ``problem`` is the reason why some are unknown, or "" if all are known."""

    offsets: Mapping[TopicPartition, int]
    problem: str = ""


class _Answer(NamedTuple):
    """What one broker has answered about its groups, or the reason why it has not."""

    groups: tuple[CoordinatedGroup, ...]
    problem: str = ""


async def list_groups(session: BrokerSession) -> GroupList:
    """Ask every broker for the groups that it coordinates, and describe them."""
    answers = await asyncio.gather(*(_groups_of(session, node_id) for node_id in sorted(session.brokers)))
    found = {each.described.group: each for answer in answers for each in answer.groups}
    problems = [answer.problem for answer in answers if answer.problem]
    return GroupList(tuple(found[name] for name in sorted(found)), (*problems, *_without_coordinator(session)))


async def describe_group(session: BrokerSession, group: str) -> CoordinatedGroup:
    """
    Find a group's coordinator, and ask it for the group. A group that does not exist has the state ``Dead``.

    Raises:
        BrokerError: The group has no coordinator now, it does not answer, or it refuses.
    """

    def error_of(answer: tuple[DescribedGroup, ...]) -> Iterable[ErrorCode]:
        return (each.error for each in answer)

    request = DescribeGroupsRequest((group,))
    coordinator, (described,) = await _ask_coordinator(session, group, request, error_of)
    if described.error != NO_ERROR:
        raise described.error.exception(f"group {group!r} cannot be described")
    return CoordinatedGroup(described, coordinator)


async def members_type(session: BrokerSession, group: str) -> str:
    """
    Return the type of a group's members, or ``""`` if there is no such group.

    A group without members keeps its type, or at least its offsets, which only consumers have.

    Raises:
        BrokerError: The group has no coordinator now, it does not answer, or it refuses.
    """
    if not session.has_coordinators:
        return ""
    described = (await describe_group(session, group)).described
    if described.protocol_type:
        return described.protocol_type
    return PROTOCOL_TYPE if (await committed_offsets(session, group)).offsets else ""


async def committed_offsets(session: BrokerSession, group: str) -> CommittedOffsets:
    """
    Ask a group's coordinator for the group's offsets in all partitions of all topics.

    Raises:
        BrokerError: The group has no coordinator now, or it does not answer.
    """
    return await _committed(session, group, _partitions(session))


async def offsets_of_groups(session: BrokerSession, groups: Iterable[str]) -> list[CommittedOffsets]:
    """Ask for the offsets of groups, in this order, of some groups at the same time. Errors become the ``problem``."""
    partitions, free = _partitions(session), asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(group: str) -> CommittedOffsets:
        async with free:
            try:
                return await _committed(session, group, partitions)
            except KielGroupsError as error:
                return CommittedOffsets({}, str(error))

    return await asyncio.gather(*map(read, groups))


def _partitions(session: BrokerSession) -> tuple[TopicPartition, ...]:
    """Return the partitions of all topics of applications."""
    return tuple(
        TopicPartition(name, each.partition)
        for name, topic in sorted(session.topics.items())
        if name not in INTERNAL_TOPICS
        for each in topic.partitions
    )


async def _committed(session: BrokerSession, group: str, partitions: tuple[TopicPartition, ...]) -> CommittedOffsets:
    if not partitions:
        return CommittedOffsets({})
    _, answer = await _ask_coordinator(
        session, group, OffsetFetchRequestV1(group, partitions), lambda found: (each.error for each in found.values())
    )
    refused = {
        partition: each.error
        for partition, each in answer.items()
        if each.error not in (NO_ERROR, UNKNOWN_TOPIC_OR_PARTITION)
    }
    offsets = {partition: each.offset for partition, each in answer.items() if each.offset >= 0}
    if not refused:
        return CommittedOffsets(offsets)
    first, what = min(refused), counted(refused, "partition")
    return CommittedOffsets(offsets, f"the offsets of {what} are refused, first {first}: {refused[first]}")


async def _ask_coordinator(
    session: BrokerSession, group: str, request: Request[T], errors: Callable[[T], Iterable[ErrorCode]]
) -> tuple[int, T]:
    """Ask the coordinator of a group; while it moves or starts, find it again, for as long as a request may take."""
    brokers, backoff = CoordinatorBrokers(session.cluster, group), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    until_s = asyncio.get_running_loop().time() + session.timeout_s
    while True:
        try:
            coordinator = await brokers.find()
            answer = await brokers.send(coordinator, request, session.timeout_s, aside=True)
        except FindError as error:
            if error.code is not None and error.code not in _STARTING_CODES:
                raise
            failure: KielGroupsError = error
        except KielGroupsError as error:
            who = f"its coordinator, {session.name_of(coordinator)},"
            failure = BrokerError(f"group {group!r}: {who} does not answer: {error}")
        else:
            starting = [code for code in errors(answer) if code in _STARTING]
            if not starting:
                return coordinator, answer
            failure = starting[0].exception(f"group {group!r}: {session.name_of(coordinator)} does not coordinate it")
        pause_s = backoff.next_s()
        if asyncio.get_running_loop().time() + pause_s > until_s:
            raise failure
        await asyncio.sleep(pause_s)


async def _groups_of(session: BrokerSession, node_id: int) -> _Answer:
    what = f"the groups of {session.name_of(node_id)} are not known"
    try:
        listed = await _list(session, node_id)
        if listed.error != NO_ERROR:
            return _Answer((), f"{what}: {listed.error}: {listed.error.hint}")
        return await _describe(session, node_id, listed.groups)
    except KielGroupsError as error:
        return _Answer((), f"{what}: {error}")


async def _list(session: BrokerSession, node_id: int) -> ListGroupsResponse:
    """List the groups of a broker; wait, within limits, while it reads them."""
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    until_s = asyncio.get_running_loop().time() + session.timeout_s
    while True:
        listed = await session.ask(node_id, ListGroupsRequest())
        pause_s = backoff.next_s()
        if listed.error not in _STARTING or asyncio.get_running_loop().time() + pause_s > until_s:
            return listed
        await asyncio.sleep(pause_s)


async def _describe(session: BrokerSession, node_id: int, listed: Collection[ListedGroup]) -> _Answer:
    names = [each.group for each in listed]
    requests = [
        DescribeGroupsRequest(tuple(names[start : start + _MOST_GROUPS]))
        for start in range(0, len(names), _MOST_GROUPS)
    ]
    found = [each for request in requests for each in await session.ask(node_id, request)]
    # A group that has moved since it was listed belongs to the answer of another broker.
    refused = [each for each in found if each.error not in (NO_ERROR, NOT_COORDINATOR_FOR_CONSUMER)]
    groups = tuple(CoordinatedGroup(each, node_id) for each in found if each.error == NO_ERROR)
    if not refused:
        return _Answer(groups)
    what = counted(refused, "group")
    first = f"first {refused[0].group!r}: {refused[0].error}"
    return _Answer(groups, f"{session.name_of(node_id)} does not describe {what}, {first}")


def _without_coordinator(session: BrokerSession) -> list[str]:
    """Return why groups may be missing that no live broker coordinates."""
    topic = session.topics.get(OFFSETS_TOPIC)
    leaderless = [each for each in topic.partitions if each.leader not in session.brokers] if topic is not None else []
    if not leaderless:
        return []
    what = counted(leaderless, "partition has", "partitions have")
    return [f"{what} no leader in the topic {OFFSETS_TOPIC}: the groups in them have no coordinator; start its brokers"]
