"""What allocators that keep what can stay begin with: who may have what, and who has it now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from kiel_groups.model import Slot, TopicPartition

__all__ = ["Pool", "homes_of", "pools_of"]

#: Members that may have the very same topics' partitions, ascending.
Pool: TypeAlias = tuple[Slot, ...]


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
