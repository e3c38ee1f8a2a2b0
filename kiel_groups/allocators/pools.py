"""The common part of allocators that keep partitions in place: their interface, eligible members, previous owners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from kiel_groups.model import Slot, TopicPartition

__all__ = ["GroupAllocatorBase", "Pool", "pools_of", "previous_owners"]

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
