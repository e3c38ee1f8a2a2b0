"""Describe a group for allocators: its members and its partitions, with their known properties."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

from kiel_groups.model import Slot, TopicPartition

#: What an allocator returns: partition ids by topic by member. Members without partitions may be missing.
Allocated: TypeAlias = Mapping[str, Mapping[str, Collection[int]]]

#: A function of members and ``topic:partition`` strings, both sorted as text; it returns ``{member: {topic: [ids]}}``.
Allocator: TypeAlias = Callable[[list[str], list[str]], Allocated]

#: Members that are eligible for the same topics, ascending.
Pool: TypeAlias = tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """
    The properties of a member that an allocator may use.

    ``topics`` are the topics that the member subscribes to. ``capacity`` is the member's share of the load in relation
    to the capacities of other members, 0 or more. ``rack`` is the rack where the member runs, or None if the rack is
    not known. ``owned`` has the partitions that the member owns now.
    """

    topics: frozenset[str]
    capacity: float = 1.0
    rack: str | None = None
    owned: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """
    The properties of a partition that an allocator may use. An unknown property is None.

    ``weight`` is the partition's load in any unit. ``lag`` is the number of messages after the committed offset.
    ``rack`` is the rack of the partition's leader.
    """

    weight: float | None = None
    lag: int | None = None
    rack: str | None = None


_UNKNOWN = PartitionSpec()


@dataclass(frozen=True)
class GroupSpec:
    """
    A group whose partitions an allocator divides: the members by slot, and all partitions that exist.

    A slot is a member's instance id, or the member id if there is no instance id. An allocator must not change this
    object. Objects with equal members and partitions are equal.
    """

    members: Mapping[Slot, MemberSpec]
    partitions: Mapping[TopicPartition, PartitionSpec] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        subscriptions: Mapping[Slot, Collection[str]],
        partitions: Iterable[TopicPartition],
        owned: Mapping[Slot, Collection[TopicPartition]] = MappingProxyType({}),
        weights: Mapping[TopicPartition, float] = MappingProxyType({}),
    ) -> GroupSpec:
        """
        Return a group without capacities, racks and lags.

        Args:
            subscriptions: The topics that each member subscribes to.
            partitions: All partitions that exist.
            owned: The partitions that members own now. The group leaves out members that are not in ``subscriptions``.
            weights: The known loads of partitions.
        """
        members = {
            slot: MemberSpec(frozenset(topics), owned=frozenset(owned.get(slot, ())))
            for slot, topics in subscriptions.items()
        }
        known = {partition: PartitionSpec(weight) for partition, weight in weights.items()} if weights else {}
        return cls(members, {partition: known.get(partition, _UNKNOWN) for partition in partitions})

    @cached_property
    def eligible(self) -> Mapping[str, frozenset[Slot]]:
        """The members that subscribe to each topic with partitions. Topics with the same subscribers share one set."""
        # Members with the same topics are examined together: a thousand members may subscribe to a thousand topics.
        alike: dict[frozenset[str], list[Slot]] = {}
        for slot, member in self.members.items():
            alike.setdefault(member.topics, []).append(slot)
        existing = {partition.topic for partition in self.partitions}
        subscribed: dict[str, list[frozenset[str]]] = {}
        for topics in alike:
            for topic in topics & existing:
                subscribed.setdefault(topic, []).append(topics)
        shared = {topic: tuple(found) for topic, found in subscribed.items()}
        sets = {found: frozenset(slot for topics in found for slot in alike[topics]) for found in set(shared.values())}
        return {topic: sets[found] for topic, found in shared.items()}

    @cached_property
    def pools(self) -> Mapping[str, Pool]:
        """
        The members that may get a topic's partitions, for each topic with subscribers. Equal pools are one object.

        A member without capacity is chosen only if no other member subscribes to the topic.
        """
        able: dict[frozenset[Slot], Pool] = {}
        for slots in set(self.eligible.values()):
            some = [slot for slot in slots if self.members[slot].capacity > 0]
            able[slots] = tuple(sorted(some or slots))
        same: dict[Pool, Pool] = {}
        return {topic: same.setdefault(able[slots], able[slots]) for topic, slots in self.eligible.items()}

    @cached_property
    def assignable(self) -> list[TopicPartition]:
        """The partitions of topics with subscribers, sorted."""
        return sorted(partition for partition in self.partitions if partition.topic in self.eligible)

    @cached_property
    def present_owners(self) -> Mapping[TopicPartition, Slot]:
        """
        The present owner of each partition, if that member may keep the partition. The order is that of ``assignable``.

        If several members own a partition, only the first by name may keep it.
        """
        owners: dict[TopicPartition, Slot] = {}
        for slot in sorted({slot for pool in set(self.pools.values()) for slot in pool}):
            for partition in self.members[slot].owned:
                owners.setdefault(partition, slot)
        allowed = {topic: frozenset(pool) for topic, pool in self.pools.items()}
        return {
            partition: owner
            for partition in self.assignable
            if (owner := owners.get(partition)) is not None and owner in allowed[partition.topic]
        }

    @property
    def has_capacities(self) -> bool:
        """Whether at least two members have different capacities. Members of capacity 0 do not count."""
        return len({member.capacity for member in self.members.values() if member.capacity > 0}) > 1


@runtime_checkable
class GroupAllocator(Protocol):
    """
    An allocator with this method sees the whole group, not only the names of members and partitions.

    The leader reads the lags of partitions only if the allocator's attribute ``uses_lag`` is true, and the racks of
    partitions only if its attribute ``uses_racks`` is true.
    """

    def allocate(self, group: GroupSpec) -> Allocated: ...
