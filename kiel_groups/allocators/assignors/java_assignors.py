"""
The assignors ``range`` and ``roundrobin`` of Kafka's Java consumer.

Members in other languages share a group with ours, and any of them may lead it. For members without an instance id and
without a rack, the results are those of ``RangeAssignor`` and ``RoundRobinAssignor`` in kafka-clients 0.9.0.1 and 3.9.1
(``tests/integration/test_java_assignors.py``), except for the order of topics within a member's assignment, which in
Java is that of a hash table. An assignment groups partitions by topic, so no member sees that order.

Java leaders of later releases sort static members first, by their instance ids, and prefer partitions with a replica in
the member's rack. A leader of ours joins with an older request, whose answer has no instance ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle

from kiel_groups.allocators.assignors.consumer_assignors import Assignor, AssignorMember
from kiel_groups.allocators.contiguous_ranges import ranges
from kiel_groups.model import TopicPartition

__all__ = ["range_assignor", "roundrobin_assignor"]


class _RangeAssignor:
    """
    Java's ``RangeAssignor``: each topic is divided into ranges on its own, among its subscribers sorted by member id.
    """

    name = "range"

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return None: this assignor has no user data."""

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member; see ``Assignor``."""
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions, key=_java_order)}
        subscribers: dict[str, list[str]] = {}
        for member in assignment:
            # A topic that is listed twice counts twice, as in Java.
            for topic in subscriptions[member].topics:
                subscribers.setdefault(topic, []).append(member)
        for topic in sorted(subscribers.keys() & partitions.keys()):
            for member, numbers in ranges(subscribers[topic], sorted(partitions[topic])):
                assignment[member] += [TopicPartition(topic, number) for number in numbers]
        return assignment


class _RoundRobinAssignor:
    """
    Java's ``RoundRobinAssignor``: members sorted by id take turns over all partitions of all topics.

    A member that does not subscribe to the topic of the next partition misses its turn.
    """

    name = "roundrobin"

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        """Return None: this assignor has no user data."""

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member; see ``Assignor``."""
        assignment: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions, key=_java_order)}
        subscribed = {member: frozenset(subscriptions[member].topics) for member in assignment}
        turns = cycle(assignment)
        for topic in sorted(frozenset().union(*subscribed.values()) & partitions.keys()):
            for number in sorted(partitions[topic]):
                member = next(member for member in turns if topic in subscribed[member])
                assignment[member].append(TopicPartition(topic, number))
        return assignment


def _java_order(text: str) -> bytes:
    """Return a key that sorts as Java does: by UTF-16 code units. A client id, and so a member id, may be any text."""
    return text.encode("utf-16-be", "surrogatepass")


range_assignor: Assignor = _RangeAssignor()
roundrobin_assignor: Assignor = _RoundRobinAssignor()
