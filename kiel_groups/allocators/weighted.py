"""The allocators that balance loads: the weights that operators give to partitions, or the lags of partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median

from kiel_groups.allocators.adapter import GroupAllocatorBase
from kiel_groups.allocators.by_load import balance_by_load
from kiel_groups.allocators.group_spec import Allocated, GroupSpec
from kiel_groups.allocators.sticky import sticky
from kiel_groups.model import TopicPartition

#: The least excess of a member's backlog over the mean that moves partitions, in messages.
LEAST_EXCESS = 10_000


class Weighted(GroupAllocatorBase):
    """
    The weighted allocator; its one instance is :data:`weighted`.

    Members get loads in proportion to their capacities, and few partitions move; see ``by_load``. A partition of
    unknown load counts as the median of the known loads. If all partitions weigh the same, the result is that of the
    sticky allocator.
    """

    __name__ = "weighted"

    def allocate(self, group: GroupSpec) -> Allocated:
        """
        Return partition ids by topic by member. Loads are nearly in proportion to the capacities, and few partitions
        move.
        """
        weights = {each: spec.weight for each, spec in group.partitions.items() if spec.weight is not None}
        loads = loads_of(group.assignable, weights)
        return balance_by_load(group, loads) if len(set(loads.values())) > 1 else sticky.allocate(group)


class LagAware(GroupAllocatorBase):
    """
    The lag-aware allocator; its one instance is :data:`lag_aware`.

    The allocator spreads the backlog over the members. A member's backlog is the sum of the lags of its partitions,
    divided by its capacity. While no member's backlog is far above the mean, the result is that of the sticky
    allocator, so that small lags move no partition. Far above means: by more than half of the mean, and by more than
    10,000 messages. Partitions whose present owners have nearly equal backlogs stay where they are, also if the sticky
    allocator would move some of them to make the members' numbers of partitions equal. A partition of unknown lag
    counts as the median of the known lags.
    """

    __name__ = "lag_aware"
    uses_lag = True

    def allocate(self, group: GroupSpec) -> Allocated:
        """
        Return partition ids by topic by member. If a backlog is far above the mean, all backlogs become nearly equal.
        """
        lags = {each: float(spec.lag) for each, spec in group.partitions.items() if spec.lag is not None}
        result = sticky.allocate(group)
        if not lags:
            return result
        loads = loads_of(group.assignable, lags)
        backlogs = {
            member: sum(loads[TopicPartition(topic, number)] for topic, numbers in topics.items() for number in numbers)
            / max(group.members[member].capacity, 1e-9)
            for member, topics in result.items()
        }
        mean = sum(backlogs.values()) / max(1, len(backlogs))
        is_small = max(backlogs.values(), default=0) - mean <= max(LEAST_EXCESS, mean / 2)
        if is_small and _keeps_owners(group, result):
            return result
        # A partition without backlog causes some work, too.
        spread = balance_by_load(group, {each: load + LEAST_EXCESS / 10 for each, load in loads.items()})
        # If sticky's result were always preferred, it would undo a plan that has just spread a backlog.
        return result if is_small and not _keeps_owners(group, spread) else spread


def _keeps_owners(group: GroupSpec, result: Allocated) -> bool:
    """Return whether no partition that has an owner moves."""
    new = {TopicPartition(topic, each): slot for slot, its in result.items() for topic in its for each in its[topic]}
    return all(new[partition] == owner for partition, owner in group.present_owners.items() if partition in new)


def loads_of(
    partitions: Collection[TopicPartition], weights: Mapping[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """Return the load of each partition: its weight, or the median of the known weights, or 1 without known weights."""
    known = {partition: weights[partition] for partition in partitions if partition in weights}
    usual = median(known.values()) if known else 1
    return {partition: known.get(partition, usual) for partition in partitions}


weighted = Weighted()
lag_aware = LagAware()
