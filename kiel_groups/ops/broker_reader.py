"""Read the groups that brokers coordinate: their names, members and committed offsets, and the views of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, HostPort, parse_hosts
from kiel_groups.errors import BrokerError, ConfigError, KielGroupsError, NoBrokersError, UnknownGroupError
from kiel_groups.members.brokers.transport import ClusterTransport, FindError
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.model import INTERNAL_TOPICS, TopicPartition
from kiel_groups.ops import loaded_groups
from kiel_groups.ops.loaded_groups import FoundGroup, LoadedGroups, LogEnds, find_log_ends
from kiel_groups.ops.views.answers import view_coordinated_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wire.error_codes import (
    CONSUMER_COORDINATOR_NOT_AVAILABLE,
    NO_ERROR,
    NOT_COORDINATOR_FOR_CONSUMER,
    OFFSETS_LOAD_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kiel_groups.wire.metadata import MetadataResponse, TopicMetadata
from kiel_groups.wire.offsets import OFFSETS_TOPIC, OffsetFetchRequestV1
from kiel_groups.wording import counted

T = TypeVar("T")

_POLL_S = 0.05


class BrokerSession:
    """
    The connections of a tool to the brokers of a cluster, open during an ``async with`` block.

    On entry, the session finds a broker that answers, and checks that the brokers coordinate groups.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        timeout_s: How long a broker may take for an answer, in seconds.
        of_groups: False if the brokers need not coordinate groups. Then the session does not ask which requests the
            brokers know, and ``ranges`` stays empty.
        security: The file with the credentials, if it is not the one that the environment names.

    Raises:
        ConfigError: An address is not legal. On entry: the brokers are too old, or too new.
        NoBrokersError: On entry: no broker answers.
    """

    def __init__(self, brokers: str, *, timeout_s: float, of_groups: bool = True, security: Path | None = None) -> None:
        hosts = parse_hosts(brokers, KAFKA_PORT, "brokers")
        self.cluster = ClusterMetadata(BrokerConfig.of_tool(hosts, timeout_s, security), Metrics())
        self.place = f"at brokers {', '.join(map(str, hosts))}"
        self.timeout_s = timeout_s
        self.metadata = MetadataResponse((), ())
        self._versions = GroupVersions()
        self._of_groups = of_groups

    @property
    def ranges(self) -> frozenset[int]:
        """
        The API keys of the requests that the brokers know.

        The set is empty if the brokers were not asked, or are of Kafka 0.9. Brokers of 0.9 do not list their requests.
        """
        return frozenset(self._versions.ranges)

    def knows(self, request: Request[object]) -> bool:
        """Return whether the brokers list this version of a request. Brokers of Kafka 0.9 list no requests."""
        versions = self._versions.ranges.get(request.API_KEY)
        return versions is not None and versions.least <= request.API_VERSION <= versions.most

    @property
    def is_of_0_9(self) -> bool:
        """Whether the brokers are of Kafka 0.9. Such brokers do not list groups without members."""
        return not self.ranges

    @property
    def topics(self) -> dict[str, TopicMetadata]:
        """All topics by name, as last read."""
        return {topic.topic: topic for topic in self.metadata.topics}

    @property
    def has_coordinators(self) -> bool:
        """
        Whether the topic ``__consumer_offsets`` exists, so that groups may have a coordinator.

        The first request for a coordinator creates this topic. Tools do not send that request while the topic does not
        exist.
        """
        return OFFSETS_TOPIC in self.topics

    @property
    def brokers(self) -> dict[int, HostPort]:
        """The live brokers by node id, as last read."""
        return self.cluster.brokers

    def name_of(self, node_id: int) -> str:
        """Return a text for users with a broker's node id and, if it is known, the broker's address."""
        address = self.brokers.get(node_id)
        return f"broker {node_id}" if address is None else f"broker {node_id} at {address}"

    async def refresh(self) -> None:
        """Read the live brokers and all topics. Raise NoBrokersError if no broker answers."""
        self.metadata = await self.cluster.all_metadata()

    async def await_brokers(self, count: int, limit_s: float) -> None:
        """Wait until ``count`` brokers are alive. Raise BrokerError if there are fewer after ``limit_s`` seconds."""
        until_s = asyncio.get_running_loop().time() + limit_s
        while len(self.brokers) < count:
            if asyncio.get_running_loop().time() > until_s:
                alive = counted(self.brokers, "broker is", "brokers are")
                names = ", ".join(map(self.name_of, sorted(self.brokers))) or "none"
                raise BrokerError(f"{alive} alive {self.place} after {limit_s:g} s, expected {count}; alive: {names}")
            await asyncio.sleep(_POLL_S)
            await self.refresh()

    async def ask(self, node_id: int, request: Request[T], timeout_ms: int | None = None) -> T:
        """
        Send a request to one broker, once.

        Raises:
            KielGroupsError: The broker cannot be reached, or its answer cannot be read.
        """
        return await self.cluster.send(node_id, request, timeout_ms=timeout_ms)

    async def ask_any(self, request: Request[T]) -> T:
        """
        Send a request to the brokers in turn, until a broker answers, and return the answer.

        Raises:
            NoBrokersError: No broker is alive.
            KielGroupsError: No broker answers. The error is the last broker's error.
        """
        failure: KielGroupsError = NoBrokersError(f"no broker is alive {self.place}")
        for node_id in sorted(self.brokers):
            try:
                return await self.ask(node_id, request)
            except KielGroupsError as error:
                failure = error
        raise failure

    async def __aenter__(self) -> Self:
        try:
            await self.refresh()
            if self._of_groups:
                await self._versions.probe(self.cluster)
        except BaseException:
            self.cluster.close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cluster.close()


def in_session(
    brokers: str,
    timeout_s: float,
    work: Callable[[BrokerSession], Awaitable[T]],
    *,
    of_groups: bool = True,
    security: Path | None = None,
) -> T:
    """
    Open a session, call ``work`` with the session, and return the result of ``work``.

    The call blocks, and its thread must not run an event loop. The other arguments are as for ``BrokerSession``.

    Raises:
        KielGroupsError: As for ``BrokerSession``, or ``work`` failed.
    """

    async def run() -> T:
        async with BrokerSession(brokers, timeout_s=timeout_s, of_groups=of_groups, security=security) as session:
            return await work(session)

    return asyncio.run(run())


class BrokerGroups:
    """
    Reads the groups that brokers coordinate. The calls block, and raise the errors of ``BrokerSession``.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        timeout_s: How long a broker may take for an answer, in seconds.
    """

    def __init__(self, brokers: str, *, timeout_s: float = 10.0) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    def load(self, group: str) -> LoadedGroups:
        """
        Load one group with its lag.

        Raises:
            UnknownGroupError: The group does not exist. The text suggests the name of a similar group, if any.
            BrokerError: The group has no coordinator now, or the coordinator does not answer.
        """
        return self.load_all(with_lag=True, groups=[group])

    def follow(self, *groups: str) -> Generator[LoadedGroups | KielGroupsError, None, None]:
        """
        Load groups with their lag whenever the caller requests the next item. Yield the groups, or the error of a load.

        Without names of groups, all groups are loaded.

        Raises:
            ConfigError: A group does not exist, an address is not legal, or the brokers are too old or too new.
        """
        while True:
            try:
                yield self.load_all(with_lag=True, groups=groups)
            except ConfigError:
                raise
            except KielGroupsError as error:
                yield error

    def load_all(self, *, with_lag: bool, groups: Sequence[str] = ()) -> LoadedGroups:
        """
        Load all groups, or only ``groups`` if they are given.

        Args:
            with_lag: Whether to load the offsets and the lag of all groups.
            groups: The names of groups. The lag of these groups is always loaded.

        Raises:
            UnknownGroupError: One of ``groups`` does not exist.
            ConfigError: One of ``groups`` is "".
        """
        if "" in groups:
            raise ConfigError("group: '' is not the name of a group")
        if groups:
            return in_session(self._brokers, self._timeout_s, lambda session: _load_named(session, groups))
        return in_session(self._brokers, self._timeout_s, lambda session: _load_groups(session, with_lag))

    def look_up(self, group: str) -> FoundGroup:
        """Return the view of a group without its lag, or the name of a similar group if the group does not exist."""
        return in_session(self._brokers, self._timeout_s, lambda session: _look_up(session, group))

    def names(self) -> list[str]:
        """Return the names of the groups that live brokers list."""
        return [view.group for view in self.load_all(with_lag=False).groups]


async def _load_named(session: BrokerSession, groups: Sequence[str]) -> LoadedGroups:
    found = [await find_group(session, group) for group in groups]
    return await _with_lag(session, _views(session, found), [offsets.problem for _, offsets in found])


async def _load_groups(session: BrokerSession, with_lag: bool) -> LoadedGroups:
    found = await list_groups(session)
    if not with_lag:
        views = _views(session, ((each, CommittedOffsets({})) for each in found.groups))
        lists_empty = not session.is_of_0_9
        return LoadedGroups(views, len(session.brokers), problems=found.problems, lists_empty=lists_empty)
    offsets = await offsets_of_groups(session, (each.described.group for each in found.groups))
    views = _views(session, zip(found.groups, offsets, strict=True))
    return await _with_lag(session, views, [each.problem for each in offsets], found.problems)


def view_of(session: BrokerSession, group: CoordinatedGroup, offsets: CommittedOffsets) -> GroupView:
    """Return the view of a group with its committed offsets, but without log ends."""
    return _views(session, [(group, offsets)])[0]


def _views(
    session: BrokerSession, groups: Iterable[tuple[CoordinatedGroup, CommittedOffsets]]
) -> tuple[GroupView, ...]:
    topics = {name: tuple(each.partition for each in topic.partitions) for name, topic in session.topics.items()}
    return tuple(
        view_coordinated_group(group.described, session.name_of(group.coordinator), topics, offsets.offsets)
        for group, offsets in groups
    )


async def _with_lag(
    session: BrokerSession,
    views: tuple[GroupView, ...],
    problems: Iterable[str],
    missing: tuple[str, ...] = (),
) -> LoadedGroups:
    """
    Return the loaded groups with the log ends of their existing partitions.

    Brokers are not asked for missing topics, because a request for a missing topic may create the topic.
    """
    partitions = {each.topic_partition for view in views for each in view.partitions if each.exists}
    addresses = list(session.brokers.values())
    ends = await find_log_ends(addresses, partitions, timeout_s=session.timeout_s) if addresses else LogEnds()
    return LoadedGroups(
        tuple(view.with_log_ends(ends.offsets, len(addresses)) for view in views),
        len(addresses),
        next((problem for problem in (*problems, ends.problem) if problem), ""),
        missing,
        lists_empty=not session.is_of_0_9,
    )


async def _look_up(session: BrokerSession, group: str) -> FoundGroup:
    if not session.has_coordinators:
        return FoundGroup(None)
    described, offsets = await describe_group(session, group), await committed_offsets(session, group)
    view = view_of(session, described, offsets)
    if view.exists:
        return FoundGroup(view)
    return FoundGroup.similar_to(group, await _names(session))


async def _names(session: BrokerSession) -> list[str]:
    return [each.described.group for each in (await list_groups(session)).groups]


async def unknown_group(session: BrokerSession, group: str) -> UnknownGroupError:
    """Return the error about a group that does not exist. The error's text suggests the name of a similar group."""
    return loaded_groups.unknown_group(group, session.place, await _names(session), " that has members")


