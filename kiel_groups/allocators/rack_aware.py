"""The rack-aware allocator: members read from leaders in their own rack, as far as equal numbers allow."""

from __future__ import annotations

from collections.abc import Iterator

from kiel_groups.allocators.adapter import GroupAllocatorBase
from kiel_groups.allocators.group_spec import Allocated, GroupSpec, Pool
from kiel_groups.allocators.sticky import sticky
from kiel_groups.model import Slot, TopicPartition

__all__ = ["RackAware", "rack_aware"]


class RackAware(GroupAllocatorBase):
    """
    The rack-aware allocator; its one instance is :data:`rack_aware`.

    It begins with the result of the sticky allocator. Then members exchange partitions, one for one, while an exchange
    brings one more partition to the rack of its leader. So the numbers of partitions are those of the sticky allocator.
    If all members subscribe to the same topics, no allocation with such numbers has more partitions in their racks.
    Without racks, the result is that of the sticky allocator.
    """

    __name__ = "rack_aware"

    def allocate(self, group: GroupSpec) -> Allocated:
        """Return partition ids by topic by member, as equal as the sticky allocator's, with more leaders nearby."""
        exchange = _Exchange(group, sticky.allocate(group))
        while exchange.improve():
            pass
        return exchange.result()


class _Exchange:
    """The allocation while members exchange partitions."""

    def __init__(self, group: GroupSpec, allocated: Allocated) -> None:
        self._group = group
        self._racks = {slot: member.rack for slot, member in group.members.items()}
        self._owners: dict[TopicPartition, Slot] = {}
        self._counts: dict[Slot, int] = dict.fromkeys(allocated, 0)
        #: The partitions of each member that are not in its rack.
        self._misplaced: dict[Slot, dict[TopicPartition, None]] = {member: {} for member in allocated}
        for member, topics in allocated.items():
            for topic, numbers in topics.items():
                for number in numbers:
                    self._give(TopicPartition(topic, number), member)
        members: dict[tuple[Pool, str], list[Slot]] = {}
        for pool in set(group.pools.values()):
            for member in pool:
                if (rack := self._racks[member]) is not None:
                    members.setdefault((pool, rack), []).append(member)
        #: The members of each rack that are eligible for the same topics, ascending.
        self._near = members

    def _give(self, partition: TopicPartition, member: Slot) -> None:
        if (owner := self._owners.get(partition)) is not None:
            self._counts[owner] -= 1
            self._misplaced[owner].pop(partition, None)
        self._owners[partition] = member
        self._counts[member] += 1
        if not self._fits(partition, member):
            self._misplaced[member][partition] = None

    def _fits(self, partition: TopicPartition, member: Slot) -> bool:
        rack = self._group.partitions[partition].rack
        return rack is not None and rack == self._racks[member]

    def improve(self) -> bool:
        """Bring partitions to their racks; return whether there may be more to bring."""
        improved = False
        #: Members that could give no partition of a pool to a rack: another partition of both cannot move, either.
        stuck: set[tuple[Slot, Pool, str]] = set()
        for partition in sorted(each for misplaced in self._misplaced.values() for each in misplaced):
            rack = self._group.partitions[partition].rack
            giver, pool = self._owners[partition], self._group.pools[partition.topic]
            if rack is None or self._fits(partition, giver) or (giver, pool, rack) in stuck:
                continue
            if (found := next(self._takers(giver, pool, rack), None)) is None:
                stuck.add((giver, pool, rack))
                continue
            taker, returned = found
            self._give(partition, taker)
            if returned is not None:
                self._give(returned, giver)
            improved = True
        return improved

    def _takers(self, giver: Slot, pool: Pool, rack: str) -> Iterator[tuple[Slot, TopicPartition | None]]:
        """
        Yield members of the rack that can take a partition of the pool, each with the partition that it gives back.

        A member that has a partition less need not give one back. Other members give back one that is not in their
        rack, preferably one that is in the giver's.
        """
        near = self._near.get((pool, rack), ())
        if not self._group.has_capacities:
            yield from ((taker, None) for taker in near if self._counts[taker] < self._counts[giver])
        for taker in near:
            back = [each for each in self._misplaced[taker] if giver in self._group.pools[each.topic]]
            if back:
                yield taker, min(back, key=lambda each: (not self._fits(each, giver), each))

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Return partition ids by topic by member, in ascending order."""
        owned: dict[Slot, dict[str, list[int]]] = {member: {} for member in self._counts}
        for topic, number in sorted(self._owners):
            owned[self._owners[TopicPartition(topic, number)]].setdefault(topic, []).append(number)
        return owned


rack_aware = RackAware()
