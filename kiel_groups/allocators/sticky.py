"""
Sticky: members end up as equal as can be, and of all such allocations one that moves least.

Rules
  1. What a member has, is subscribed to, and shares with nobody, it keeps to begin with.
  2. What nobody has goes to whom of those that may have it has least.
  3. While a member has two more than another one and some of them could go there, one goes: straight where both may
     have it, else along a shortest chain of members, each of which passes one on and gets one. No allocation is more
     equal than one where that has come to an end (a semi-matching without a cost-reducing path is an optimal one).
  4. What is moved already is moved first. Where several topics would do, it is the one of which the giver has most:
     topics are spread as far as that costs nothing.

Where all members subscribe to the same topics, no allocation that is as equal moves less. Chains make no such promise;
they are needed only where subscriptions overlap in part, and ``fewest_moves`` mends there what they moved too much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from kiel_groups.allocators.fewest_moves import fewest_moves
from kiel_groups.allocators.pools import Keeping, Pool, homes_of, pools_of
from kiel_groups.model import Slot, TopicPartition

__all__ = ["Sticky", "sticky"]

#: Who gives, a partition of which topic, to whom.
Link: TypeAlias = tuple[Slot, str, Slot]


class Sticky(Keeping):
    """The sticky allocator; its one instance is :data:`sticky`."""

    __name__ = "sticky"

    def allocate(
        self,
        eligible: Mapping[str, Collection[Slot]],
        partitions: Collection[TopicPartition],
        current: Mapping[Slot, Collection[TopicPartition]],
    ) -> dict[Slot, dict[str, list[int]]]:
        """Partition ids by topic by member, as equal as can be, with as few moves as that takes; see ``Keeping``."""
        shares = _Shares(eligible)
        unowned = shares.keep(sorted(p for p in partitions if eligible.get(p.topic)), current)
        shares.deal_out(unowned)
        shares.level()
        shares.mend()
        return shares.result()


class _Shares:
    """Who has what while it is being shared out."""

    def __init__(self, eligible: Mapping[str, Collection[Slot]]) -> None:
        self._pools = pools_of(eligible)
        members = sorted({member for pool in set(self._pools.values()) for member in pool})
        self._counts = dict.fromkeys(members, 0)
        #: Who had a partition that it may keep.
        self._homes: dict[TopicPartition, Slot] = {}
        #: Partition numbers by topic by member; the last of a list goes first.
        self._kept: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}
        self._new: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}

    def keep(
        self, partitions: Sequence[TopicPartition], current: Mapping[Slot, Collection[TopicPartition]]
    ) -> list[TopicPartition]:
        """Leave with every member what it may keep; returns the rest, in order."""
        self._homes = homes_of(partitions, self._pools, current)
        for partition, holder in self._homes.items():
            self._counts[holder] += 1
            self._kept[holder].setdefault(partition.topic, []).append(partition.partition)
        return [partition for partition in partitions if partition not in self._homes]

    def deal_out(self, partitions: Sequence[TopicPartition]) -> None:
        """Give each to the member with least; topics that few may have come first, others can make up for it."""
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
        """Pass partitions on until nobody has two more than somebody who could have one of them."""
        topics: dict[Pool, set[str]] = {}
        for topic, pool in self._pools.items():
            topics.setdefault(pool, set()).add(topic)
        for pool in sorted(topics, key=lambda pool: (len(pool), pool)):
            self._level_within(pool, topics[pool])
        # Straight moves of another pool, where there is one to make, are chains of one link.
        while len(topics) > 1 and (chain := self._find_chain()):
            for giver, topic, taker in chain:
                self._move(giver, topic, taker)

    def mend(self) -> None:
        """Take back what was moved and need not be; nothing of the kind where all may have the same."""
        if len(set(self._pools.values())) < 2:
            return
        owners = {
            TopicPartition(topic, number): member
            for held in (self._kept, self._new)
            for member, topics in held.items()
            for topic, numbers in topics.items()
            for number in numbers
        }
        self._kept = {member: {} for member in self._counts}
        self._new = {member: {} for member in self._counts}
        for partition, member in fewest_moves(owners, self._homes, self._pools).items():
            held = self._kept if self._homes.get(partition) == member else self._new
            held[member].setdefault(partition.topic, []).append(partition.partition)

    def _level_within(self, pool: Pool, topics: Set[str]) -> None:
        """
        Straight moves among members that may have the same.

        Who has most gives to who has least, so nobody who gave ever takes, or the other way round.
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
        """What to give away first: what is moved already, what there is most of, what was given least of."""
        held = (self._kept[member].keys() | self._new[member].keys()) & topics
        numbers = ((topic, self._number(member, topic)) for topic in held)
        return sorted((not self._new[member].get(topic), -number, 0, topic) for topic, number in numbers if number)

    def _number(self, member: Slot, topic: str) -> int:
        return len(self._kept[member].get(topic, ())) + len(self._new[member].get(topic, ()))

    def _move(self, giver: Slot, topic: str, taker: Slot) -> None:
        source = self._new[giver] if self._new[giver].get(topic) else self._kept[giver]
        self._new[taker].setdefault(topic, []).append(source[topic].pop())
        self._counts[giver] -= 1
        self._counts[taker] += 1

    def _find_chain(self) -> list[Link]:
        """A shortest chain from somebody to another one who has two less; empty where there is none."""
        barren: set[Slot] = set()
        for giver in sorted(self._counts, key=lambda member: (-self._counts[member], member)):
            # Who was reached in vain from somebody with as many reaches nobody else.
            if giver not in barren:
                reached, end = self._search(giver)
                if end is not None:
                    return _chain_to(end, reached)
                barren |= reached.keys()
        return []

    def _search(self, giver: Slot) -> tuple[dict[Slot, tuple[Slot, str] | None], Slot | None]:
        """Breadth first along what could be passed on: who is reached by which link, and the first worth giving to."""
        reached: dict[Slot, tuple[Slot, str] | None] = {giver: None}
        queue = deque([giver])
        walked: set[Pool] = set()
        while queue:
            member = queue.popleft()
            if self._counts[giver] - self._counts[member] >= 2:
                return reached, member
            for *_, topic in self._queue(member, self._pools.keys()):
                pool = self._pools[topic]
                if pool not in walked:
                    walked.add(pool)
                    takers = [taker for taker in pool if taker not in reached]
                    reached |= dict.fromkeys(takers, (member, topic))
                    queue.extend(sorted(takers, key=lambda taker: (self._counts[taker], taker)))
        return reached, None

    def result(self) -> dict[Slot, dict[str, list[int]]]:
        """Ascending everywhere."""
        owned: dict[Slot, dict[str, list[int]]] = {}
        for member in self._counts:
            kept, new = self._kept[member], self._new[member]
            numbers = {topic: sorted(kept.get(topic, []) + new.get(topic, [])) for topic in sorted({*kept, *new})}
            owned[member] = {topic: listed for topic, listed in numbers.items() if listed}
        return owned


def _chain_to(end: Slot, reached: Mapping[Slot, tuple[Slot, str] | None]) -> list[Link]:
    """The links that lead to a member, first one first."""
    links: list[Link] = []
    while (step := reached[end]) is not None:
        links.append((*step, end))
        end = step[0]
    return links[::-1]


#: Keeps what can stay where it is.
sticky = Sticky()