#: The errors while a coordinator is being found or elected, or reads its offsets. They last some seconds at most.
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
    The groups of a cluster, in alphabetical order. ``problems`` are the reasons why groups may be missing.

    Brokers of Kafka 0.9 do not list groups without members.
    """

    groups: tuple[CoordinatedGroup, ...]
    problems: tuple[str, ...] = ()


class CommittedOffsets(NamedTuple):
    """The committed offsets of a group. ``problem`` is the reason why offsets are unknown, or "" if all are known."""

    offsets: Mapping[TopicPartition, int]
    problem: str = ""


async def list_groups(session: BrokerSession) -> GroupList:
    """Ask every broker for its groups, and return the descriptions of these groups. Errors become ``problems``."""
    answers = await asyncio.gather(*(_groups_of(session, node_id) for node_id in sorted(session.brokers)))
    found = {each.described.group: each for answer in answers for each in answer.groups}
    problems = [problem for answer in answers for problem in answer.problems]
    return GroupList(tuple(found[name] for name in sorted(found)), (*problems, *_without_coordinator(session)))


async def describe_group(session: BrokerSession, group: str) -> CoordinatedGroup:
    """
    Ask a group's coordinator for the description of the group. A group that does not exist has the state ``Dead``.

    Raises:
        BrokerError: The group has no coordinator now, or the coordinator does not answer or refuses.
    """

    def error_of(answer: tuple[DescribedGroup, ...]) -> Iterable[ErrorCode]:
        return (each.error for each in answer)

    request = DescribeGroupsRequest((group,))
    coordinator, (described,) = await ask_coordinator(session, group, request, error_of)
    if described.error != NO_ERROR:
        raise described.error.exception(f"group {group!r} cannot be described")
    return CoordinatedGroup(described, coordinator)


async def find_group(session: BrokerSession, group: str) -> tuple[CoordinatedGroup, CommittedOffsets]:
    """
    Ask a group's coordinator for the description of the group and for its committed offsets.

    Raises:
        UnknownGroupError: The group does not exist. The text suggests the name of a similar group, if any.
        BrokerError: The group has no coordinator now, or the coordinator does not answer or refuses.
    """
    if not session.has_coordinators:
        raise UnknownGroupError(f"group {group!r} does not exist {session.place}, nor does any other")
    found, offsets = await describe_group(session, group), await committed_offsets(session, group)
    if not view_of(session, found, offsets).exists:
        raise await unknown_group(session, group)
    return found, offsets


async def members_type(session: BrokerSession, group: str) -> str:
    """
    Return the type of a group's members, or ``""`` if there is no such group.

    A group without members keeps its type or, at least, its offsets. Only groups of consumers have offsets.

    Raises:
        BrokerError: The group has no coordinator now, or the coordinator does not answer or refuses.
    """
    if not session.has_coordinators:
        return ""
    described = (await describe_group(session, group)).described
    if described.protocol_type:
        return described.protocol_type
    return PROTOCOL_TYPE if (await committed_offsets(session, group)).offsets else ""


async def committed_offsets(session: BrokerSession, group: str) -> CommittedOffsets:
    """
    Ask a group's coordinator for the group's offsets in all partitions of all topics that are not internal.

    Offsets that the coordinator refuses become the ``problem``.

    Raises:
        BrokerError: The group has no coordinator now, or the coordinator does not answer.
    """
    return await _committed(session, group, _partitions(session))


async def offsets_of_groups(session: BrokerSession, groups: Iterable[str]) -> list[CommittedOffsets]:
    """
    Return the committed offsets of each group, in the order of ``groups``. Errors become the ``problem`` of a group.

    The coordinators of at most ``_MOST_AT_ONCE`` groups are asked at the same time.
    """
    partitions, free = _partitions(session), asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(group: str) -> CommittedOffsets:
        async with free:
            try:
                return await _committed(session, group, partitions)
            except KielGroupsError as error:
                return CommittedOffsets({}, str(error))

    return await asyncio.gather(*map(read, groups))


def _partitions(session: BrokerSession) -> tuple[TopicPartition, ...]:
    """Return the partitions of all topics except internal topics."""
    return tuple(
        TopicPartition(name, each.partition)
        for name, topic in sorted(session.topics.items())
        if name not in INTERNAL_TOPICS
        for each in topic.partitions
    )


async def _committed(session: BrokerSession, group: str, partitions: tuple[TopicPartition, ...]) -> CommittedOffsets:
    if not partitions:
        return CommittedOffsets({})
    _, answer = await ask_coordinator(
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


async def ask_coordinator(
    session: BrokerSession,
    group: str,
    request: Request[T],
    errors: Callable[[T], Iterable[ErrorCode]],
    repeated: frozenset[int] = _STARTING_CODES,
) -> tuple[int, T]:
    """
    Send a request to the coordinator of a group, and return the coordinator's node id and answer.

    If the coordinator moves, starts or does not answer, find the coordinator again and repeat the request, for at most
    ``session.timeout_s`` seconds.

    Args:
        session: The session with the brokers.
        group: The group.
        request: The request. A broker may receive the request several times.
        errors: Returns the error codes of an answer.
        repeated: The codes after which the request is repeated.

    Raises:
        BrokerError: The group has no coordinator now, the coordinator does not answer, or the last answer has an error
            code of ``repeated``.
    """
    brokers, backoff = ClusterTransport(session.cluster, group), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
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
            passing = [code for code in errors(answer) if code.number in repeated]
            if not passing:
                return coordinator, answer
            failure = passing[0].exception(f"group {group!r}: {session.name_of(coordinator)} does not coordinate it")
        pause_s = backoff.next_s()
        if asyncio.get_running_loop().time() + pause_s > until_s:
            raise failure
        await asyncio.sleep(pause_s)


async def _groups_of(session: BrokerSession, node_id: int) -> GroupList:
    what = f"the groups of {session.name_of(node_id)} are not known"
    try:
        listed = await _list(session, node_id)
        if listed.error != NO_ERROR:
            return GroupList((), (f"{what}: {listed.error}: {listed.error.hint}",))
        return await _describe(session, node_id, listed.groups)
    except KielGroupsError as error:
        return GroupList((), (f"{what}: {error}",))


async def _list(session: BrokerSession, node_id: int) -> ListGroupsResponse:
    """
    List the groups of a broker. While the broker still loads its groups, repeat the request, within ``timeout_s``.
    """
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    until_s = asyncio.get_running_loop().time() + session.timeout_s
    while True:
        listed = await session.ask(node_id, ListGroupsRequest())
        pause_s = backoff.next_s()
        if listed.error not in _STARTING or asyncio.get_running_loop().time() + pause_s > until_s:
            return listed
        await asyncio.sleep(pause_s)


async def _describe(session: BrokerSession, node_id: int, listed: Collection[ListedGroup]) -> GroupList:
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
        return GroupList(groups)
    what = counted(refused, "group")
    first = f"first {refused[0].group!r}: {refused[0].error}"
    return GroupList(groups, (f"{session.name_of(node_id)} does not describe {what}, {first}",))


def _without_coordinator(session: BrokerSession) -> list[str]:
    """
    Return the reason why groups may be missing if partitions of ``__consumer_offsets`` have no live leader, else [].
    """
    topic = session.topics.get(OFFSETS_TOPIC)
    leaderless = [each for each in topic.partitions if each.leader not in session.brokers] if topic is not None else []
    if not leaderless:
        return []
    what = counted(leaderless, "partition has", "partitions have")
    return [f"{what} no leader in the topic {OFFSETS_TOPIC}: the groups in them have no coordinator; start its brokers"]
