"""
From what a leader has read to what it publishes: pure, and the same for every leader that reads the same.

A plan is compared with the *stored slices*, never with the pointer: whatever an earlier leader left half-done is
finished by this comparison. Its generation is above every one that stands in the pointer or in a slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.group.znodes.contents import DONE, PUBLISHING, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.group.znodes.history import HistoryEntry, record
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.partition_weights import Weights
from kiel_groups.group.znodes.transactions import Check, Create, Delete, Operation, Put, chunks
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.wording import counted

__all__ = [
    "Inputs",
    "Target",
    "Publication",
    "plan",
    "fallback_target",
    "still_fits",
    "describe_change",
    "describe_allocator",
    "NAMED_UNASSIGNED",
]

#: So many unassigned partitions are named in the pointer; the rest are only counted.
NAMED_UNASSIGNED = 100

#: So many causes are told in the pointer; a thousand members that start at once need not all be named.
MOST_CAUSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """
    Everything that a plan is made from, read after a proof of leadership.

    ``members`` holds one member a slot, the newest. ``assignments`` holds None for what cannot be read; ``away`` are
    those of static slots whose member may come back; ``history`` the generations that are kept; ``weights`` the loads
    that somebody measured, none where they are absent, and where they are unreadable those that were read before;
    ``group_state`` is None where it is absent or unreadable, and ``group_state_version`` None where it is absent.
    """

    members: Mapping[Slot, MemberInfo]
    topics: Mapping[str, tuple[int, ...]]
    brokers: int
    group_state: GroupState | None = None
    group_state_version: int | None = None
    assignments: Mapping[Slot, MemberAssignment | None] = field(default_factory=dict)
    away: Mapping[Slot, MemberAssignment] = field(default_factory=dict)
    history: tuple[int, ...] = ()
    tuning: DynamicConfig = field(default_factory=DynamicConfig)
    weights: Weights = field(default_factory=dict)

    @property
    def subscriptions(self) -> dict[Slot, tuple[str, ...]]:
        """
        What every slot is to be given partitions of.

        Nothing where people drain it. A slot whose member is away counts with the topics of what it had.
        """
        wanted = {slot: member.subscription for slot, member in self.members.items()}
        wanted |= {slot: tuple(sorted({p.topic for p in stored.partitions})) for slot, stored in self.away.items()}
        return {slot: () if slot in self.tuning.drained else topics for slot, topics in wanted.items()}

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, partition) for topic, numbers in self.topics.items() for partition in numbers
        )

    @property
    def subscribed(self) -> frozenset[str]:
        """Topics that some member subscribes to, whether they exist or not."""
        return frozenset(topic for member in self.members.values() for topic in member.subscription)

    @property
    def stored(self) -> dict[Slot, frozenset[TopicPartition]]:
        """What the readable slices say."""
        return {slot: stored.partitions for slot, stored in self.assignments.items() if stored is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    What an allocator decided.

    ``unassigned`` maps partitions to the reason why nobody may own them; ``fallback`` says what replaced a failing
    allocator, "" where none failed.
    """

    allocation: Allocation
    unassigned: Mapping[TopicPartition, str] = field(default_factory=dict)
    allocator: str = ""
    fallback: str = ""


@dataclass(frozen=True, slots=True)
class Publication:
    """
    The writes that publish a plan, in order; the next one goes out when the one before was answered.

    ``folders`` are persistent znodes that must exist before the first of them.
    """

    generation: int
    moved: int
    folders: tuple[str, ...]
    writes: tuple[tuple[Operation, ...], ...]


def plan(
    layout: GroupLayout,
    inputs: Inputs,
    target: Target,
    *,
    leader: MemberId,
    candidate: str,
    cause: str,
    now_ms: int,
    took_ms: int = 0,
) -> Publication | None:
    """
    What to write so that the stored slices say what the target says; None when they do already, or nobody was ever in
    this group.

    One transaction where it fits; else the pointer says ``publishing`` from the first one to the last.

    Args:
        layout: The group's paths.
        inputs: What was read.
        target: The allocation to publish, with an entry for every slot.
        leader: The publishing member's id.
        candidate: Path of the leader's election znode: every write proves that it still exists.
        cause: Why there is a new plan, for people.
        now_ms: Wall-clock time, milliseconds since 1970.
        took_ms: How long the first change that led here had to wait.
    """
    if not inputs.members and _is_untouched(inputs):
        return None
    group_state = _pointer(inputs, target, leader, cause, now_ms)
    changes = _changed_slices(layout, inputs, target, group_state.generation)
    if (
        not _matters(changes, layout, inputs)
        and inputs.group_state is not None
        and _says_the_same(inputs.group_state, group_state)
    ):
        return None
    proof = Check(candidate)
    opening: Create | Put
    if inputs.group_state_version is None:
        version = 0
        opening = Create(layout.group_state, group_state.encode())
    else:
        version = inputs.group_state_version + 1
        opening = Put(layout.group_state, group_state.encode(), inputs.group_state_version)
    guard = (proof, Check(layout.group_state, version))
    done = replace(group_state, state=DONE).encode()
    moved = _moved(inputs, target)
    history = tuple(record(layout, _entry(group_state, moved, took_ms), inputs.history))
    batches = list(chunks(changes))
    writes: tuple[tuple[Operation, ...], ...]
    if len(batches) <= 1:
        # Whole or not at all: nobody needs to finish it.
        writes = ((proof, replace(opening, data=done), *(batches[0] if batches else ()), *history),)
    else:
        closing = (proof, Put(layout.group_state, done, version), *history)
        writes = ((proof, opening), *((*guard, *batch) for batch in batches), closing)
    return Publication(generation=group_state.generation, moved=moved, folders=_folders(layout, inputs), writes=writes)


