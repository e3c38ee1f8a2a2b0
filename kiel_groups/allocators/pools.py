"""What allocators have in common that keep what can stay: how they are called, who may have what, who has it now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from kiel_groups.model import Slot, TopicPartition

__all__ = ["Keeping", "Pool", "homes_of", "pools_of"]

#: Members that may have the very same topics' partitions, ascending.
Pool: TypeAlias = tuple[Slot, ...]


class Keeping(ABC):
    """An allocator that is shown the whole group; as a plain function it deals out afresh."""

    def __call__(self, members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        """Partition ids by topic by member, with an entry for every member; see ``Allocator``."""
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
        Partition ids by topic by member.

        Args:
            eligible: The members that may have a topic's partitions, 1 or more; topics without any are left out.
            partitions: All there are; those of topics that nobody may have are left out.
            current: What members have now; what is no longer there counts for nothing.
        """


def pools_of(eligible: Mapping[str, Collection[Slot]]) -> dict[str, Pool]:
    """Who may have the partitions of each topic that anybody may have; topics with the same members share a pool."""
    same: dict[Pool, Pool] = {}
    pools: dict[str, Pool] = {}
    for topic, members in eligible.items():
        if members:
            pool = tuple(sorted(members))
            pools[topic] = same.setdefault(pool, pool)
    return pools


def homes_of(
    partitions: Iterable[TopicPartition],
    pools: Mapping[str, Pool],
    current: Mapping[Slot, Collection[TopicPartition]],
) -> dict[TopicPartition, Slot]:
    """
    Who has a partition now and may keep it, in the order of ``partitions``; of several the first by name.

    Args:
        partitions: All there are, of topics that have a pool.
        pools: Who may have the partitions of each topic.
        current: What members have now, those included that are gone.
    """
    holders: dict[TopicPartition, Slot] = {}
    for member in sorted(current.keys() & {member for pool in set(pools.values()) for member in pool}):
        for partition in current[member]:
            holders.setdefault(partition, member)
    allowed = {topic: frozenset(pool) for topic, pool in pools.items()}
    return {
        partition: holder
        for partition in partitions
        if (holder := holders.get(partition)) is not None and holder in allowed[partition.topic]
    }
