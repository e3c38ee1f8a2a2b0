"""Runs an allocator for members whose subscriptions may differ, and checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

from kiel_groups.allocators.round_robin import round_robin, round_robin_by_topic
from kiel_groups.allocators.validation import validate
from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, Slot, TopicPartition

__all__ = [
    "Allocator",
    "AllocationOutcome",
    "GroupAllocator",
    "NO_SUBSCRIBER",
    "WeighingAllocator",
    "allocator_name",
    "run_allocator",
]

#: Members and "topic:partition" strings, both sorted as text, to ``{member: {topic: [ids]}}``.
Allocator: TypeAlias = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Collection[int]]]]


@runtime_checkable
class GroupAllocator(Protocol):
    """
    What an allocator may offer besides being called: it is then shown the whole group instead of names alone.

    ``eligible`` holds the members that may have a topic's partitions, for every topic that anybody subscribes to, and
    ``current`` what members have now, those included that are gone. Returns what an ``Allocator`` returns.
    """

    def allocate(
        self,
        eligible: Mapping[str, Collection[Slot]],
        partitions: Collection[TopicPartition],
        current: Allocation,
    ) -> Mapping[str, Mapping[str, Collection[int]]]: ...


@runtime_checkable
class WeighingAllocator(Protocol):
    """
    What an allocator may offer besides that: it is shown what partitions weigh.

    ``weighing`` is given the loads that somebody has set for the group, of some partitions or of none, and returns the
    allocator to ask.
    """

    def weighing(self, weights: Mapping[TopicPartition, float]) -> GroupAllocator: ...


class _RoundRobin:
    """Round robin balances over all topics at once."""

    def allocate(
        self, eligible: Mapping[str, Collection[Slot]], partitions: Collection[TopicPartition], current: Allocation
    ) -> Mapping[str, Mapping[str, Collection[int]]]:
        return round_robin_by_topic(eligible, map(str, partitions))


_ROUND_ROBIN = _RoundRobin()

#: Why a partition of a topic that nobody wants has no owner.
NO_SUBSCRIBER = "no member subscribes"


@dataclass(frozen=True, slots=True)
class AllocationOutcome:
    """
    A valid allocation.

    ``allocation`` has an entry for every member; ``unassigned`` maps every other partition to the reason why nobody
    owns it.
    """

    allocation: Allocation
    unassigned: Mapping[TopicPartition, str]


def allocator_name(allocator: Allocator | None) -> str:
    """What to call an allocator in logs and errors; None is the default one."""
    named = round_robin if allocator is None else allocator
    return str(getattr(named, "__name__", None) or type(named).__name__)


def run_allocator(
    allocator: Allocator | None,
    members: Mapping[Slot, Collection[str]],
    partitions: Collection[TopicPartition],
    current: Allocation | None = None,
    weights: Mapping[TopicPartition, float] | None = None,
) -> AllocationOutcome:
    """
    Hand the partitions out to the members that subscribe to their topics.

    A ``GroupAllocator`` is asked once. A plain function knows nothing of subscriptions: it is called once for each set
    of topics that the same members subscribe to (once in all, where all subscribe to the same), with those members and
    those partitions.

    Args:
        allocator: The function; None is round robin.
        members: The topics that each member subscribes to.
        partitions: All partitions there are.
        current: What members have now, for allocators that ask.
        weights: The load of partitions, as far as known, for allocators that ask.

    Raises:
        AllocatorError: The function raised (its error is the cause), or what it returned is no valid allocation.
    """
    eligible = _eligible(members, {partition.topic for partition in partitions})
    owned: dict[Slot, frozenset[TopicPartition]] = dict.fromkeys(members, frozenset())
    try:
        whole = _seeing_the_group(allocator, weights or {})
        for sharers, shared in _shares(eligible, partitions, together=whole is not None).items():
            if whole is None:
                assert allocator is not None
                result = _guarded(partial(allocator, sorted(sharers), sorted(map(str, shared))))
            else:
                result = _guarded(partial(whole.allocate, eligible, sorted(shared), current or {}))
            for member, given in validate(result, sharers, shared, eligible).items():
                owned[member] |= given
    except AllocatorError as error:
        raise AllocatorError(f"allocator {allocator_name(allocator)}: {error}") from error.__cause__
    unassigned = {partition: NO_SUBSCRIBER for partition in partitions if partition.topic not in eligible}
    return AllocationOutcome(owned, unassigned)


def _seeing_the_group(allocator: Allocator | None, weights: Mapping[TopicPartition, float]) -> GroupAllocator | None:
    if allocator is None or allocator is round_robin:
        return _ROUND_ROBIN
    asked: object = allocator
    if isinstance(asked, WeighingAllocator):
        asked = _guarded(partial(asked.weighing, weights))
        if not isinstance(asked, GroupAllocator):
            raise AllocatorError(f"its weighing returned {type(asked).__name__!r}; expected an object with allocate")
    return asked if isinstance(asked, GroupAllocator) else None


def _guarded(allocate: Callable[[], object]) -> object:
    try:
        return allocate()
    except Exception as error:  # the user's code may raise anything
        told = " ".join(str(error).split())
        raise AllocatorError(f"it raised {type(error).__name__}" + (f": {told}" if told else "")) from error


def _eligible(members: Mapping[Slot, Collection[str]], topics: set[str]) -> dict[str, frozenset[Slot]]:
    """The members subscribed to each topic that has any; topics with the same members have the very same set."""
    subscribers: dict[str, list[Slot]] = {}
    for member, subscription in members.items():
        for topic in topics.intersection(subscription):
            subscribers.setdefault(topic, []).append(member)
    same: dict[frozenset[Slot], frozenset[Slot]] = {}
    found = ((topic, frozenset(names)) for topic, names in subscribers.items())
    return {topic: same.setdefault(names, names) for topic, names in found}


def _shares(
    eligible: Mapping[str, frozenset[Slot]], partitions: Iterable[TopicPartition], *, together: bool
) -> dict[frozenset[Slot], list[TopicPartition]]:
    """Partitions by the members that may have them; ``together`` in one share of all these members."""
    everyone = frozenset().union(*set(eligible.values()))
    shares: dict[frozenset[Slot], list[TopicPartition]] = {}
    for partition in partitions:
        sharers = eligible.get(partition.topic)
        if sharers:
            shares.setdefault(everyone if together else sharers, []).append(partition)
    return shares
