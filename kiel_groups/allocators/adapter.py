"""Run an allocator for members whose subscriptions may differ, and check its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable

from kiel_groups.allocators.round_robin import round_robin, round_robin_by_topic
from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, Slot, TopicPartition

__all__ = [
    "kind_of",
    "validate",
    "Allocator",
    "AllocationOutcome",
    "GroupAllocator",
    "NO_SUBSCRIBER",
    "WeighingAllocator",
    "allocator_name",
    "eligible_members",
    "raised",
    "run_allocator",
    "GroupAllocatorBase",
    "Pool",
    "pools_of",
    "previous_owners",
]


_SHAPE = "{member: {topic: [partition ids]}}"
_NAMED = 5


def validate(
    result: object,
    members: Collection[Slot],
    partitions: Collection[TopicPartition],
    eligible: Mapping[str, Collection[Slot]],
) -> Allocation:
    """
    Check an allocator's result and convert it to the shape that the rest of the package uses.

    Args:
        result: Any value; the valid shape is ``{member: {topic: [partition ids]}}``, where members may be missing.
        members: All members that exist.
        partitions: The partitions to assign.
        eligible: The members subscribed to each topic. Partitions of topics without subscribers must not be assigned.

    Returns:
        A set of partitions for every member, which may be empty. Each partition with an eligible member is in exactly
        one of the sets.

    Raises:
        AllocatorError: The result is invalid: a wrong type, an unknown member, topic or partition, a member that is not
            subscribed, a partition assigned twice or not at all.
    """
    left: dict[str, dict[int, TopicPartition]] = {}
    for partition in partitions:
        left.setdefault(partition.topic, {})[partition.partition] = partition
    owned: dict[Slot, list[TopicPartition]] = {member: [] for member in members}
    for member, topic, numbers in _entries(result, owned.keys()):
        its = left.get(topic, {})
        if numbers and member not in eligible.get(topic, ()):
            raise _not_subscribed(member, topic, exists=topic in left)
        for number in numbers:
            # isinstance accepts a bool as an int, and as a key 1.0 equals 1. Neither is a partition id.
            found = its.pop(number, None) if type(number) is int else None
            if found is None:
                raise _not_to_give(member, topic, number, owned, partitions)
            owned[member].append(found)
    missing = [found for topic, its in left.items() if eligible.get(topic) for found in its.values()]
    if missing:
        raise AllocatorError(f"{len(missing)} of {len(partitions)} partitions were left out: {_names(missing)}")
    return {member: frozenset(given) for member, given in owned.items()}


def _entries(result: object, members: Collection[Slot]) -> Iterator[tuple[Slot, str, Collection[object]]]:
    """Yield member, topic and partition ids for each topic of each member, with their types checked."""
    if not isinstance(result, Mapping):
        raise AllocatorError(f"it returned {kind_of(result)}; expected {_SHAPE}")
    for member, topics in result.items():
        if member not in members:
            raise AllocatorError(f"{member!r} is not among the {len(members)} members: {_names(members)}")
        if not isinstance(topics, Mapping):
            raise AllocatorError(f"{member!r} was given {kind_of(topics)}; expected {_SHAPE}")
        for topic, numbers in topics.items():
            if not isinstance(topic, str):
                raise AllocatorError(f"{member!r} was given topic {topic!r}, {kind_of(topic)}; expected a string")
            if not isinstance(numbers, (list, tuple, range, set, frozenset)):
                raise AllocatorError(f"{member!r} was given {kind_of(numbers)} for topic {topic!r}; expected {_SHAPE}")
            yield member, topic, numbers


def _not_subscribed(member: Slot, topic: str, *, exists: bool) -> AllocatorError:
    why = "does not subscribe to it" if exists else "there are none to hand out"
    return AllocatorError(f"{member!r} was given partitions of topic {topic!r}, but {why}")


def _not_to_give(
    member: Slot,
    topic: str,
    number: object,
    owned: Mapping[Slot, Collection[TopicPartition]],
    partitions: Collection[TopicPartition],
) -> AllocatorError:
    if type(number) is not int:
        return AllocatorError(f"{member!r} was given {number!r} of topic {topic!r}; partition ids are ints")
    partition = TopicPartition(topic, number)
    for other, given in owned.items():
        if partition in given:
            return AllocatorError(f"{partition} was handed out twice, to {other!r} and to {member!r}")
    count = sum(1 for known in partitions if known.topic == topic)
    return AllocatorError(f"{member!r} was given {partition}, which is not one of the {count} partitions of that topic")


def kind_of(value: object) -> str:
    """Describe the type of a value that has the wrong one."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _names(values: Collection[object]) -> str:
    names = sorted(map(str, values))
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


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


#: Members that are eligible for the same topics, ascending.
Pool: TypeAlias = tuple[Slot, ...]


class GroupAllocatorBase(ABC):
    """An allocator that sees the whole group; called as a plain function, it starts from an empty allocation."""

    def __call__(self, members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        """Return partition ids by topic by member, with an entry for every member; see ``Allocator``."""
        parsed = [TopicPartition.parse(text) for text in partitions]
        eligible = {partition.topic: frozenset(members) for partition in parsed if members}
        return {member: {} for member in members} | self.allocate(eligible, parsed, {})

    @abstractmethod
    def allocate(
        self,
        eligible: Mapping[str, Collection[Slot]],
        partitions: Collection[TopicPartition],
        current: Mapping[Slot, Collection[TopicPartition]],
    ) -> dict[Slot, dict[str, list[int]]]:
        """
        Return partition ids by topic by member.

        Args:
            eligible: The members that may own a topic's partitions. Topics without eligible members are ignored.
            partitions: All partitions. Partitions of topics without eligible members stay unassigned.
            current: The partitions that members own now. Members and partitions that no longer exist are ignored.
        """


def pools_of(eligible: Mapping[str, Collection[Slot]]) -> dict[str, Pool]:
    """Return the pool of each topic that has eligible members. Topics with the same members share one object."""
    same: dict[Pool, Pool] = {}
    pools: dict[str, Pool] = {}
    for topic, members in eligible.items():
        if members:
            pool = tuple(sorted(members))
            pools[topic] = same.setdefault(pool, pool)
    return pools


def previous_owners(
    partitions: Iterable[TopicPartition],
    pools: Mapping[str, Pool],
    current: Mapping[Slot, Collection[TopicPartition]],
) -> dict[TopicPartition, Slot]:
    """
    Return the owner of each partition that its current owner may keep, in the order of ``partitions``.

    If several members own a partition, only the first by name may keep it.

    Args:
        partitions: All partitions of topics that have a pool.
        pools: The members eligible for each topic.
        current: The partitions that members own now, including members that are gone.
    """
    owners: dict[TopicPartition, Slot] = {}
    for member in sorted(current.keys() & {member for pool in set(pools.values()) for member in pool}):
        for partition in current[member]:
            owners.setdefault(partition, member)
    allowed = {topic: frozenset(pool) for topic, pool in pools.items()}
    return {
        partition: owner
        for partition in partitions
        if (owner := owners.get(partition)) is not None and owner in allowed[partition.topic]
    }
