"""Run an allocator for members whose subscriptions may differ, and check its result."""

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
    "eligible_members",
    "raised",
    "run_allocator",
]

#: A function of members and ``topic:partition`` strings, both sorted as text; it returns ``{member: {topic: [ids]}}``.
Allocator: TypeAlias = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Collection[int]]]]


@runtime_checkable
class GroupAllocator(Protocol):
    """
    An allocator with this method sees the whole group, not only the names of members and partitions.

    ``eligible`` has the members that may own a topic's partitions, for every topic with a subscriber. ``current`` has
    the partitions that members own now, including members that are gone. The method returns what an ``Allocator``
    returns.
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
    An allocator with this method sees the weights of partitions.

    ``weighing`` gets the loads that an operator has set for the group, which may cover some partitions or none, and
    returns the allocator to use.
    """

    def weighing(self, weights: Mapping[TopicPartition, float]) -> GroupAllocator: ...


class _RoundRobin:
    """Round robin as a ``GroupAllocator``: it balances over all topics at once."""

    def allocate(
        self, eligible: Mapping[str, Collection[Slot]], partitions: Collection[TopicPartition], current: Allocation
    ) -> Mapping[str, Mapping[str, Collection[int]]]:
        return round_robin_by_topic(eligible, map(str, partitions))


_ROUND_ROBIN = _RoundRobin()

#: The reason why a partition of a topic without subscribers has no owner.
NO_SUBSCRIBER = "no member subscribes"


@dataclass(frozen=True, slots=True)
class AllocationOutcome:
    """
    A valid allocation.

    ``allocation`` has an entry for every member. ``unassigned`` maps each partition that no member gets to the reason.
    """

    allocation: Allocation
    unassigned: Mapping[TopicPartition, str]


def allocator_name(allocator: Allocator | None) -> str:
    """Return the name of an allocator, or of the default allocator for None, for logs and errors."""
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
    Assign the partitions to the members that subscribe to their topics.

    A ``GroupAllocator`` is called once. A plain function knows nothing of subscriptions: it is called once for each set
    of topics with the same subscribers, with these members and the partitions of these topics. If all members subscribe
    to the same topics, it is called only once.

    Args:
        allocator: The allocator; None means round robin.
        members: The topics that each member subscribes to.
        partitions: All partitions that exist.
        current: The partitions that members own now, for a ``GroupAllocator``.
        weights: The known loads of partitions, for a ``WeighingAllocator``.

    Raises:
        AllocatorError: The function raised (its error is the cause), or returned an invalid allocation.
    """
    eligible = eligible_members(members, {partition.topic for partition in partitions})
    owned: dict[Slot, frozenset[TopicPartition]] = dict.fromkeys(members, frozenset())
    try:
        group_allocator = _group_allocator(allocator, weights or {})
        for sharers, shared in _shares(eligible, partitions, together=group_allocator is not None).items():
            if group_allocator is None:
                assert allocator is not None
                result = _guarded(partial(allocator, sorted(sharers), sorted(map(str, shared))))
            else:
                result = _guarded(partial(group_allocator.allocate, eligible, sorted(shared), current or {}))
            for member, given in validate(result, sharers, shared, eligible).items():
                owned[member] |= given
    except AllocatorError as error:
        raise AllocatorError(f"allocator {allocator_name(allocator)}: {error}") from error.__cause__
    unassigned = {partition: NO_SUBSCRIBER for partition in partitions if partition.topic not in eligible}
    return AllocationOutcome(owned, unassigned)


def _group_allocator(allocator: Allocator | None, weights: Mapping[TopicPartition, float]) -> GroupAllocator | None:
    """Return the form of the allocator that sees the whole group, or None for a plain function."""
    if allocator is None or allocator is round_robin:
        return _ROUND_ROBIN
    offered: object = allocator
    if isinstance(offered, WeighingAllocator):
        offered = _guarded(partial(offered.weighing, weights))
        if not isinstance(offered, GroupAllocator):
            raise AllocatorError(f"its weighing returned {type(offered).__name__!r}; expected an object with allocate")
    return offered if isinstance(offered, GroupAllocator) else None


def _guarded(allocate: Callable[[], object]) -> object:
    """Call the user's code, and raise AllocatorError in place of any Exception that it raises."""
    try:
        return allocate()
    except Exception as error:
        raise AllocatorError(raised(error)) from error


def raised(error: Exception) -> str:
    """Describe in one line that the user's code raised an error."""
    text = " ".join(str(error).split())
    return f"it raised {type(error).__name__}" + (f": {text}" if text else "")


def eligible_members(members: Mapping[Slot, Collection[str]], topics: set[str]) -> dict[str, frozenset[Slot]]:
    """Return the members that subscribe to each topic. Topics with the same subscribers share one set object."""
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
    """Group partitions by their eligible members or, if ``together``, under the union of all eligible members."""
    everyone = frozenset().union(*set(eligible.values()))
    shares: dict[frozenset[Slot], list[TopicPartition]] = {}
    for partition in partitions:
        sharers = eligible.get(partition.topic)
        if sharers:
            shares.setdefault(everyone if together else sharers, []).append(partition)
    return shares
