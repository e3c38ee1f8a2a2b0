"""
The range allocator: a member owns partitions with consecutive numbers of each topic.

Rules
  1. Each topic is divided on its own, among the members that subscribe to it.
  2. Of n partitions in the order of their numbers, each of m members gets n // m partitions. The first n % m members
     get one more partition.
  3. The members have the order of Kafka 0.8, which sorts the names of consumer threads. A member counts as one thread,
     with the name ``<member>-0``. So ``a-`` comes before ``a``.

The result is that of ``kafka.consumer.RangeAssignor`` of Kafka 0.8.2, the default of its high-level consumer, for
consumers with one thread each. Of each topic, the first members may have one partition more than the other members. So
with many topics, the first members own noticeably more partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def range_allocator(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    """
    Assign each topic's partitions to the members in ranges of consecutive numbers.

    Args:
        members: The names of the members, in any order.
        partitions: The partitions as ``topic:partition``, in any order.

    Returns:
        Partition ids by topic by member, with an entry for every member. For each topic, the members' numbers of
        partitions differ by at most one.
    """
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topic, _, digits = partition.rpartition(":")
        topics.setdefault(topic, []).append(int(digits))
    owned: dict[str, dict[str, list[int]]] = {member: {} for member in sorted(members, key="{}-0".format)}
    for topic in sorted(topics) if members else ():
        for member, numbers in ranges(list(owned), sorted(topics[topic])):
            if numbers:
                owned[member][topic] = list(numbers)
    return owned


#: The name in settings and in the group state. A function called ``range`` would hide Python's own.
range_allocator.__name__ = "range"


def ranges(members: Sequence[str], partitions: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """
    Divide one topic's partitions into a range for each member, in the given orders.

    Args:
        members: The members that subscribe to the topic, 1 or more.
        partitions: The numbers of the topic's partitions.

    Returns:
        Each member with its range. A range may be empty.
    """
    least, larger = divmod(len(partitions), len(members))
    end = 0
    for index, member in enumerate(members):
        start, end = end, end + least + (index < larger)
        yield member, partitions[start:end]
