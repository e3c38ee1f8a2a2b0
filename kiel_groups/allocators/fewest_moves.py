"""
From one allocation that is as equal as can be to one that is so and moves least: by rounds of exchanges.

Rules
  1. In a round, each of some members passes one partition on to the next, which may have it. That costs 1 where the
     giver had the partition to begin with, gains 1 where the taker had, and is free for one that moves anyway.
  2. A round that closes leaves everybody's number as it was. One that begins with a member that has one more than the
     last one has, leaves the numbers as equal: it counts as closed, too.
  3. While there is a round that gains more than it costs, it is done. A flow without such rounds is a cheapest one: no
     allocation that is as equal moves less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from kiel_groups.model import Slot, TopicPartition

__all__ = ["fewest_moves"]

#: A member, the members that share some topics, or ``(number,)``: all who have so many may pass on to who has one more.
Node: TypeAlias = Slot | tuple[Slot, ...] | tuple[int]

#: An ordered set.
Held: TypeAlias = dict[TopicPartition, None]

#: So many links are gone along at most, which takes seconds. Groups of some hundred members need less.
MOST_LINKS = 2_000_000


def fewest_moves(
    owners: Mapping[TopicPartition, Slot], homes: Mapping[TopicPartition, Slot], pools: Mapping[str, tuple[Slot, ...]]
) -> dict[TopicPartition, Slot]:
    """
    Exchange partitions until none moves that need not; in very large groups, until enough has been tried.

    Args:
        owners: An allocation as equal as can be.
        homes: Who has a partition now, where that one may keep it.
        pools: Who may have the partitions of each topic; ascending.
    """
    exchange = _Exchange(owners, homes, pools)
    while exchange.do_short_rounds():
        pass
    while exchange.links < MOST_LINKS and (found := exchange.find_rounds()):
        for each in found:
            exchange.do(each)
    return exchange.owners


class _Exchange:
    def __init__(
        self,
        owners: Mapping[TopicPartition, Slot],
        homes: Mapping[TopicPartition, Slot],
        pools: Mapping[str, tuple[Slot, ...]],
    ) -> None:
        self.owners = dict(owners)
        #: How many were gone along so far.
        self.links = 0
        self._homes = homes
        self._pools = pools
        members = sorted({member for pool in pools.values() for member in pool})
        self._sharers: dict[Node, frozenset[Slot]] = {pool: frozenset(pool) for pool in set(pools.values())}
        self._counts = dict.fromkeys(members, 0)
        #: What each has of a pool's topics: what it had, and what moves.
        self._kept: dict[Slot, dict[Node, Held]] = {member: {} for member in members}
        self._moved: dict[Slot, dict[Node, Held]] = {member: {} for member in members}
        #: What each has that another one had, and may keep.
        self._astray: dict[Slot, dict[Slot, Held]] = {member: {} for member in members}
        for partition, owner in sorted(owners.items()):
            self._give(partition, owner)

    def _give(self, partition: TopicPartition, taker: Slot) -> None:
        self.owners[partition] = taker
        self._counts[taker] += 1
        for held, key in self._places(partition, taker):
            held.setdefault(key, {})[partition] = None

    def _take(self, partition: TopicPartition) -> None:
        giver = self.owners[partition]
        self._counts[giver] -= 1
        for held, key in self._places(partition, giver):
            del held[key][partition]
            if not held[key]:
                del held[key]

    def _places(self, partition: TopicPartition, owner: Slot) -> Iterator[tuple[dict[Node, Held], Node]]:
        """Where it is kept, and under which key."""
        home = self._homes.get(partition)
        yield (self._kept if home == owner else self._moved)[owner], self._pools[partition.topic]
        if home not in (None, owner):
            yield self._astray[owner], home  # type: ignore[misc]

    def do_short_rounds(self) -> bool:
        """
        Have partitions come home straight, or for one that the home can give in return; whether any did.

        Most rounds are like that, and these need no search.
        """
        done = False
        for member in self._counts:
            for home in list(self._astray[member]):
                while home in self._astray[member] and (closing := self._closing(member, home)):
                    self.do([member, home, closing])
                    done = True
        return done

    def _closing(self, member: Slot, home: Slot) -> Node | None:
        """By which node a round from a member to a home leads back for nothing."""
        self.links += 1 + len(self._moved[home])
        if self._counts[member] == self._counts[home] + 1:
            return (self._counts[home],)
        return next((pool for pool in self._moved[home] if member in self._sharers[pool]), None)

    def find_rounds(self) -> list[list[Node]]:
        """
        Rounds that gain, apart from each other, each with its nodes in order; none where there is none.

        By Bellman and Ford, from everybody at once: who is reached for less than nothing, by whom; a circle of these
        is a round.
        """
        levels: dict[tuple[int], list[Slot]] = {}
        for member, count in self._counts.items():
            levels.setdefault((count - 1,), []).append(member)
        cost: dict[Node, int] = {}
        before: dict[Node, Node] = {}
        active: Iterable[Node] = [member for member, astray in self._astray.items() if astray]
        while active:
            reached: dict[Node, None] = {}
            for node in active:
                spent = cost.get(node, 0)
                for further, price in self._links(node, levels):
                    self.links += 1
                    if spent + price < cost.get(further, 0):
                        cost[further] = spent + price
                        before[further] = node
                        reached[further] = None
            if found := list(_circles(before, reached)):
                return found
            active = reached
        return []

    def _links(self, node: Node, levels: Mapping[tuple[int], Sequence[Slot]]) -> Iterator[tuple[Node, int]]:
        """Where a round may go on from here, and at which price."""
        if isinstance(node, str):
            yield from ((home, -1) for home in self._astray[node])
            yield from ((pool, 0) for pool in self._moved[node])
            yield from ((pool, 1) for pool in self._kept[node])
            yield (self._counts[node],), 0
        elif isinstance(node[0], int):
            yield from ((member, 0) for member in levels.get(node, ()))
        else:
            yield from ((member, 0) for member in node)

    def do(self, nodes: Sequence[Node]) -> None:
        """Pass on what the round says, each of its givers one partition."""
        moves = []
        for node, further, after in zip(nodes, [*nodes[1:], nodes[0]], [*nodes[2:], *nodes[:2]], strict=True):
            if not isinstance(node, str):
                continue
            if isinstance(further, str):
                moves.append((next(iter(self._astray[node][further])), further))
            elif isinstance(after, str) and not isinstance(further[0], int):
                moves.append((self._any_of(node, further, after), after))
        for partition, taker in moves:
            self._take(partition)
            self._give(partition, taker)

    def _any_of(self, giver: Slot, pool: Node, taker: Slot) -> TopicPartition:
        """Best one that comes home by this, else one that moves anyway."""
        home = (partition for partition in self._astray[giver].get(taker, ()) if self._pools[partition.topic] == pool)
        held = self._moved[giver].get(pool) or self._kept[giver][pool]
        return next(home, None) or next(iter(held))


def _circles(before: Mapping[Node, Node], starts: Iterable[Node]) -> Iterator[list[Node]]:
    """Each circle among the links that lead back, in the order in which it was gone; they have no node in common."""
    seen: set[Node] = set()
    for start in starts:
        path: dict[Node, None] = {}
        node = start
        while node in before and node not in seen and node not in path:
            path[node] = None
            node = before[node]
        if node in path:
            nodes = list(path)
            yield nodes[nodes.index(node) :][::-1]
        seen |= path.keys()