def _is_untouched(inputs: Inputs) -> bool:
    """Whether nothing was ever published: a leader that is no member may wait for the first one."""
    return inputs.group_state_version is None and not inputs.assignments and not inputs.history


def _matters(changes: Iterable[Operation], layout: GroupLayout, inputs: Inputs) -> bool:
    """Whether changes are worth a generation; empty slices of who is gone are cleared away with the next one."""
    empty = {layout.assignment(slot) for slot, owned in inputs.stored.items() if not owned}
    return any(not isinstance(change, Delete) or change.path not in empty for change in changes)


def _says_the_same(stored: GroupState, fresh: GroupState) -> bool:
    """
    Whether the stored pointer is complete and tells an operator what a fresh one would.

    That the allocator fails is news, in which words it fails is not: they may be others at every look.
    """
    told = ("members", "partitions", "unassigned", "allocator")
    same = all(getattr(stored, name) == getattr(fresh, name) for name in told)
    return stored.state == DONE and same and bool(stored.fallback) == bool(fresh.fallback)


def _changed_slices(layout: GroupLayout, inputs: Inputs, target: Target, generation: int) -> list[Operation]:
    """
    The writes of slices that differ from the target: gaining slots first, then losing ones, then slots that are gone.

    Who gains learns of it before who loses, so that its watch on the owner znode stands when that is released.
    """
    ranked: list[tuple[bool, Slot, Operation]] = []
    for slot, wanted in target.allocation.items():
        stored = inputs.assignments.get(slot)
        fresh = _slice(inputs, slot, generation, wanted)
        if stored is not None and replace(stored, generation=generation) == fresh:
            continue
        path, data = layout.assignment(slot), fresh.encode()
        gains = stored is None or bool(wanted - stored.partitions)
        ranked.append((not gains, slot, Put(path, data) if slot in inputs.assignments else Create(path, data)))
    gone = [Delete(layout.assignment(slot)) for slot in sorted(inputs.assignments.keys() - target.allocation.keys())]
    return [write for _, _, write in sorted(ranked, key=lambda row: row[:2])] + gone


def _slice(inputs: Inputs, slot: Slot, generation: int, wanted: frozenset[TopicPartition]) -> MemberAssignment:
    """For the slot's member; one that is away finds its place under the name it had."""
    if slot in inputs.members:
        return MemberAssignment(generation, inputs.members[slot].member_id, wanted)
    return replace(inputs.away[slot], generation=generation, partitions=wanted)


def _entry(group_state: GroupState, moved: int, took_ms: int) -> HistoryEntry:
    return HistoryEntry(
        generation=group_state.generation,
        cause=group_state.cause,
        leader=group_state.leader,
        moved=moved,
        members=group_state.members,
        partitions=group_state.partitions,
        took_ms=took_ms,
        created_at_ms=group_state.created_at_ms,
    )


def _pointer(inputs: Inputs, target: Target, leader: MemberId, cause: str, now_ms: int) -> GroupState:
    """The pointer of the next generation, which is above every stored one."""
    generations = [stored.generation for stored in inputs.assignments.values() if stored is not None]
    if inputs.group_state is not None:
        generations.append(inputs.group_state.generation)
    reasons: dict[str, int] = {}
    for reason in target.unassigned.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return GroupState(
        generation=1 + max([*generations, *inputs.history], default=0),
        state=PUBLISHING,
        leader=leader,
        allocator=target.allocator,
        cause=cause,
        members=sum(1 for member in inputs.members.values() if member.subscription),
        partitions=sum(map(len, target.allocation.values())),
        unassigned=reasons,
        unassigned_names=tuple(str(partition) for partition in sorted(target.unassigned)[:NAMED_UNASSIGNED]),
        fallback=target.fallback,
        created_at_ms=now_ms,
    )


