"""
Balance a group by load: members' loads are proportional to their capacities, as far as single moves allow.

A pool is the set of members that may get the partitions of a topic.

Rules
  1. At first, a member keeps the partitions that it owns and is subscribed to. If several members own a partition, only
     the first by name can keep it.
  2. Unowned partitions are assigned heaviest first, each to the eligible member with the least load.
  3. While the loads of two members of a pool are too far apart, one partition moves from the member with the most load
     to the member with the least load. Afterwards the taker has less load than the giver had, so the two are more
     equal.
  4. Too far apart means: by more than the load of the pool's heaviest partition, or by more than a twentieth of the
     pool's mean load if a twentieth is less. Measured loads vary a little every day, and such variations must not move
     partitions.
  5. Partitions that move anyway are moved first. The load to move is the giver's excess or the taker's shortage,
     whichever is less, plus half of the tolerated difference. The partition whose load is nearest to this load moves.
  6. A member's load counts in relation to its capacity. If a member has half of the largest capacity, the member's
     load counts double.

So members with the same subscription and capacity differ by at most the load of the heaviest partition.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from kiel_groups.allocators.group_spec import GroupSpec
from kiel_groups.model import Slot, TopicPartition, numbers_by_topic

#: Loads are integers, in parts of the heaviest load: sums of integers do not depend on the order, sums of floats do.
_PARTS = 2**40

#: Capacities are integers, in parts of the largest one.
_FULL = 2**20

#: Members may differ by the mean load divided by this number, or by the heaviest partition if that is less.
_TOLERANCE = 20

#: A plan makes at most this many moves, which takes seconds. The limit is twice the number of moves that spread
#: 100,000 partitions from one member over 1,000 other members.
MOST_MOVES = 200_000

#: Partitions with their loads, by ascending load.
Owned: TypeAlias = list[tuple[int, TopicPartition]]


def balance_by_load(group: GroupSpec, loads: Mapping[TopicPartition, float]) -> dict[Slot, dict[str, list[int]]]:
    """
    Return partition ids by topic by member. Loads are nearly in proportion to the capacities, and few partitions move.

    Args:
        group: The group.
        loads: The load of each partition in ``group.assignable``, in any unit, 0 or more.
    """
    shares = _Shares(group, _in_parts(loads))
    shares.assign_unowned()
    shares.level()
    return shares.result()


def _in_parts(loads: Mapping[TopicPartition, float]) -> dict[TopicPartition, int]:
    """
    Return each load as an integer from 1 to ``_PARTS``, in proportion to the heaviest load.

    A partition without load gets 1, so that such partitions are balanced, too.
    """
    heaviest = max(loads.values(), default=1) or 1
    return {partition: max(1, round(load / heaviest * _PARTS)) for partition, load in loads.items()}


class _Shares:
    """The assignment in progress: the partitions and the load of each member."""

    def __init__(self, group: GroupSpec, loads: Mapping[TopicPartition, int]) -> None:
        pools = group.pools
        self._loads = loads
        #: Small pools come first, since larger pools can still compensate. Below, a pool is named by its number.
        self._pools = sorted(set(pools.values()), key=lambda pool: (len(pool), pool))
        numbers = {pool: number for number, pool in enumerate(self._pools)}
        self._pool_of = {topic: numbers[pool] for topic, pool in pools.items()}
        #: The previous owner of each partition, if that member may keep it.
        self._previous = group.present_owners
        #: The load of each pool's heaviest partition.
        self._heaviest = dict.fromkeys(range(len(self._pools)), 0)
        for partition, load in loads.items():
            pool = self._pool_of[partition.topic]
            self._heaviest[pool] = max(load, self._heaviest[pool])
        self._pools_of: dict[Slot, list[int]] = {}
        for number, pool_members in enumerate(self._pools):
            for member in pool_members:
                self._pools_of.setdefault(member, []).append(number)
        members = sorted(self._pools_of)
        largest = max((group.members[member].capacity for member in members), default=1.0)
        #: The capacity of each member, in parts of the largest capacity. If all capacities are 0, all members count
        #: as equal.
        self._capacities = {
            member: max(1, round(group.members[member].capacity / largest * _FULL)) if largest else _FULL
            for member in members
        }
        #: The total load of each member.
        self._carried = dict.fromkeys(members, 0)
        #: The partitions of each member, by pool: partitions that the member owned before, and partitions that move.
        self._kept: dict[Slot, dict[int, Owned]] = {member: {} for member in members}
        self._moved: dict[Slot, dict[int, Owned]] = {member: {} for member in members}
        for load, partition in sorted((loads[partition], partition) for partition in self._previous):
            member = self._previous[partition]
            self._carried[member] += load
            self._kept[member].setdefault(self._pool_of[partition.topic], []).append((load, partition))

    def assign_unowned(self) -> None:
        """Assign the unowned partitions, heaviest first. An eligible member with the least load gets the partition."""
        unowned: dict[int, Owned] = {}
        for partition, load in self._loads.items():
            if partition not in self._previous:
                unowned.setdefault(self._pool_of[partition.topic], []).append((load, partition))
        for pool in sorted(unowned):
            queue = [(self._level(member), member) for member in self._pools[pool]]
            heapify(queue)
            for load, partition in sorted(unowned[pool], key=lambda each: (-each[0], each[1])):
                member = queue[0][1]
                self._carried[member] += load
                heapreplace(queue, (self._level(member), member))
                self._moved[member].setdefault(pool, []).append((load, partition))
            for member in self._pools[pool]:
                self._moved[member].get(pool, []).sort()

    def _level(self, member: Slot) -> int:
        """
        Return the member's load in relation to its capacity. For half of the largest capacity, the result is twice the
        load.
        """
        return self._carried[member] * _FULL // self._capacities[member]

    def level(self) -> None:
        """Move partitions until no two members of a pool are too far apart, or ``MOST_MOVES`` were made."""
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
        Move partitions between the members of a pool, at most ``most`` times.

        Return the members whose load changed, and the number of moves. If a giver has no partition that is light enough
        for the least loaded member, the giver is not considered again: the least load only grows, so the difference
        only shrinks.
        """
        carried, capacities, members = self._carried, self._capacities, self._pools[pool]
        mean = sum(carried[member] for member in members) * _FULL // sum(capacities[member] for member in members)
        slack = min(self._heaviest[pool], mean // _TOLERANCE)
        givers = [(-self._level(member), member) for member in members]
        takers = [(self._level(member), member) for member in members]
        heapify(givers)
        heapify(takers)
        changed: set[Slot] = set()
        moves = 0
        while givers and moves < most:
            (level, giver), (least, taker) = (-givers[0][0], givers[0][1]), takers[0]
            if level != self._level(giver):
                heappop(givers)  # The entry is outdated: the present load has its own entry.
                continue
            if least != self._level(taker):
                heappop(takers)
                continue
            if level - least <= slack:
                break
            chosen = self._choose(giver, taker, pool, mean, slack)
            if chosen is None and len({capacities[member] for member in members}) > 1:
                # A member of more capacity may have more room, although its load is not the least.
                taker = max(members, key=lambda each: (self._room(each, level), each))
                chosen = self._choose(giver, taker, pool, mean, slack)
            if chosen is None:
                heappop(givers)
                continue
            self._move(chosen, giver, taker)
            moves += 1
            for member in (giver, taker):
                changed.add(member)
                heappush(givers, (-self._level(member), member))
                heappush(takers, (self._level(member), member))
        return changed, moves

    def _room(self, member: Slot, level: int) -> int:
        """
        Return the load that a member lacks to reach this level. The result is negative for a member above the level.
        """
        return level * self._capacities[member] // _FULL - self._carried[member]

    def _choose(self, giver: Slot, taker: Slot, pool: int, mean: int, slack: int) -> tuple[int, TopicPartition] | None:
        """
        Choose a partition that leaves the taker below the giver's present level, or return None if there is none.

        Partitions that move anyway are preferred.
        """
        gap = self._room(taker, self._level(giver))
        # Half the slack beyond the mean is still equal enough, and needs fewer, larger moves.
        aim = min(-self._room(giver, mean), self._room(taker, mean)) + slack // 2
        for owned in (self._moved[giver].get(pool), self._kept[giver].get(pool)):
            if owned:
                above = bisect_left(owned, (aim,))
                near = [each for each in owned[max(0, above - 1) : above + 1] if each[0] < gap]
                if near:
                    return min(near, key=lambda each: (abs(each[0] - aim), each))
        return None

    def _move(self, chosen: tuple[int, TopicPartition], giver: Slot, taker: Slot) -> None:
        load, partition = chosen
        owned = self._list_of(partition, giver)
        del owned[bisect_left(owned, chosen)]
        insort(self._list_of(partition, taker), chosen)
        self._carried[giver] -= load
        self._carried[taker] += load

    def _list_of(self, partition: TopicPartition, member: Slot) -> Owned:
        """Return the list that has the partition: the member's kept or moved partitions in the partition's pool."""
        lists = self._kept if self._previous.get(partition) == member else self._moved
        return lists[member].setdefault(self._pool_of[partition.topic], [])

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Return partition ids by topic by member, in ascending order."""
        owned: dict[Slot, dict[str, list[int]]] = {}
        for member in self._carried:
            pairs = [each for lists in (self._kept, self._moved) for some in lists[member].values() for each in some]
            owned[member] = numbers_by_topic(sorted(partition for _, partition in pairs))
        return owned
