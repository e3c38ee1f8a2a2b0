"""
Preview the plan that the leader of a group would make after a change, beside the present plan.

The functions of the leader compute the plan from the leader's inputs. Notes list inputs that only the leader knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.allocators import Allocator, loads_of, sticky, weighted
from kiel_groups.allocators.assignors import AllocatorAssignor, Assignor, AssignorMember, parse_member, run_assignor
from kiel_groups.errors import AllocatorError, ConfigError, ProtocolError
from kiel_groups.group.planner import Inputs, absences, allocate, fallback_target, limit_claims, members_by_slot
from kiel_groups.group.znodes.contents import (
    MemberInfo,
    Snapshot,
    make_member_id,
    parse_broker_rack,
    parse_preferred_leaders,
    whole_number,
)
from kiel_groups.group.znodes.group_settings import DynamicConfig, Weights, parse_weights
from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.ops.views.checks import short_name
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.views.members import find_slots
from kiel_groups.ops.views.report import Column, report_table, topic_tables
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.group_requests import DescribedGroup
from kiel_groups.wording import counted, some


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """
    A hypothetical change of a group. Without arguments, nothing changes.

    ``added`` is the number of members that join, on the host ``added_on`` ("" for the host of the newest member).
    ``removed`` names the members that leave, by member ids, the session ids at their ends, or instance ids. With
    ``host``, all members of the host leave, too. ``topics`` are the topics that every member subscribes to, or () to
    keep the subscriptions. ``partitions`` has the numbers of partitions to which topics grow. ``weights`` are the new
    weights of partitions, or None to keep the weights.
    """

    added: int = 0
    added_on: str = ""
    removed: tuple[str, ...] = ()
    host: str = ""
    topics: tuple[str, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict)
    weights: Weights | None = None


class Move(NamedTuple):
    """A partition whose owner changes; None means no owner."""

    partition: TopicPartition
    before: Slot | None
    after: Slot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """
    The present plan of a group, and the plan that the group's leader would make.

    ``before`` and ``after`` have the partitions of each slot. A slot is the instance id of a static member, or else a
    member id. If brokers coordinate the group, all slots are member ids.

    ``names`` has short names of slots with a long id. ``loads`` has the load of each partition. Without weights, each
    load is 1. ``unassigned`` maps partitions that get no owner to the reason. ``fallback`` is "" unless the allocator
    fails. Then ``fallback`` describes the plan that replaces the allocator's plan. ``notes`` are sentences about the
    limits of the preview.
    """

    group: str
    allocator: str
    before: Allocation
    after: Allocation
    names: Mapping[Slot, str]
    loads: Mapping[TopicPartition, float]
    has_weights: bool = False
    unassigned: Mapping[TopicPartition, str] = field(default_factory=dict)
    fallback: str = ""
    notes: tuple[str, ...] = ()

    @property
    def moves(self) -> tuple[Move, ...]:
        """The partitions whose owner changes, in order, including partitions that get or lose an owner."""
        before, after = _owners(self.before), _owners(self.after)
        return tuple(
            Move(each, before.get(each), after.get(each))
            for each in sorted(before.keys() | after.keys())
            if before.get(each) != after.get(each)
        )

    @property
    def slots(self) -> list[Slot]:
        """The slots of the new plan, and the slots with partitions in the present plan, in order."""
        return sorted({slot for slot, owned in self.before.items() if owned} | self.after.keys())

    def name(self, slot: Slot | None) -> str:
        """Return the name of a slot for reports, or "" for None."""
        return "" if slot is None else self.names.get(slot, slot)

    def load(self, owned: Iterable[TopicPartition]) -> float:
        """Return the total load of partitions."""
        return sum(self.loads[each] for each in owned)


def _owners(allocation: Allocation) -> dict[TopicPartition, Slot]:
    return {partition: slot for slot, owned in allocation.items() for partition in owned}


# Groups that ZooKeeper coordinates.


def inputs_of(group: str, znodes: Snapshot, now_ms: int, grace_ms: int) -> Inputs:
    """
    Return the inputs of a plan, as the leader reads them from the znodes of the group, its topics and the brokers.

    Args:
        group: The name of the group.
        znodes: The znodes.
        now_ms: Wall-clock time, milliseconds since 1970.
        grace_ms: How long the leader keeps the assignment of an absent static member, in milliseconds, if the group's
            ``config`` has no such setting.

    Raises:
        ProtocolError: The settings or the weights cannot be read. A leader would keep the last readable values.
    """
    layout = GroupLayout(group)
    reading = GroupReading(layout, znodes)
    config, weights = znodes.get(layout.config), znodes.get(layout.weights)
    dynamic_config = DynamicConfig() if config is None else DynamicConfig.parse(config.data, layout.config)
    members, assignments = members_by_slot(reading.registered()), reading.assignments()
    grace_ms = grace_ms if dynamic_config.static_grace_ms is None else dynamic_config.static_grace_ms
    away = absences(assignments, members, now_ms, grace_ms)
    members = {slot: member for slot, member in members.items() if slot not in away}
    group_state = reading.group_state()
    return Inputs(
        members=members,
        topics=reading.topics({topic for member in members.values() for topic in member.subscription}),
        brokers=len(reading.children(BROKER_IDS)),
        group_state=group_state,
        patterns={} if group_state is None else group_state.patterns,
        assignments=assignments,
        away=away,
        dynamic_config=dynamic_config,
        weights={} if weights is None else parse_weights(weights.data, layout.weights),
    )


def racks_of(group: str, inputs: Inputs, znodes: Snapshot) -> dict[TopicPartition, str]:
    """
    Return the rack of each partition's preferred leader, from the znodes of brokers and topics. Partitions without a
    known rack are left out.
    """
    reading = GroupReading(GroupLayout(group), znodes)
    brokers = {
        number: reading.parsed(parse_broker_rack, path)
        for path, _ in reading.children(BROKER_IDS)
        if (number := whole_number(path.rpartition("/")[2])) is not None
    }
    leaders = {topic: reading.parsed(parse_preferred_leaders, topic_path(topic)) or {} for topic in inputs.topics}
    return inputs.racks(brokers, leaders)


def changed_inputs(group: str, inputs: Inputs, change: GroupChange, znodes: Snapshot, now_ms: int) -> Inputs:
    """
    Return the inputs of the plan after a change.

    A new member subscribes to the topics of the change or, by default, of all members, and has the default capacity.
    The id of the new member sorts like the id of a member that starts now on the same host. A static member that leaves
    does not return, so its assignment is not kept.

    Args:
        group: The name of the group.
        inputs: The present inputs.
        change: The change.
        znodes: The znodes of the topics of the group and of the change.
        now_ms: Wall-clock time, milliseconds since 1970.

    Raises:
        ConfigError: A member or a host is not in the group, a topic of the change does not exist, shrinks or has no
            subscriber, or new members have no topics.
    """
    hosts = {slot: info.host for slot, info in inputs.members.items()}
    ids: dict[Slot, tuple[str, ...]] = {slot: (slot, info.member_id) for slot, info in inputs.members.items()}
    gone = find_slots(group, ids | {slot: (slot,) for slot in inputs.away}, hosts, change.removed, change.host)
    topics = change.topics or tuple(sorted(inputs.subscribed))
    members = {
        slot: replace(info, subscription=change.topics, pattern=None) if change.topics and info.subscribes else info
        for slot, info in inputs.members.items()
        if slot not in gone
    }
    _check_added(group, change, topics)
    newest = max(inputs.members.values(), key=lambda info: info.started_at_ms, default=None)
    started_ms, host = (now_ms, "") if newest is None else (max(now_ms, newest.started_at_ms + 1), newest.host)
    host = change.added_on or host
    prefix = make_member_id(group, host, started_ms, 0).rpartition("-")[0]
    for number in range(1, change.added + 1):
        slot = f"{prefix}-new-{number}"
        members[slot] = MemberInfo(member_id=slot, session_timeout_ms=0, subscription=topics, host=host)
    subscribed = {topic for info in members.values() for topic in info.subscription}
    return replace(
        inputs,
        members=members,
        topics=_grown(change, GroupReading(GroupLayout(group), znodes).topics(subscribed), subscribed),
        away={slot: stored for slot, stored in inputs.away.items() if slot not in gone},
        weights=inputs.weights if change.weights is None else change.weights,
    )


def preview_plan(
    group: str,
    before: Inputs,
    after: Inputs,
    allocator: Allocator,
    *,
    racks: Mapping[TopicPartition, str],
    lags: Mapping[TopicPartition, int],
    chroot: str = "",
    notes: Iterable[str] = (),
) -> PlanPreview:
    """
    Return the present plan of a group in ZooKeeper, and the plan that the group's leader would make after a change.

    Args:
        group: The name of the group.
        before: The present inputs.
        after: The inputs after the change.
        allocator: The allocator of the group.
        racks: The racks of partitions' leaders, if the allocator uses them.
        lags: The lags of partitions, if the allocator uses them.
        chroot: The chroot. The length of the chroot counts in the limit of partitions that one member can own.
        notes: Further notes.

    Raises:
        ConfigError: No leader would make a plan, because there is no broker, or no topic exists.
        AllocatorError: The allocator fails, and so does the allocator that replaces it.
    """
    if after.missing:
        raise ConfigError(f"group {group}: no {after.missing} found; its leader would keep the present plan")
    try:
        target = allocate(after, allocator, racks, lags)
    except AllocatorError as error:
        target = fallback_target(after, allocate(after, sticky, racks, lags), str(error))
    target = limit_claims(target, GroupLayout(group), chroot)
    shown = {slot: info.member_id for slot, info in [*before.members.items(), *after.members.items()]}
    dynamic = {stored.member_id for slot, stored in before.assignments.items() if stored and stored.member_id == slot}
    dynamic |= {slot for slot, member_id in shown.items() if slot == member_id}
    new = after.members.keys() - before.members.keys()
    return PlanPreview(
        group=group,
        allocator=target.allocator,
        before=before.stored,
        after=target.allocation,
        names={slot: _new_name(slot) if slot in new else short_name(slot) for slot in dynamic},
        loads=loads_of(_owners(before.stored).keys() | _owners(target.allocation), after.weights),
        has_weights=bool(after.weights),
        unassigned=target.unassigned,
        fallback=target.fallback,
        notes=(*notes, *_notes(before, after, allocator)),
    )


def _notes(before: Inputs, after: Inputs, allocator: Allocator) -> Iterator[str]:
    static = [info.slot for slot, info in before.members.items() if slot not in after.members and info.instance_id]
    if static:
        yield (
            f"{some(sorted(static))}: a static member; its partitions move only when its grace period ends"
            " (static_grace_ms)"
        )
    if after.away:
        yield f"the partitions of {some(sorted(after.away))} are kept for its return"
    if after.weights and allocator is not weighted:
        yield "the allocator may ignore the weights; 'weighted' uses them"


def _new_name(slot: Slot) -> str:
    return "-".join(slot.rsplit("-", 2)[1:])


#: The most members that a previewed change adds.
_MOST_ADDED = 10_000


def _check_added(group: str, change: GroupChange, topics: Iterable[str]) -> None:
    if change.added > _MOST_ADDED:
        raise ConfigError(f"{change.added:,} new members given; expected at most {_MOST_ADDED:,}")
    if change.added and not tuple(topics):
        raise ConfigError(f"group {group} has no member whose topics a new one would have; name its topics")


def _grown(
    change: GroupChange, topics: Mapping[str, tuple[int, ...]], subscribed: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """
    Return the partition numbers of topics after the change.

    Raises:
        ConfigError: A topic of the change has no subscriber, would lose partitions, or does not exist.
    """
    grown = dict(topics)
    for topic, count in change.partitions.items():
        if topic not in subscribed:
            raise ConfigError(
                f"partitions: no member subscribes to topic {topic!r}; name it among the topics of the members"
            )
        if count < len(topics.get(topic, ())):
            raise ConfigError(
                f"partitions: {topic}={count} given; topic {topic!r} has {len(topics[topic])} partitions, and a topic"
                " never loses any"
            )
        grown[topic] = tuple(range(count))
    if missing := sorted(set(change.topics) - grown.keys()):
        raise ConfigError(f"topics: {some(missing)} does not exist; a plan with it also needs its number of partitions")
    return grown


# Groups that brokers coordinate.


def preview_assignment(
    described: DescribedGroup, topics: Mapping[str, tuple[int, ...]], change: GroupChange, assignor: Assignor
) -> PlanPreview:
    """
    Return the present assignment of a group that brokers coordinate, and its next assignment after a change.

    Args:
        described: The coordinator's answer about a group that is stable or empty.
        topics: The partition numbers of all topics.
        change: The change.
        assignor: The assignor of the group.

    Raises:
        ConfigError: As for ``changed_inputs``.
        AllocatorError: The assignor fails.
    """
    group, notes = described.group, list[str]()
    subscriptions: dict[MemberId, AssignorMember] = {}
    before: dict[MemberId, frozenset[TopicPartition]] = {}
    for member in described.members:
        try:
            read = ConsumerSubscription.parse(member.metadata, f"the subscription of {member.member_id}")
            given = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}").partitions
        except ProtocolError as error:
            notes.append(f"{error}; this member gets no partitions")
            continue
        before[member.member_id] = frozenset(TopicPartition(topic, n) for topic, ns in given.items() for n in ns)
        subscriptions[member.member_id] = AssignorMember(read.topics, read.user_data)
    ids = {each.member_id: (each.member_id,) for each in described.members}
    hosts = {each.member_id: each.client_host.removeprefix("/") for each in described.members}
    gone = find_slots(group, ids, hosts, change.removed, change.host)
    wanted = change.topics or tuple(sorted({topic for each in subscriptions.values() for topic in each.topics}))
    _check_added(group, change, wanted)
    after = {
        member: AssignorMember(own, _told(assignor, each, own, before[member]))
        for member, each in subscriptions.items()
        if member not in gone
        for own in [change.topics or each.topics]
    }
    prefix = max(ids, default="member-").rpartition("-")[0]
    new = [f"{prefix}-new-{number}" for number in range(1, change.added + 1)]
    after |= {member: AssignorMember(wanted, assignor.metadata(wanted)) for member in new}
    if new:
        notes.append("ids of new members are random; here they sort behind those of the same client id")
    subscribed = {topic for each in after.values() for topic in each.topics}
    partitions = _grown(change, {topic: topics[topic] for topic in subscribed & topics.keys()}, subscribed)
    outcome = run_assignor(assignor, after, {topic: numbers for topic, numbers in partitions.items() if numbers})
    allocation = {member: frozenset(owned) for member, owned in outcome.assignment.items()}
    return PlanPreview(
        group=group,
        allocator=assignor.name,
        before=before,
        after=allocation,
        names={member: short_name(member) for member in ids} | {member: _new_name(member) for member in new},
        loads=loads_of(_owners(before).keys() | _owners(allocation), {}),
        notes=(*notes, *outcome.findings),
    )


def _told(
    assignor: Assignor, member: AssignorMember, topics: tuple[str, ...], owned: frozenset[TopicPartition]
) -> bytes | None:
    """Return the user data that a member would send in the next rebalance, with the partitions that it owns now."""
    if isinstance(assignor, AllocatorAssignor):
        with suppress(ValueError):
            assignor = assignor.of_member(parse_member(member.user_data).capacity)
    return assignor.metadata(topics, sorted(owned))


# The report and the document.


def preview_report(preview: PlanPreview, *, only_moves: bool) -> Iterator[RenderableType]:
    """
    Yield the report: the number of moves, the notes, the partitions and loads of members, and all partitions.

    With ``only_moves``, the table of members is left out, and only moved partitions are listed.
    """
    moves = preview.moves
    first, last = (sum(each.before is None for each in moves), sum(each.after is None for each in moves))
    allocated = "whose allocator fails" if preview.fallback else f"allocated by {preview.allocator}"
    text = f"group {preview.group}, {allocated}: "
    text += counted(len(moves) - first - last, "partition moves", "partitions move")
    text += f", {first:,} had no owner" if first else ""
    yield Text(text + (f", {last:,} have none afterwards" if last else ""))
    for line in filter(None, (preview.fallback, *_unassigned(preview), *preview.notes)):
        yield Text(f"  {line}")
    if not only_moves:
        yield Text("\nmembers", style="bold")
        yield _balance(preview)
    before, after = _owners(preview.before), _owners(preview.after)
    moved = {each.partition for each in moves}
    columns = (
        Column[TopicPartition]("before", lambda each: preview.name(before.get(each)) or "none"),
        Column[TopicPartition](
            "after", lambda each: f"→ {preview.name(after.get(each)) or 'none'}" if each in moved else ""
        ),
    )
    yield from topic_tables(moved if only_moves else before.keys() | after.keys(), columns)


def _unassigned(preview: PlanPreview) -> Iterator[str]:
    reasons = sorted(set(preview.unassigned.values()))
    for reason in reasons:
        partitions = sorted(each for each, its in preview.unassigned.items() if its == reason)
        yield f"{counted(partitions, 'partition gets', 'partitions get')} no owner, first {partitions[0]}: {reason}"


def _balance(preview: PlanPreview) -> Table:
    def number(load: float) -> str:
        return f"{load:,.6g}" if load < 1_000_000 else f"{load:,.0f}"

    before, after = preview.before, preview.after
    columns = [
        Column[Slot]("member", preview.name),
        Column[Slot]("partitions before", lambda slot: f"{len(before.get(slot, ())):,}", is_right=True),
        Column[Slot]("after", lambda slot: f"{len(after[slot]):,}" if slot in after else "gone", is_right=True),
    ]
    if preview.has_weights:
        columns += [
            Column("load before", lambda slot: number(preview.load(before.get(slot, ()))), is_right=True),
            Column("after", lambda slot: number(preview.load(after.get(slot, ()))), is_right=True),
        ]
    return report_table(columns, preview.slots)


def preview_document(preview: PlanPreview, *, only_moves: bool) -> dict[str, Any]:
    """Return the document of a preview. With ``only_moves``, the document leaves out the partitions of each member."""
    return {
        "group": preview.group,
        "allocator": preview.allocator,
        "fallback": preview.fallback or None,
        "notes": list(preview.notes),
        "members": [
            {
                "id": slot,
                "name": preview.name(slot),
                "gone": slot not in preview.after,
                "partitions_before": len(preview.before.get(slot, ())),
                "partitions_after": len(preview.after.get(slot, ())),
                "load_before": preview.load(preview.before.get(slot, ())),
                "load_after": preview.load(preview.after.get(slot, ())),
                **({} if only_moves else {"after": list(map(str, sorted(preview.after.get(slot, ()))))}),
            }
            for slot in preview.slots
        ],
        "moves": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "before": each.before,
                "after": each.after,
            }
            for each in preview.moves
        ],
        "unassigned": {str(each): preview.unassigned[each] for each in sorted(preview.unassigned)},
    }
