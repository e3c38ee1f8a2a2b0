"""
The sticky allocator: members own equal numbers of partitions, as far as possible, and few partitions move.

Rules
  1. At first, a member keeps the partitions that it owns and is subscribed to. If several members own a partition, only
     the first by name can keep it.
  2. Each unowned partition is assigned to the eligible member with the fewest partitions.
  3. While a member owns at least two partitions more than a member that could take one, one partition moves: directly
     if both members are eligible for it, or along a shortest chain of members, each of which receives one partition and
     passes one on. When no such move is left, no allocation is more equal (a semi-matching without a cost-reducing path
     is optimal).
  4. Partitions that move anyway are moved first. Among several topics, the giver passes on a partition of the topic of
     which it has most. This spreads topics as far as possible without further moves.

If all members subscribe to the same topics, no allocation that is as equal moves fewer partitions. Chains give no such
guarantee. They are needed only if subscriptions overlap in part, and there ``fewest_moves`` undoes unnecessary moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from kiel_groups.allocators.fewest_moves import fewest_moves
from kiel_groups.allocators.pools import GroupAllocatorBase, Pool, pools_of, previous_owners
from kiel_groups.model import Slot, TopicPartition

__all__ = ["Sticky", "sticky"]

#: The giver, the topic of the partition, and the taker.
Link: TypeAlias = tuple[Slot, str, Slot]


class Sticky(GroupAllocatorBase):
    """The sticky allocator; its one instance is :data:`sticky`."""

    __name__ = "sticky"

    def allocate(
        self,
        eligible: Mapping[str, Collection[Slot]],
        partitions: Collection[TopicPartition],
        current: Mapping[Slot, Collection[TopicPartition]],
    ) -> dict[Slot, dict[str, list[int]]]:
        """Return partition ids by topic by member, as equal as possible, with the fewest moves."""
        shares = _Shares(eligible)
        unowned = shares.keep(sorted(p for p in partitions if eligible.get(p.topic)), current)
        shares.assign_unowned(unowned)
        shares.level()
        shares.minimize_moves()
        return shares.result()


class _Shares:
    """The partitions of each member while they are being assigned."""

    def __init__(self, eligible: Mapping[str, Collection[Slot]]) -> None:
        self._pools = pools_of(eligible)
        members = sorted({member for pool in set(self._pools.values()) for member in pool})
        self._counts = dict.fromkeys(members, 0)
        #: The previous owner of each partition, if that member may keep it.
        self._previous: dict[TopicPartition, Slot] = {}
        #: Partition numbers by topic by member: those owned before, and those that move. The last moves first.
        self._kept: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}
        self._new: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}

    def keep(
        self, partitions: Sequence[TopicPartition], current: Mapping[Slot, Collection[TopicPartition]]
    ) -> list[TopicPartition]:
        """Assign partitions to previous owners that may keep them. Return the other partitions, in order."""
        self._previous = previous_owners(partitions, self._pools, current)
        for partition, owner in self._previous.items():
            self._counts[owner] += 1
            self._kept[owner].setdefault(partition.topic, []).append(partition.partition)
        return [partition for partition in partitions if partition not in self._previous]

    def assign_unowned(self, partitions: Sequence[TopicPartition]) -> None:
        """
        Assign each partition to the eligible member with the fewest partitions.

        Small pools come first, since larger pools can compensate.
        """
        shared: dict[Pool, list[TopicPartition]] = {}
        for partition in partitions:
            shared.setdefault(self._pools[partition.topic], []).append(partition)
        for pool in sorted(shared, key=lambda pool: (len(pool), pool)):
            queue = [(self._counts[member], member) for member in pool]
            heapify(queue)
            for topic, number in shared[pool]:
                count, member = queue[0]
                heapreplace(queue, (count + 1, member))
                self._new[member].setdefault(topic, []).append(number)
            self._counts.update((member, count) for count, member in queue)

    def level(self) -> None:
        """Move partitions until no member owns two partitions more than a member that could take one."""
        topics: dict[Pool, set[str]] = {}
        for topic, pool in self._pools.items():
            topics.setdefault(pool, set()).add(topic)
        for pool in sorted(topics, key=lambda pool: (len(pool), pool)):
            self._level_within(pool, topics[pool])
        # A direct move that chains make possible in another pool is found as a chain of one link.
        while len(topics) > 1 and (chain := self._find_chain()):
            for giver, topic, taker in chain:
                self._move(giver, topic, taker)

    def minimize_moves(self) -> None:
        """Undo unnecessary moves; in a single pool there are none."""
        if len(set(self._pools.values())) < 2:
            return
        owners = {
            TopicPartition(topic, number): member
            for owned in (self._kept, self._new)
            for member, topics in owned.items()
            for topic, numbers in topics.items()
            for number in numbers
        }
        self._kept = {member: {} for member in self._counts}
        self._new = {member: {} for member in self._counts}
        for partition, member in fewest_moves(owners, self._previous, self._pools).items():
            owned = self._kept if self._previous.get(partition) == member else self._new
            owned[member].setdefault(partition.topic, []).append(partition.partition)

    def _level_within(self, pool: Pool, topics: Set[str]) -> None:
        """
        Make direct moves between the members of a pool.

        The member with most partitions gives to the member with fewest, so no giver becomes a taker, or the reverse.
        """
        queues = {member: self._queue(member, topics) for member in pool}
        givers = [(-self._counts[member], member) for member in pool if queues[member]]
        takers = [(self._counts[member], member) for member in pool]
        heapify(givers)
        heapify(takers)
        while givers and -givers[0][0] - takers[0][0] >= 2:
            (most, giver), (least, taker) = givers[0], takers[0]
            _, _, given, topic = heappop(queues[giver])
            self._move(giver, topic, taker)
            if number := self._number(giver, topic):
                heappush(queues[giver], (not self._new[giver].get(topic), -number, given + 1, topic))
            if queues[giver]:
                heapreplace(givers, (most + 1, giver))
            else:
                heappop(givers)
            heapreplace(takers, (least + 1, taker))

    def _queue(self, member: Slot, topics: Set[str]) -> list[tuple[bool, int, int, str]]:
        """
        Rank the topics of which a member may give partitions.

        Topics with partitions that move anyway come first, then topics of which the member owns most, then topics of
        which it has given fewest.
        """
        owned = (self._kept[member].keys() | self._new[member].keys()) & topics
        numbers = ((topic, self._number(member, topic)) for topic in owned)
        return sorted((not self._new[member].get(topic), -number, 0, topic) for topic, number in numbers if number)

    def _number(self, member: Slot, topic: str) -> int:
        return len(self._kept[member].get(topic, ())) + len(self._new[member].get(topic, ()))

    def _move(self, giver: Slot, topic: str, taker: Slot) -> None:
        source = self._new[giver] if self._new[giver].get(topic) else self._kept[giver]
        self._new[taker].setdefault(topic, []).append(source[topic].pop())
        self._counts[giver] -= 1
        self._counts[taker] += 1

    def _find_chain(self) -> list[Link]:
        """Return a shortest chain from a member to one that owns at least two partitions less, or [] if none exists."""
        barren: set[Slot] = set()
        for giver in sorted(self._counts, key=lambda member: (-self._counts[member], member)):
            # Givers come in descending order: what a member can reach was already searched, in vain, from a giver with
            # at least as many partitions.
            if giver not in barren:
                reached, end = self._search(giver)
                if end is not None:
                    return _chain_to(end, reached)
                barren |= reached.keys()
        return []

    def _search(self, giver: Slot) -> tuple[dict[Slot, tuple[Slot, str] | None], Slot | None]:
        """Search breadth-first for a taker. Return each reached member with the link to it, and the taker, if any."""
        reached: dict[Slot, tuple[Slot, str] | None] = {giver: None}
        queue = deque([giver])
        walked: set[Pool] = set()
        while queue:
            member = queue.popleft()
            if self._counts[giver] - self._counts[member] >= 2:
                return reached, member
            for *_, topic in self._queue(member, self._pools.keys()):
                pool = self._pools[topic]
                # The first giver of a pool's partition reaches all members of that pool: no pool is searched twice.
                if pool not in walked:
                    walked.add(pool)
                    takers = [taker for taker in pool if taker not in reached]
                    reached |= dict.fromkeys(takers, (member, topic))
                    queue.extend(sorted(takers, key=lambda taker: (self._counts[taker], taker)))
        return reached, None

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Return partition ids by topic by member, in ascending order."""
        owned: dict[Slot, dict[str, list[int]]] = {}
        for member in self._counts:
            kept, new = self._kept[member], self._new[member]
            numbers = {topic: sorted(kept.get(topic, []) + new.get(topic, [])) for topic in sorted({*kept, *new})}
            owned[member] = {topic: listed for topic, listed in numbers.items() if listed}
        return owned


def _chain_to(end: Slot, reached: Mapping[Slot, tuple[Slot, str] | None]) -> list[Link]:
    """Return the links that lead to a member, in order."""
    links: list[Link] = []
    while (step := reached[end]) is not None:
        links.append((*step, end))
        end = step[0]
    return links[::-1]


#: The sticky allocator: partitions stay with their owner where possible.
sticky = Sticky()
