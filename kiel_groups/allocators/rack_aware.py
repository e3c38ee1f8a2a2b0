"""The rack-aware allocator: members own partitions with leaders in the same rack, as far as equal counts allow."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from kiel_groups.allocators.adapter import GroupAllocatorBase
from kiel_groups.allocators.group_spec import Allocated, GroupSpec
from kiel_groups.allocators.sticky import sticky
from kiel_groups.model import Slot, TopicPartition


class RackAware(GroupAllocatorBase):
    """
    The rack-aware allocator; its one instance is :data:`rack_aware`.

    The allocator begins with the result of the sticky allocator. Then a partition moves to a member in the rack of the
    partition's leader. In return, the taker gives a partition whose leader is not in the taker's rack. If the taker has
    fewer partitions than the giver, and all capacities are equal, the taker gives no partition in return. So the
    numbers of partitions stay as equal as with the sticky allocator. Without racks, the result is that of the sticky
    allocator.
    """

    __name__ = "rack_aware"
    uses_racks = True

    def allocate(self, group: GroupSpec) -> Allocated:
        """
        Return partition ids by topic by member.

        The members' numbers of partitions are as equal as with ``sticky``, and more leaders are in the racks of
        members.
        """
        exchange = _Exchange(group, sticky.allocate(group))
        while exchange.improve():
            pass
        return exchange.result()


class _Exchange:
    """The allocation while members exchange partitions."""

    def __init__(self, group: GroupSpec, allocated: Allocated) -> None:
        self._group = group
        self._racks = {slot: member.rack for slot, member in group.members.items()}
        pools = sorted(set(group.pools.values()))
        places = {pool: number for number, pool in enumerate(pools)}
        #: The pool of each topic, by its number, and the members of each pool.
        self._pool_of = {topic: places[pool] for topic, pool in group.pools.items()}
        self._pools = [frozenset(pool) for pool in pools]
        self._owners: dict[TopicPartition, Slot] = {}
        #: The partitions of each member whose leaders are not in the member's rack, by the leader's rack.
        self._misplaced: dict[Slot, dict[str | None, dict[TopicPartition, None]]] = {slot: {} for slot in allocated}
        for member, topics in allocated.items():
            for topic, numbers in topics.items():
                for number in numbers:
                    self._put(TopicPartition(topic, number), member)
        self._counts = {member: sum(map(len, topics.values())) for member, topics in allocated.items()}
        #: The members of each rack that are eligible for the same topics, by ascending numbers of partitions.
        self._near: dict[tuple[int, str], list[tuple[int, Slot]]] = {}
        for pool, place in places.items():
            for member in pool:
                if (rack := self._racks[member]) is not None:
                    self._near.setdefault((place, rack), []).append((self._counts[member], member))
        for near in self._near.values():
            near.sort()

    def _put(self, partition: TopicPartition, member: Slot) -> None:
        rack = self._group.partitions[partition].rack
        if (owner := self._owners.get(partition)) is not None and partition in self._misplaced[owner].get(rack, ()):
            del self._misplaced[owner][rack][partition]
            if not self._misplaced[owner][rack]:
                del self._misplaced[owner][rack]
        self._owners[partition] = member
        if rack is None or rack != self._racks[member]:
            self._misplaced[member].setdefault(rack, {})[partition] = None

    def improve(self) -> bool:
        """Move partitions to members in the racks of their leaders. Return whether any partition has moved."""
        improved = False
        #: Members that could give no partition of a pool to a rack. They cannot give another partition of it, either.
        stuck: set[tuple[Slot, int, str]] = set()
        for giver, by_rack in self._misplaced.items():
            for rack in sorted(rack for rack in by_rack if rack is not None):
                for partition in sorted(by_rack.get(rack, ())):
                    pool = self._pool_of[partition.topic]
                    if (giver, pool, rack) in stuck or self._owners[partition] != giver:
                        continue
                    if self._bring(partition, giver, self._near.get((pool, rack), ())):
                        improved = True
                    else:
                        stuck.add((giver, pool, rack))
        return improved

    def _bring(self, partition: TopicPartition, giver: Slot, near: Sequence[tuple[int, Slot]]) -> bool:
        """
        Move a partition to a member of ``near``, in the rack of the partition's leader. Return False if no member can
        take it.

        A taker with fewer partitions than the giver returns no partition if all capacities are equal. Any other taker
        returns a partition whose leader is not in the taker's rack, preferably a partition whose leader is in the
        giver's rack.
        """
        if near and near[0][0] < self._counts[giver] and not self._group.has_capacities:
            taker = near[0][1]
            self._put(partition, taker)
            self._count({giver: self._counts[giver] - 1, taker: self._counts[taker] + 1})
            return True
        for _, taker in near:
            if self._misplaced[taker] and (returned := self._returned(taker, giver)) is not None:
                self._put(partition, taker)
                self._put(returned, giver)
                return True
        return False

    def _returned(self, taker: Slot, giver: Slot) -> TopicPartition | None:
        """Return a misplaced partition of the taker that the giver may own, or None."""
        by_rack = self._misplaced[taker]
        for rack in sorted(by_rack, key=lambda rack: (rack != self._racks[giver], rack or "")):
            for each in by_rack[rack]:
                if giver in self._pools[self._pool_of[each.topic]]:
                    return each
        return None

    def _count(self, counts: Mapping[Slot, int]) -> None:
        for (pool, rack), near in self._near.items():
            for member, count in counts.items():
                if self._racks[member] == rack and member in self._pools[pool]:
                    near.remove((self._counts[member], member))
                    insort(near, (count, member))
        self._counts |= counts

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Return partition ids by topic by member, in ascending order."""
        owned: dict[Slot, dict[str, list[int]]] = {member: {} for member in self._counts}
        for topic, number in sorted(self._owners):
            owned[self._owners[TopicPartition(topic, number)]].setdefault(topic, []).append(number)
        return owned


rack_aware = RackAware()
