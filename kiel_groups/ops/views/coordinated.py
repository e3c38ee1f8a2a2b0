"""View a group that brokers coordinate, check it, and render it as tables or JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.errors import ProtocolError
from kiel_groups.model import CONNECT_TYPE, MemberId, TopicPartition
from kiel_groups.ops.views.checks import (
    STUCK_MS,
    WATCHED_MS,
    Finding,
    beyond_end,
    missing_topics,
    partition_names,
    short_name,
    unconsumed,
)
from kiel_groups.ops.views.documents import finding_document, partition_lag, unknown_lags
from kiel_groups.ops.views.group_view import PartitionView, lag_of
from kiel_groups.ops.views.report import (
    Column,
    Listed,
    Listing,
    facts_grid,
    findings_grid,
    lag_text,
    listed_partitions,
    report_table,
    topic_parts,
    whole_lag,
)
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember
from kiel_groups.wording import counted, some

__all__ = [
    "CoordinatedGroupView",
    "CoordinatedMemberView",
    "GroupAnswers",
    "view_coordinated_group",
    "check_coordinated_group",
    "CoordinatedProgress",
    "coordinated_document",
    "coordinated_outline",
    "coordinated_groups_table",
    "coordinated_report",
]


# The view of a group that brokers coordinate: one value, computed from the answers of its coordinator.
#
# What a member tells the others in bytes that cannot be read raises no error, because operators need the view of a
# broken group most.


#: What a coordinator calls the states of a group, and our words. ``Dead`` is also a group without members that has
#: committed offsets, as Kafka 0.9 has it.
_STATES = {
    "Stable": "stable",
    "PreparingRebalance": "rebalancing",
    "AwaitingSync": "rebalancing",
    "CompletingRebalance": "rebalancing",
    "Empty": "empty",
    "Dead": "empty",
}


@dataclass(frozen=True, slots=True)
class CoordinatedMemberView:
    """
    A member as its coordinator knows it, and the partitions that are assigned to it.

    ``subscription`` is None if it is unknown: the group rebalances, the bytes cannot be read, or the group is not one
    of consumers.
    """

    member_id: MemberId
    client_id: str
    host: str
    subscription: tuple[str, ...] | None
    owned: tuple[PartitionView, ...]

    @property
    def lag(self) -> int | None:
        """The lag of the assigned partitions, in records; see ``lag_of``."""
        return lag_of(self.owned)


@dataclass(frozen=True, slots=True)
class CoordinatedGroupView:
    """
    A group at one moment.

    ``broker_state`` and ``protocol_type`` are the coordinator's words; ``protocol`` is the name of the assignment
    strategy. ``coordinator`` is a broker with its address. ``partitions`` are those that are assigned, belong to a
    subscribed topic, or have a committed offset; the ``owner`` of a partition is the member that it is assigned to.
    ``unreadable`` has an error text for what cannot be read of a member. ``assigned_twice`` has the partitions that
    several members own. ``missing_topics`` are subscribed topics that do not exist.
    """

    group: str
    broker_state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[CoordinatedMemberView, ...]
    partitions: tuple[PartitionView, ...]
    unreadable: tuple[str, ...] = ()
    assigned_twice: tuple[TopicPartition, ...] = ()
    missing_topics: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """
        The state of the group in one word.

        It is ``stable``, ``rebalancing``, ``empty``, ``memberless`` (no member has ever joined; brokers of 0.9 do not
        know that), or a state of later brokers in lower case.
        """
        if self.broker_state == "Empty" and not self.protocol_type:
            return "memberless"
        return _STATES.get(self.broker_state, self.broker_state.lower())

    @property
    def is_of_consumers(self) -> bool:
        """Whether members are consumers, or may be, because the coordinator does not say."""
        return self.protocol_type in ("", PROTOCOL_TYPE)

    @property
    def exists(self) -> bool:
        """Whether there is such a group: it has a coordinator's state or a committed offset."""
        return self.broker_state != "Dead" or any(each.committed is not None for each in self.partitions)

    @property
    def known_lag(self) -> int | None:
        """The lag of the whole group, in records; see ``lag_of``."""
        return lag_of(self.partitions)

    @property
    def owned(self) -> int:
        """The number of partitions that are assigned to a member."""
        return sum(partition.owner is not None for partition in self.partitions)

    @property
    def member_ids(self) -> frozenset[MemberId]:
        return frozenset(member.member_id for member in self.members)

    def with_log_ends(self, log_ends: Mapping[TopicPartition, int]) -> CoordinatedGroupView:
        """Return the view with these log ends."""
        known = {
            each.topic_partition: replace(each, log_end=log_ends.get(each.topic_partition)) for each in self.partitions
        }
        members = tuple(
            replace(member, owned=tuple(known[each.topic_partition] for each in member.owned))
            for member in self.members
        )
        return replace(self, partitions=tuple(known.values()), members=members)


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """
    What brokers have answered about a group.

    ``topics`` has the partition numbers of all topics, ``offsets`` the committed offsets of the group.
    """

    described: DescribedGroup
    coordinator: str
    topics: Mapping[str, tuple[int, ...]]
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Member:
    """A member, with what could be read of it."""

    described: DescribedMember
    subscription: ConsumerSubscription | None
    assignment: ConsumerAssignment | None


