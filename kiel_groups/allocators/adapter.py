"""Run an allocator for members whose subscriptions may differ, and check the allocator's result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kiel_groups.allocators.group_spec import Allocated, Allocator, GroupAllocator, GroupSpec
from kiel_groups.allocators.round_robin import round_robin, round_robin_by_topic
from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, Slot, TopicPartition

_SHAPE = "{member: {topic: [partition ids]}}"
_NAMED = 5


def validate(
    result: object,
    members: Collection[Slot],
    partitions: Collection[TopicPartition],
    eligible: Mapping[str, Collection[Slot]],
) -> Allocation:
    """
    Check an allocator's result, and return the partitions of each member as a set.

    Args:
        result: Any value; the valid shape is ``{member: {topic: [partition ids]}}``, where members may be missing.
        members: All members that exist.
        partitions: The partitions to assign.
        eligible: The members subscribed to each topic. Partitions of topics without subscribers must not be assigned.

    Returns:
        A set of partitions for every member. The set may be empty. Each partition with an eligible member is in exactly
        one of the sets.

    Raises:
        AllocatorError: The result is invalid: a wrong type, an unknown member, topic or partition, a member that does
            not subscribe to the topic, a partition assigned twice or not at all.
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
    """
    Check the types and the member names of a result. Yield the member, topic and partition ids of each entry.

    Raises:
        AllocatorError: A type is wrong, or a member is unknown.
    """
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
    """Describe the type of a value that has the wrong type, for an error."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _names(values: Collection[object]) -> str:
    names = sorted(map(str, values))
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


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


def run_allocator(allocator: Allocator | None, group: GroupSpec) -> AllocationOutcome:
    """
    Assign a group's partitions to the members that subscribe to their topics.

    This function calls a ``GroupAllocator`` once. A plain function gets no subscriptions: there is one call for each
    set of topics with the same subscribers, with these subscribers and the partitions of these topics. So if all
    members subscribe to the same topics, there is one call.

    Args:
        allocator: The allocator, or None for round robin.
        group: The members with their subscriptions, and the partitions.

    Raises:
        AllocatorError: The allocator raised an error, which is the cause of the AllocatorError, or returned an invalid
            allocation.
    """
    eligible = group.eligible
    offered: object = allocator
    owned: dict[Slot, frozenset[TopicPartition]] = dict.fromkeys(group.members, frozenset())
    try:
        if allocator is None or allocator is round_robin:
            results = _whole(group, partial(round_robin_by_topic, eligible, group.assignable))
        elif isinstance(offered, GroupAllocator):
            results = _whole(group, partial(offered.allocate, group))
        else:
            results = _shares(group, allocator)
        for sharers, shared, result in results:
            for member, given in validate(result, sharers, shared, eligible).items():
                owned[member] |= given
    except AllocatorError as error:
        raise AllocatorError(f"allocator {allocator_name(allocator)}: {error}") from error.__cause__
    unassigned = {partition: NO_SUBSCRIBER for partition in group.partitions if partition.topic not in eligible}
    return AllocationOutcome(owned, unassigned)


#: Members, the partitions to divide among these members, and the result of the allocator.
_Shared: TypeAlias = tuple[frozenset[Slot], Collection[TopicPartition], object]


def _whole(group: GroupSpec, allocate: Callable[[], object]) -> Iterator[_Shared]:
    """
    Call an allocator that sees the whole group, and yield the result. If no partition is to be assigned, yield nothing.
    """
    if group.assignable:
        yield frozenset().union(*set(group.eligible.values())), group.assignable, _guarded(allocate)


def _shares(group: GroupSpec, allocator: Allocator) -> Iterator[_Shared]:
    """Call a plain function for each set of topics with the same subscribers, and yield the results."""
    shares: dict[frozenset[Slot], list[TopicPartition]] = {}
    for partition in group.partitions:
        if sharers := group.eligible.get(partition.topic):
            shares.setdefault(sharers, []).append(partition)
    for sharers, shared in shares.items():
        yield sharers, shared, _guarded(partial(allocator, sorted(sharers), sorted(map(str, shared))))


def _guarded(allocate: Callable[[], object]) -> object:
    """Call the user's code. If it raises an Exception or SystemExit, raise an AllocatorError with this cause."""
    try:
        return allocate()
    except (Exception, SystemExit) as error:
        raise AllocatorError(raised(error)) from error


def raised(error: BaseException) -> str:
    """Return a line that names the error that the user's code raised, and the text of the error."""
    text = " ".join(str(error).split())
    return f"it raised {type(error).__name__}" + (f": {text}" if text else "")


class GroupAllocatorBase(ABC):
    """
    The base class of allocators that see the whole group.

    An object of such a class may also be called as a plain function. Then all members count as subscribers of all
    topics, and as owners of no partition.
    """

    def __call__(self, members: list[str], partitions: list[str]) -> dict[str, Mapping[str, Collection[int]]]:
        """Return partition ids by topic by member, with an entry for every member; see ``Allocator``."""
        parsed = [TopicPartition.parse(text) for text in partitions]
        topics = {partition.topic for partition in parsed}
        return {member: {} for member in members} | dict(
            self.allocate(GroupSpec.of(dict.fromkeys(members, topics), parsed))
        )

    @abstractmethod
    def allocate(self, group: GroupSpec) -> Allocated:
        """Return partition ids by topic by member. Partitions of topics without subscribers stay unassigned."""
