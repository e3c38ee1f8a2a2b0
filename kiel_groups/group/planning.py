"""
From what a leader has read to what it publishes: pure, and the same for every leader that reads the same.

A plan is compared with the *stored slices*, never with the pointer: whatever an earlier leader left half-done is
finished by this comparison. Its generation is above every one that stands in the pointer or in a slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.transactions import Check, Create, Delete, Operation, Put, chunks
from kiel_groups.group.znodes import DONE, PUBLISHING, MemberInfo, Pointer, Slice
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition

__all__ = ["Inputs", "Target", "Publication", "plan", "fallback_target", "describe_change", "NAMED_UNASSIGNED"]

#: So many unassigned partitions are named in the pointer; the rest are only counted.
NAMED_UNASSIGNED = 100

#: So many causes are told in the pointer; a thousand members that start at once need not all be named.
MOST_CAUSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """
    Everything that a plan is made from, read after a proof of leadership.

    ``slices`` holds None for a slice that cannot be read; ``pointer`` is None where it is absent or unreadable, and
    ``pointer_version`` None where it is absent.
    """

    members: Mapping[MemberId, MemberInfo]
    topics: Mapping[str, tuple[int, ...]]
    brokers: int
    pointer: Pointer | None = None
    pointer_version: int | None = None
    slices: Mapping[Slot, Slice | None] = field(default_factory=dict)

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
        return {slot: stored.partitions for slot, stored in self.slices.items() if stored is not None}


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
    layout: GroupLayout, inputs: Inputs, target: Target, *, leader: MemberId, candidate: str, cause: str, now_ms: int
) -> Publication | None:
    """
    What to write so that the stored slices say what the target says; None when they do already.

    Args:
        layout: The group's paths.
        inputs: What was read.
        target: The allocation to publish, with an entry for every member.
        leader: The publishing member's id.
        candidate: Path of the leader's election znode: every write proves that it still exists.
        cause: Why there is a new plan, for people.
        now_ms: Wall-clock time, milliseconds since 1970.
    """
    pointer = _pointer(inputs, target, leader, cause, now_ms)
    changes = _changed_slices(layout, inputs, target, pointer.generation)
    if not changes and inputs.pointer is not None and _says_the_same(inputs.pointer, pointer):
        return None
    proof = Check(candidate)
    opening: Operation
    if inputs.pointer_version is None:
        version = 0
        opening = Create(layout.pointer, pointer.encode())
    else:
        version = inputs.pointer_version + 1
        opening = Put(layout.pointer, pointer.encode(), inputs.pointer_version)
    guard = (proof, Check(layout.pointer, version))
    batches = [(*guard, *batch) for batch in chunks(changes)]
    closing = (proof, Put(layout.pointer, replace(pointer, state=DONE).encode(), version))
    return Publication(
        generation=pointer.generation,
        moved=_moved(inputs, target),
        folders=_folders(layout, inputs),
        writes=((proof, opening), *batches, closing),
    )


def _says_the_same(stored: Pointer, fresh: Pointer) -> bool:
    """Whether the stored pointer is complete and tells an operator what a fresh one would."""
    told = ("members", "partitions", "unassigned", "allocator", "fallback")
    return stored.state == DONE and all(getattr(stored, name) == getattr(fresh, name) for name in told)


def _changed_slices(layout: GroupLayout, inputs: Inputs, target: Target, generation: int) -> list[Operation]:
    """
    The writes of slices that differ from the target: gaining slots first, then losing ones, then slots that are gone.

    Who gains learns of it before who loses, so that its watch on the owner znode stands when that is released.
    """
    ranked: list[tuple[bool, Slot, Operation]] = []
    for slot, wanted in target.allocation.items():
        stored = inputs.slices.get(slot)
        if stored is not None and stored.partitions == wanted and stored.member_id == slot:
            continue
        path, data = layout.slice(slot), Slice(generation, slot, wanted).encode()
        gains = stored is None or bool(wanted - stored.partitions)
        ranked.append((not gains, slot, Put(path, data) if slot in inputs.slices else Create(path, data)))
    gone = [Delete(layout.slice(slot)) for slot in sorted(inputs.slices.keys() - target.allocation.keys())]
    return [write for _, _, write in sorted(ranked, key=lambda row: row[:2])] + gone


def _pointer(inputs: Inputs, target: Target, leader: MemberId, cause: str, now_ms: int) -> Pointer:
    """The pointer of the next generation, which is above every stored one."""
    generations = [stored.generation for stored in inputs.slices.values() if stored is not None]
    if inputs.pointer is not None:
        generations.append(inputs.pointer.generation)
    reasons: dict[str, int] = {}
    for reason in target.unassigned.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    return Pointer(
        generation=1 + max(generations, default=0),
        state=PUBLISHING,
        leader=leader,
        allocator=target.allocator,
        cause=cause,
        members=len(inputs.members),
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
    """What old tools look for, and what claims and commits are created under."""
    return tuple(
        folder
        for topic in sorted(inputs.topics.keys() & inputs.subscribed)
        for folder in (layout.topic_owners(topic), layout.topic_offsets(topic))
    )


def fallback_target(inputs: Inputs, fresh: Target, reason: str) -> Target:
    """
    What to publish where the group's allocator failed.

    The last plan, where it still fits: exactly the living members, each subscribed to what it has, every assignable
    partition once. Otherwise ``fresh``, a plan by the sticky allocator: it moves no more than it must.
    """
    stored = inputs.stored
    owned = [partition for slot in stored for partition in stored[slot]]
    fits = (
        stored.keys() == inputs.members.keys()
        and len(owned) == len(set(owned))
        and set(owned) == inputs.partitions - fresh.unassigned.keys()
        and all(partition.topic in inputs.members[slot].subscription for slot in stored for partition in stored[slot])
    )
    if fits:
        return replace(fresh, allocation=stored, fallback=f"last plan kept: {reason}")
    return replace(fresh, fallback=f"sticky used: {reason}")


def describe_change(before: Inputs | None, after: Inputs) -> str:
    """
    What happened between two plans, for people: ``join of m1, new partitions of t``; "" where nothing is to be seen.

    Args:
        before: What the last plan was made from, None where this leader has not planned yet.
        after: What this plan is made from.
    """
    if before is None:
        return "" if after.pointer is None else f"leader change, {len(after.members)} members"
    told = [f"join of {name}" for name in sorted(after.members.keys() - before.members.keys())]
    told += [f"leave of {name}" for name in sorted(before.members.keys() - after.members.keys())]
    told += [
        f"subscription of {name}"
        for name in sorted(after.members.keys() & before.members.keys())
        if set(after.members[name].subscription) != set(before.members[name].subscription)
    ]
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
    shown = told[:MOST_CAUSES]
    return ", ".join([*shown, f"and {len(told) - len(shown)} more"] if len(told) > len(shown) else shown)