def view_coordinated_group(answers: GroupAnswers) -> CoordinatedGroupView:
    """Return the view of a group, without log ends."""
    described = answers.described
    unreadable: list[str] = []
    members = [_read(described, each, unreadable) for each in described.members]
    assigned: dict[TopicPartition, list[MemberId]] = defaultdict(list)
    for member in members:
        for partition in _partitions_of(member.assignment):
            assigned[partition].append(member.described.member_id)
    subscribed = {topic for each in members if each.subscription is not None for topic in each.subscription.topics}
    known = {TopicPartition(topic, number) for topic in subscribed for number in answers.topics.get(topic, ())}
    views = {
        partition: PartitionView(partition, min(owners) if owners else None, answers.offsets.get(partition), None)
        for partition in sorted({*assigned, *known, *answers.offsets})
        for owners in [assigned.get(partition)]
    }
    return CoordinatedGroupView(
        group=described.group,
        broker_state=described.state,
        protocol_type=described.protocol_type,
        protocol=described.protocol,
        coordinator=answers.coordinator,
        members=tuple(sorted((_view(each, views) for each in members), key=lambda view: view.member_id)),
        partitions=tuple(views.values()),
        unreadable=tuple(unreadable),
        assigned_twice=tuple(sorted(partition for partition, owners in assigned.items() if len(owners) > 1)),
        missing_topics=tuple(sorted(subscribed - answers.topics.keys())),
    )


def _read(group: DescribedGroup, member: DescribedMember, unreadable: list[str]) -> _Member:
    # A coordinator shows the members' metadata only while the group is stable.
    if group.protocol_type != PROTOCOL_TYPE or _STATES.get(group.state) != "stable":
        return _Member(member, None, None)
    subscription = assignment = None
    try:
        subscription = ConsumerSubscription.parse(member.metadata, f"the subscription of {member.member_id}")
        assignment = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}")
    except ProtocolError as error:
        unreadable.append(str(error))
    return _Member(member, subscription, assignment)


def _view(member: _Member, views: Mapping[TopicPartition, PartitionView]) -> CoordinatedMemberView:
    return CoordinatedMemberView(
        member.described.member_id,
        member.described.client_id,
        member.described.client_host.removeprefix("/"),
        None if member.subscription is None else member.subscription.topics,
        tuple(views[partition] for partition in sorted(_partitions_of(member.assignment))),
    )


def _partitions_of(assignment: ConsumerAssignment | None) -> set[TopicPartition]:
    given = {} if assignment is None else assignment.partitions
    return {TopicPartition(topic, number) for topic, numbers in given.items() for number in numbers}


def check_coordinated_group(view: CoordinatedGroupView) -> tuple[Finding, ...]:
    """
    Return the problems that one view of a group shows.

    ``CoordinatedProgress`` finds those that only several views can show.
    """
    return tuple(finding for rule in _RULES for finding in rule(view))


