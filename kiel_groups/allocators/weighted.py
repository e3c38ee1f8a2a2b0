"""
Weighted: members end up with equal load as far as single moves bring that about, and few partitions move.

Rules
  1. What a member has, is subscribed to, and shares with nobody, it keeps to begin with.
  2. What nobody has goes, heaviest first, to whom of those that may have it has least load.
  3. While the load of two members that may have the same is too far apart, one partition goes from who has most to who
     has least: one that is lighter than the difference, so that these two are more equal than before.
  4. Too far apart is more than the heaviest partition that they may have, or a twentieth of their mean load if that is
     less. Measured loads differ a little every day, and nothing is to move for that.
  5. What is moved already is moved first. Of several the one goes whose load is nearest to what one has too much, or
     the other one too little.
  6. A partition of unknown load weighs as much as the median of the known ones.

So members that subscribe to the same are within the load of the heaviest partition of each other. Where all partitions
weigh the same, or no load is known, this is the sticky allocator.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from statistics import median
from types import MappingProxyType
from typing import TypeAlias

from kiel_groups.allocators.pools import Keeping, Pool, homes_of, pools_of
from kiel_groups.allocators.sticky import sticky
from kiel_groups.model import Slot, TopicPartition

__all__ = ["Weighted", "loads_of", "weighted"]

#: Loads are counted in parts of the heaviest one: sums of whole numbers are the same in any order.
_PARTS = 2**40

#: The part of the mean load by which members may differ at least.
_TOLERANCE = 20

#: So many are passed on at most, which takes seconds: twice what 1,000 members take from one that had 100,000.
MOST_MOVES = 200_000

#: Partitions by load, ascending.
Held: TypeAlias = list[tuple[int, TopicPartition]]


class Weighted(Keeping):
    """
    The weighted allocator; :data:`weighted` is the one that knows of no loads yet.

    Args:
        weights: The load of partitions, in any unit, 0 or more; those of partitions that there are not mean nothing.
    """

    __name__ = "weighted"

    def __init__(self, weights: Mapping[TopicPartition, float] = MappingProxyType({})) -> None:
        self._weights = weights

    def weighing(self, weights: Mapping[TopicPartition, float]) -> Weighted:
        """The same with these loads; see ``WeighingAllocator``."""
        return Weighted(weights)

    def allocate(
        self,
        eligible: Mapping[str, Collection[Slot]],
        partitions: Collection[TopicPartition],
        current: Mapping[Slot, Collection[TopicPartition]],
    ) -> dict[Slot, dict[str, list[int]]]:
        """Partition ids by topic by member, of nearly equal load, with few moves; see ``Keeping``."""
        wanted = sorted(partition for partition in partitions if eligible.get(partition.topic))
        loads = _in_parts(loads_of(wanted, self._weights))
        if len(set(loads.values())) < 2:
            return sticky.allocate(eligible, partitions, current)
        shares = _Shares(pools_of(eligible), loads, current)
        shares.deal_out()
        shares.level()
        return shares.result()


def loads_of(
    partitions: Collection[TopicPartition], weights: Mapping[TopicPartition, float]
) -> dict[TopicPartition, float]:
    """What each of these partitions counts for: its weight, or the median of those that are known; 1 without any."""
    known = {partition: weights[partition] for partition in partitions if partition in weights}
    usual = median(known.values()) if known else 1
    return {partition: known.get(partition, usual) for partition in partitions}


def _in_parts(loads: Mapping[TopicPartition, float]) -> dict[TopicPartition, int]:
    """In parts of the heaviest; at least one, so that those of no load are shared out as well."""
    heaviest = max(loads.values(), default=1) or 1
    return {partition: max(1, round(load / heaviest * _PARTS)) for partition, load in loads.items()}


class _Shares:
    """Who has what while it is being shared out."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        loads: Mapping[TopicPartition, int],
        current: Mapping[Slot, Collection[TopicPartition]],
    ) -> None:
        self._loads = loads
        #: What few may have comes first: others can make up for it. From here on a pool is its number.
        self._pools = sorted(set(pools.values()), key=lambda pool: (len(pool), pool))
        numbers = {pool: number for number, pool in enumerate(self._pools)}
        self._pool_of = {topic: numbers[pool] for topic, pool in pools.items()}
        #: Who had a partition that it may keep.
        self._homes = homes_of(loads, pools, current)
        #: Of each pool, what its heaviest partition weighs.
        self._heaviest = dict.fromkeys(range(len(self._pools)), 0)
        for partition, load in loads.items():
            pool = self._pool_of[partition.topic]
            self._heaviest[pool] = max(load, self._heaviest[pool])
        self._pools_of: dict[Slot, list[int]] = {}
        for number, pool_members in enumerate(self._pools):
            for member in pool_members:
                self._pools_of.setdefault(member, []).append(number)
        members = sorted(self._pools_of)
        #: What each carries in all.
        self._carried = dict.fromkeys(members, 0)
        #: What each has of a pool's topics: what it had, and what moves.
        self._kept: dict[Slot, dict[int, Held]] = {member: {} for member in members}
        self._moved: dict[Slot, dict[int, Held]] = {member: {} for member in members}
        for load, partition in sorted((loads[partition], partition) for partition in self._homes):
            member = self._homes[partition]
            self._carried[member] += load
            self._kept[member].setdefault(self._pool_of[partition.topic], []).append((load, partition))

    def deal_out(self) -> None:
        """Give what nobody has, heaviest first, to the member with least load."""
        unowned: dict[int, Held] = {}
        for partition, load in self._loads.items():
            if partition not in self._homes:
                unowned.setdefault(self._pool_of[partition.topic], []).append((load, partition))
        for pool in sorted(unowned):
            queue = [(self._carried[member], member) for member in self._pools[pool]]
            heapify(queue)
            for load, partition in sorted(unowned[pool], key=lambda each: (-each[0], each[1])):
                carried, member = queue[0]
                heapreplace(queue, (carried + load, member))
                self._moved[member].setdefault(pool, []).append((load, partition))
            self._carried.update((member, carried) for carried, member in queue)
            for member in self._pools[pool]:
                self._moved[member].get(pool, []).sort()

    def level(self) -> None:
        """Pass partitions on until no two members that may have the same are too far apart."""
        left = MOST_MOVES
        waiting = set(self._heaviest)
        while waiting and left > 0:
            for pool in sorted(waiting):
                changed, moves = self._level_within(pool, left)
                left -= moves
                waiting |= {other for member in changed for other in self._pools_of[member]}
                waiting.discard(pool)

    def _level_within(self, pool: int, most: int) -> tuple[set[Slot], int]:
        """
        Straight moves among members that may have the same; returns whose load changed, and how many moves there were.

        Who has nothing light enough for the one with least load never will: the least load only grows.
        """
        carried, members = self._carried, self._pools[pool]
        mean = sum(carried[member] for member in members) // len(members)
        slack = min(self._heaviest[pool], mean // _TOLERANCE)
        givers = [(-carried[member], member) for member in members]
        takers = [(carried[member], member) for member in members]
        heapify(givers)
        heapify(takers)
        changed: set[Slot] = set()
        moves = 0
        while givers and moves < most:
            (most_carried, giver), (least_carried, taker) = givers[0], takers[0]
            if -most_carried != carried[giver]:
                heappop(givers)  # It had so much earlier; what it has now is noted, too.
                continue
            if least_carried != carried[taker]:
                heappop(takers)
                continue
            gap = carried[giver] - carried[taker]
            if gap <= slack:
                break
            # Half the slack beyond the mean is even enough, and takes fewer and larger ones.
            aim = min(carried[giver] - mean, mean - carried[taker]) + slack // 2
            chosen = self._choose(giver, pool, gap, aim)
            if chosen is None:
                heappop(givers)
                continue
            self._move(chosen, giver, taker)
            moves += 1
            for member in (giver, taker):
                changed.add(member)
                heappush(givers, (-carried[member], member))
                heappush(takers, (carried[member], member))
        return changed, moves

    def _choose(self, giver: Slot, pool: int, gap: int, aim: int) -> tuple[int, TopicPartition] | None:
        """What to give: lighter than the gap, and as near to the aim as there is; best what moves anyway."""
        for held in (self._moved[giver].get(pool), self._kept[giver].get(pool)):
            if held:
                above = bisect_left(held, (aim,))
                near = [each for each in held[max(0, above - 1) : above + 1] if each[0] < gap]
                if near:
                    return min(near, key=lambda each: (abs(each[0] - aim), each))
        return None

    def _move(self, chosen: tuple[int, TopicPartition], giver: Slot, taker: Slot) -> None:
        load, partition = chosen
        held = self._place(partition, giver)
        del held[bisect_left(held, chosen)]
        insort(self._place(partition, taker), chosen)
        self._carried[giver] -= load
        self._carried[taker] += load

    def _place(self, partition: TopicPartition, member: Slot) -> Held:
        """Where a member has a partition, or is to have it."""
        place = self._kept if self._homes.get(partition) == member else self._moved
        return place[member].setdefault(self._pool_of[partition.topic], [])

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Ascending everywhere."""
        owned: dict[Slot, dict[str, list[int]]] = {}
        for member in self._carried:
            topics: dict[str, list[int]] = {}
            held = [each for place in (self._kept, self._moved) for some in place[member].values() for each in some]
            for topic, number in sorted(partition for _, partition in held):
                topics.setdefault(topic, []).append(number)
            owned[member] = topics
        return owned


#: Equal load, where somebody has said what partitions weigh.
weighted = Weighted()