def _moved(inputs: Inputs, target: Target) -> int:
    """How many partitions have another slot than before."""
    before = {partition: slot for slot, owned in inputs.stored.items() for partition in owned}
    return sum(
        1 for slot, owned in target.allocation.items() for partition in owned if before.get(partition, slot) != slot
    )


def _folders(layout: GroupLayout, inputs: Inputs) -> tuple[str, ...]:
    """What old tools look for, what claims and commits are created under, and the past."""
    return (
        layout.history,
        *(
            folder
            for topic in sorted(inputs.topics.keys() & inputs.subscribed)
            for folder in (layout.topic_owners(topic), layout.topic_offsets(topic))
        ),
    )


def fallback_target(inputs: Inputs, fresh: Target, reason: str) -> Target:
    """
    What to publish where the group's allocator failed.

    The last plan, where it still fits. Otherwise ``fresh``, a plan by the sticky allocator: it moves no more than it
    must.
    """
    if still_fits(inputs):
        return replace(fresh, allocation=inputs.stored, fallback=f"last plan kept: {reason}")
    return replace(fresh, fallback=f"sticky used: {reason}")


def still_fits(inputs: Inputs) -> bool:
    """Whether the stored slices are a plan: for exactly these slots, each subscribed to what it has, all of it once."""
    stored, subscriptions = inputs.stored, inputs.subscriptions
    owned = [partition for slot in stored for partition in stored[slot]]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    return (
        stored.keys() == subscriptions.keys()
        and len(owned) == len(set(owned))
        and set(owned) == {partition for partition in inputs.partitions if partition.topic in wanted}
        and all(partition.topic in subscriptions[slot] for slot in stored for partition in stored[slot])
    )


def describe_change(before: Inputs | None, after: Inputs) -> str:
    """
    What happened between two plans, for people: ``join of m1, new partitions of t``; "" where nothing is to be seen.

    Who is about to leave subscribes to nothing first: whoever else is gone died, or lost its session. A new leader has
    seen neither, and compares with the stored slices.

    Args:
        before: What the last plan was made from, None where this leader has not planned yet.
        after: What this plan is made from.
    """
    if before is None and after.group_state is None and not after.assignments:
        return ""
    if before is None:
        # Nobody knows whether those who are gone have left: their leader has gone with them, or before.
        told = [f"leader change, {counted(after.members, 'member', 'members')}"]
        told += [f"join of {slot}" for slot in sorted(after.members.keys() - after.assignments.keys())]
        told += [
            f"leave or expiry of {slot}"
            for slot in sorted(after.assignments.keys() - after.members.keys() - after.away.keys())
        ]
        return _shortened(told)
    told = [*_came_and_went(before, after), *(["config"] if after.tuning != before.tuning else [])]
    # As long as they are not read again they are the very same: no need to compare 100,000 of them.
    if after.weights is not before.weights and after.weights != before.weights:
        told.append("weights")
    for topic in sorted(after.topics.keys() | before.topics.keys()):
        then, now = before.topics.get(topic), after.topics.get(topic)
        if (then is None and topic not in before.subscribed) or (now is None and topic not in after.subscribed):
            continue
        if then is None:
            told.append(f"new topic {topic}")
        elif now is None:
            told.append(f"deleted topic {topic}")
        elif now != then:
            told.append(f"new partitions of {topic}")
    return _shortened(told)


def _shortened(told: list[str]) -> str:
    shown = told[:MOST_CAUSES]
    return ", ".join([*shown, f"and {len(told) - len(shown)} more"] if len(told) > len(shown) else shown)


def describe_allocator(stored: GroupState | None, target: Target) -> str:
    """Whether the allocator has begun to fail since the stored pointer was written, or to work again; "" if neither."""
    failed, fails = stored is not None and bool(stored.fallback), bool(target.fallback)
    if failed == fails:
        return ""
    return "allocator failed" if fails else "allocator recovered"


def _came_and_went(before: Inputs, after: Inputs) -> list[str]:
    then, now = before.members, after.members
    told = [f"{'return' if slot in before.away else 'join'} of {slot}" for slot in sorted(now.keys() - then.keys())]
    for slot in sorted(then.keys() - now.keys()):
        told.append(
            f"{'leave' if not then[slot].subscription else 'absence' if slot in after.away else 'expiry'} of {slot}"
        )
    told += [f"end of grace of {slot}" for slot in sorted(before.away.keys() - after.away.keys() - now.keys())]
    for slot in sorted(now.keys() & then.keys()):
        if now[slot].member_id != then[slot].member_id:
            told.append(f"return of {slot}")
        elif set(now[slot].subscription) != set(then[slot].subscription):
            told.append(f"{'subscription' if now[slot].subscription else 'leave'} of {slot}")
    return told