def _unconsumed(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.state == "empty":
        yield from unconsumed(view.partitions)


def _unreadable(view: CoordinatedGroupView) -> Iterator[Finding]:
    for text in view.unreadable:
        yield Finding(
            "unreadable", text, "the member's client sends what others cannot read; stop it, or update its library"
        )


def _assigned_twice(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.assigned_twice:
        what = counted(view.assigned_twice, "partition is", "partitions are")
        owners = [
            member.member_id
            for member in view.members
            if not {each.topic_partition for each in member.owned}.isdisjoint(view.assigned_twice)
        ]
        yield Finding(
            "assigned-twice",
            f"{what} assigned to several members: {some(view.assigned_twice)}, by the strategy {view.protocol!r}",
            "the strategy of the group's leader is wrong: its records are delivered twice; configure another one",
            partitions=view.assigned_twice,
            members=tuple(owners),
        )


def _unassigned(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.state != "stable" or view.unreadable:
        return
    subscribed = {topic for member in view.members for topic in member.subscription or ()}
    unassigned = [each for each in view.partitions if each.owner is None and each.topic_partition.topic in subscribed]
    if unassigned:
        what = counted(unassigned, "partition is", "partitions are")
        yield Finding(
            "unassigned",
            f"{what} assigned to no member: {some(partition_names(unassigned))}",
            "the leader assigns new partitions when it next reads metadata (metadata.max.age.ms, 5 min by default); if"
            " that time is over, look at its log",
            partitions=partition_names(unassigned),
        )


def _idle(view: CoordinatedGroupView) -> Iterator[Finding]:
    idle = [member for member in view.members if _could_own(member, view)]
    if idle:
        what = counted(idle, "member has", "members have")
        yield Finding(
            "idle",
            f"{what} no partition, although others have several of the same topics: "
            f"{some(short_name(member.member_id) for member in idle)}",
            "the strategy 'range' divides each topic apart; choose another, such as 'roundrobin', for all members"
            if view.protocol == "range"
            else f"the strategy {view.protocol!r} divides them so; choose another for all members",
            members=tuple(member.member_id for member in idle),
        )


def _could_own(member: CoordinatedMemberView, view: CoordinatedGroupView) -> bool:
    """Return whether a member has no partition, and another has several of the topics that it subscribes to."""
    if member.owned or not member.subscription:
        return False
    topics = set(member.subscription)
    return any(sum(each.topic_partition.topic in topics for each in other.owned) > 1 for other in view.members)


def _beyond(view: CoordinatedGroupView) -> Iterator[Finding]:
    yield from beyond_end(view.partitions)


def _missing_topics(view: CoordinatedGroupView) -> Iterator[Finding]:
    yield from missing_topics(view.missing_topics)


_Rule: TypeAlias = Callable[[CoordinatedGroupView], Iterator[Finding]]

_RULES: tuple[_Rule, ...] = (
    _unconsumed,
    _unreadable,
    _assigned_twice,
    _unassigned,
    _idle,
    _beyond,
    _missing_topics,
)


# The problems of a group that only successive views of it show: a long rebalance, missing offsets, no progress.
#
# Coordinators tell neither since when a group rebalances, nor when an offset was committed.


class _Since(NamedTuple):
    """A partition as last viewed, and the time of the first view from which on it was like that."""

    partition: PartitionView
    since_ms: int


class CoordinatedProgress:
    """Tracks over successive views of one group what should have changed meanwhile, but has not."""

    def __init__(self) -> None:
        self._rebalancing_since_ms: int | None = None
        self._uncommitted: dict[TopicPartition, _Since] = {}
        self._lagging: dict[TopicPartition, _Since] = {}

    def take(self, view: CoordinatedGroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view. Return what the views so far show, what needs an operator first.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
        """
        if view.state != "rebalancing":
            self._rebalancing_since_ms = None
        elif self._rebalancing_since_ms is None:
            self._rebalancing_since_ms = now_ms
        self._uncommitted = _unmoved(self._uncommitted, view, now_ms, _lacks_offset)
        self._lagging = _unmoved(self._lagging, view, now_ms, lambda each: bool(each.lag))
        found = [*self._rebalancing(view, now_ms), *self._missing_offsets(now_ms), *self._stuck(now_ms)]
        return tuple(sorted(found, key=lambda finding: finding.passing))

    @property
    def suspicion(self) -> str:
        """Why another view, ``WATCHED_MS`` after the last one, may show a problem that needs an operator, or ""."""
        if self._rebalancing_since_ms is not None:
            return "the group rebalances"
        return "assigned partitions have no committed offset" if self._uncommitted else ""

    def _rebalancing(self, view: CoordinatedGroupView, now_ms: int) -> Iterator[Finding]:
        if self._rebalancing_since_ms is None:
            return
        seen_ms = now_ms - self._rebalancing_since_ms
        known = counted(view.members, "member", "members")
        yield Finding(
            "rebalancing",
            f"the group rebalances ({view.broker_state}), with {known} so far"
            + (f", in every look for {seen_ms // 1000} s" if seen_ms >= 1000 else ""),
            "a member does not rejoin: its application is busy or hangs; the logs of members say which they wait for,"
            " and the coordinator removes it after its rebalance timeout",
            passing=seen_ms < WATCHED_MS,
            members=tuple(sorted(view.member_ids)),
        )

    def _missing_offsets(self, now_ms: int) -> Iterator[Finding]:
        missing = list(self._uncommitted.values())
        if missing:
            partitions = [each.partition for each in missing]
            what = counted(partitions, "assigned partition has", "assigned partitions have")
            yield Finding(
                "missing-offset",
                f"{what} records, but no committed offset: {some(partition_names(partitions))}, of "
                f"{some(_owners(partitions))}",
                "look at the log of that member: it does not commit, or the offset has expired"
                " (offsets.retention.minutes)",
                passing=all(now_ms - each.since_ms < WATCHED_MS for each in missing),
                partitions=partition_names(partitions),
            )

    def _stuck(self, now_ms: int) -> Iterator[Finding]:
        stuck = [each for each in self._lagging.values() if now_ms - each.since_ms >= WATCHED_MS]
        if stuck:
            partitions = [each.partition for each in stuck]
            what = counted(partitions, "partition makes", "partitions make")
            seen_ms = max(now_ms - each.since_ms for each in stuck)
            lag = sum(each.lag or 0 for each in partitions)
            yield Finding(
                "stuck",
                f"{what} no progress: lag {lag:,}, and no commit in {seen_ms // 1000} s: "
                f"{some(partition_names(partitions))}, of {some(_owners(partitions))}",
                "look at the log of that member: its application hangs, or does not commit",
                passing=seen_ms < STUCK_MS,
                partitions=partition_names(partitions),
            )


def _lacks_offset(partition: PartitionView) -> bool:
    """Return whether a partition has records, or had some, and no committed offset."""
    return partition.committed is None and bool(partition.log_end)


def _unmoved(
    before: dict[TopicPartition, _Since],
    view: CoordinatedGroupView,
    now_ms: int,
    concerns: Callable[[PartitionView], bool],
) -> dict[TopicPartition, _Since]:
    """Return the assigned partitions of a view that ``concerns`` selects, each with the time since it is unchanged."""
    found = {}
    for each in view.partitions:
        if each.owner is not None and concerns(each):
            last = before.get(each.topic_partition, _Since(each, now_ms))
            is_same = (last.partition.owner, last.partition.committed) == (each.owner, each.committed)
            found[each.topic_partition] = _Since(each, last.since_ms if is_same else now_ms)
    return found


def _owners(partitions: list[PartitionView]) -> list[str]:
    return sorted({short_name(each.owner) for each in partitions if each.owner is not None})


def coordinated_outline(view: CoordinatedGroupView, *, with_lag: bool) -> dict[str, Any]:
    """Return the entry of a group in the list of groups; the lag is null unless ``with_lag``."""
    return {
        "group": view.group,
        "type": view.protocol_type,
        "members": len(view.members),
        "state": view.state,
        "coordinator": view.coordinator,
        "lag": view.known_lag if with_lag else None,
    }


def coordinated_document(
    view: CoordinatedGroupView, findings: Iterable[Finding], *, lag_problem: str
) -> dict[str, Any]:
    """
    Return the document of one group.

    Args:
        view: The group.
        findings: The group's problems.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
    """
    return {
        "group": view.group,
        "state": view.state,
        "broker_state": view.broker_state,
        "type": view.protocol_type,
        "strategy": view.protocol or None,
        "coordinator": view.coordinator,
        "lag": view.known_lag,
        "partitions_of_unknown_lag": unknown_lags(view.partitions),
        "lag_problem": lag_problem or None,
        "wrong": [finding_document(finding) for finding in findings],
        "members": [_member(member) for member in view.members],
        "partitions": [{**partition_lag(each), "owner": each.owner} for each in view.partitions],
    }


def _member(member: CoordinatedMemberView) -> dict[str, Any]:
    is_known = member.subscription is not None
    return {
        "id": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "subscription": list(member.subscription) if member.subscription is not None else None,
        "owned": [str(each.topic_partition) for each in member.owned] if is_known else None,
        "lag": member.lag if is_known else None,
        "partitions_of_unknown_lag": unknown_lags(member.owned) if is_known else None,
    }


_MOST_TOPICS = 2


def coordinated_groups_table(views: Iterable[CoordinatedGroupView], *, with_lag: bool) -> RenderableType:
    """Return a table with a row for each group of a cluster; ``with_lag`` requires views with offsets."""
    shown = list(views)
    columns = [
        ("group", [view.group for view in shown]),
        ("type", [view.protocol_type for view in shown]),
        ("members", [str(len(view.members)) for view in shown]),
        ("state", [view.state for view in shown]),
        ("coordinator", [view.coordinator for view in shown]),
    ]
    return Listing([*columns, ("lag", [_group_lag(view) for view in shown])] if with_lag else columns)


def coordinated_report(
    view: CoordinatedGroupView,
    findings: Sequence[Finding],
    *,
    place: str,
    lag_problem: str,
    clock: str = "",
    listed: Listed = "all",
) -> list[RenderableType]:
    """
    Return the report on one group.

    Args:
        view: The group.
        findings: The group's problems.
        place: The addresses of brokers that the caller has given.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
        clock: The time of day to show, for one of several successive reports.
        listed: Which partitions to list; ``wrong`` lists partitions that have a finding or an unknown lag.
    """
    at = f", {clock}" if clock else ""
    parts: list[RenderableType] = [Text(f"group {view.group} at brokers {place}{at}", style="bold")]
    if findings:
        parts += ["", findings_grid(findings)]
    parts += ["", facts_grid(_facts(view, lag_problem))]
    if view.members:
        parts += [Text("\nmembers, by the end of their ids", style="bold"), _members(view.members)]
    elif view.partitions:
        parts.append("")
    owner: Column = ("owner", lambda each: "none" if each.owner is None else short_name(each.owner))
    parts += topic_parts(view.partitions, listed_partitions(view.partitions, findings, listed), owner)
    return parts


def _facts(view: CoordinatedGroupView, lag_problem: str) -> Iterator[tuple[str, str]]:
    yield "state", "".join(_state(view))
    yield "coordinator", view.coordinator
    if not view.is_of_consumers:
        yield "type", f"{view.protocol_type}: not a group of consumers; its members own no partitions"
    if view.protocol_type == CONNECT_TYPE:
        yield "", f"'kiel-groups workers describe {view.group}' shows workers of kiel-groups, but not Java's"
    if view.protocol:
        yield "strategy", view.protocol
    if view.partitions or view.is_of_consumers:
        yield "lag", whole_lag(_group_lag(view), view.partitions, lag_problem)


def _state(view: CoordinatedGroupView) -> Iterator[str]:
    yield view.state
    if view.state == "memberless":
        yield ": no member has ever joined; another program commits its offsets"
    elif view.state == "rebalancing":
        yield f" ({view.broker_state}): brokers do not say which member owns what meanwhile"
    elif view.is_of_consumers:
        yield f": {view.owned:,} of {counted(view.partitions, 'partition is', 'partitions are')} assigned"


def _members(members: Iterable[CoordinatedMemberView]) -> Table:
    table = report_table()
    table.add_column("member", overflow="fold")
    table.add_column("client", overflow="fold", max_width=20)
    table.add_column("host", overflow="fold", max_width=20)
    table.add_column("topics", overflow="fold")
    table.add_column("partitions", justify="right", overflow="fold")
    table.add_column("lag", justify="right", overflow="fold")
    for member in members:
        is_known = member.subscription is not None
        table.add_row(
            short_name(member.member_id),
            member.client_id,
            member.host,
            some(member.subscription or (), _MOST_TOPICS) if is_known else "?",
            str(len(member.owned)) if is_known else "?",
            lag_text(member.owned) if is_known else "?",
        )
    return table


def _group_lag(view: CoordinatedGroupView) -> str:
    return lag_text(view.partitions)
