"""Check that an allocator's result is a valid allocation, or say in one line why it is not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, Slot, TopicPartition

__all__ = ["kind_of", "validate"]

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
