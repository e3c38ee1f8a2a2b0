"""The default allocator, round robin: members take turns, so that their numbers of partitions differ by at most one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import cycle

from kiel_groups.model import TopicPartition, numbers_by_topic


def round_robin(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
    """
    Assign the partitions to the members in turn. Both are sorted as text.

    Args:
        members: The names of the members, in any order.
        partitions: The partitions as ``topic:partition``, in any order.

    Returns:
        Partition ids by topic by member, with an entry for every member. Numbers of partitions differ by one at most.
    """
    names = sorted(members)
    owned: dict[str, dict[str, list[int]]] = {member: {} for member in names}
    for partition, member in zip(sorted(partitions), cycle(names), strict=False):
        topic, _, digits = partition.rpartition(":")
        owned[member].setdefault(topic, []).append(int(digits))
    return owned


def round_robin_by_topic(
    eligible: Mapping[str, Collection[str]], partitions: Iterable[TopicPartition]
) -> dict[str, dict[str, list[int]]]:
    """
    Assign partitions to members that may subscribe to different topics.

    Each partition goes to the eligible member with the fewest partitions so far. The function assigns topics with few
    eligible members first, because the other topics can still even out the numbers of partitions. If all members
    subscribe to the same topics, the result is that of :func:`round_robin`.

    Args:
        eligible: The members that may own a topic's partitions, 1 or more, for every topic in ``partitions``.
        partitions: The partitions.

    Returns:
        Partition ids by topic by member, with an entry for every member.
    """
    topics = numbers_by_topic(partitions)
    shared: dict[frozenset[str], list[str]] = {}
    # The order is that of the partitions as text. Sorting the texts would take longer.
    for topic in sorted(topics, key=lambda topic: f"{topic}:"):
        shared.setdefault(frozenset(eligible[topic]), []).append(topic)
    owned: dict[str, dict[str, list[int]]] = {member: {} for members in shared for member in members}
    counts = dict.fromkeys(owned, 0)
    for members in sorted(shared, key=lambda members: (len(members), sorted(members))):
        turns = _turns(counts, members)
        for topic in shared[members]:
            for number, member in zip(sorted(topics[topic], key=str), turns, strict=False):
                its = owned[member]
                # setdefault() would make a list for each of a hundred thousand partitions.
                if topic in its:
                    its[topic].append(number)
                else:
                    its[topic] = [number]
    return owned


def _turns(counts: dict[str, int], members: Iterable[str]) -> Iterator[str]:
    """
    Yield, without end, the member with the fewest partitions, and add the partition to the member's number in
    ``counts``.

    Among members with equal numbers, the first by name comes first.
    """
    later = sorted(members, key=lambda member: (counts[member], member), reverse=True)
    fewest: list[str] = []
    while True:
        count = counts[fewest[0] if fewest else later[-1]]
        while later and counts[later[-1]] == count:
            fewest.append(later.pop())
        fewest.sort()
        for member in fewest:
            counts[member] = count + 1
            yield member
