"""
Reduce the moves of an allocation that is as equal as possible, by exchanges in cycles that keep it as equal.

Rules
  1. In a cycle, each member passes one partition to the next member, which must be eligible for it. That costs 1 if the
     giver is the partition's previous owner, gains 1 if the taker is the previous owner, and is free for a partition
     that moves anyway.
  2. A closed cycle leaves every member's count as it was. A path from a member to a member that owns one partition less
     swaps their counts, so the allocation stays as equal. Such a path counts as a closed cycle, too.
  3. Cycles that gain more than they cost are applied until there are none. A flow without such cycles has the least
     cost: no other allocation that is as equal moves fewer partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from kiel_groups.model import Slot, TopicPartition

__all__ = ["fewest_moves"]

#: A member, a pool of members, or ``(number,)``, which connects members of ``number`` partitions to members of one
#: more.
Node: TypeAlias = Slot | tuple[Slot, ...] | tuple[int]

#: An ordered set.
Owned: TypeAlias = dict[TopicPartition, None]

#: After this many edges, which take seconds, no further search starts. Groups of some hundred members need fewer.
MOST_EDGES = 2_000_000


def fewest_moves(
    owners: Mapping[TopicPartition, Slot],
    previous: Mapping[TopicPartition, Slot],
    pools: Mapping[str, tuple[Slot, ...]],
) -> dict[TopicPartition, Slot]:
    """
    Exchange partitions until none moves unnecessarily or, in very large groups, until ``MOST_EDGES`` are searched.

    Args:
        owners: An allocation that is as equal as possible.
        previous: The previous owner of each partition that may keep it.
        pools: The members eligible for each topic, ascending.
    """
    exchange = _Exchange(owners, previous, pools)
    while exchange.apply_short_cycles():
        pass
    while exchange.edges < MOST_EDGES and (found := exchange.find_cycles()):
        for each in found:
            exchange.apply(each)
    return exchange.owners


class _Exchange:
    """The allocation during the exchange."""

    def __init__(
        self,
        owners: Mapping[TopicPartition, Slot],
        previous: Mapping[TopicPartition, Slot],
        pools: Mapping[str, tuple[Slot, ...]],
    ) -> None:
        self.owners = dict(owners)
        #: The number of edges followed so far.
        self.edges = 0
        self._previous = previous
        self._pools = pools
        members = sorted({member for pool in pools.values() for member in pool})
        self._sharers: dict[Node, frozenset[Slot]] = {pool: frozenset(pool) for pool in set(pools.values())}
        self._counts = dict.fromkeys(members, 0)
        #: The partitions of each member, by pool: partitions that the member owned before, and partitions that move.
        self._kept: dict[Slot, dict[Node, Owned]] = {member: {} for member in members}
        self._moved: dict[Slot, dict[Node, Owned]] = {member: {} for member in members}
        #: The partitions of each member that another member owned before and may keep, by previous owner.
        self._displaced: dict[Slot, dict[Slot, Owned]] = {member: {} for member in members}
        for partition, owner in sorted(owners.items()):
            self._give(partition, owner)

    def _give(self, partition: TopicPartition, taker: Slot) -> None:
        """Assign a partition that has no owner."""
        self.owners[partition] = taker
        self._counts[taker] += 1
        for index, key in self._indexes(partition, taker):
            index.setdefault(key, {})[partition] = None

    def _take(self, partition: TopicPartition) -> None:
        """Unassign a partition from its owner."""
        giver = self.owners[partition]
        self._counts[giver] -= 1
        for index, key in self._indexes(partition, giver):
            del index[key][partition]
            if not index[key]:
                del index[key]

    def _indexes(self, partition: TopicPartition, owner: Slot) -> Iterator[tuple[dict[Node, Owned], Node]]:
        """Yield the indexes that list a partition, and its key in each."""
        owner_before = self._previous.get(partition)
        yield (self._kept if owner_before == owner else self._moved)[owner], self._pools[partition.topic]
        if owner_before not in (None, owner):
            yield self._displaced[owner], owner_before  # type: ignore[misc]

    def apply_short_cycles(self) -> bool:
        """
        Give partitions back to their previous owners, directly or in exchange for a partition that moves anyway.

        Most cycles are of this kind, and finding them needs no search. Return whether any cycle was applied.
        """
        applied = False
        for member in self._counts:
            for owner_before in list(self._displaced[member]):
                while owner_before in self._displaced[member] and (closing := self._closing_node(member, owner_before)):
                    self.apply([member, owner_before, closing])
                    applied = True
        return applied

    def _closing_node(self, member: Slot, owner_before: Slot) -> Node | None:
        """Return the node that leads from the previous owner back to the member at no cost, or None."""
        self.edges += 1 + len(self._moved[owner_before])
        if self._counts[member] == self._counts[owner_before] + 1:
            return (self._counts[owner_before],)
        return next((pool for pool in self._moved[owner_before] if member in self._sharers[pool]), None)

    def find_cycles(self) -> list[list[Node]]:
        """
        Return disjoint cycles that gain more than they cost, each as its nodes in the direction of the edges, or [].

        This is the Bellman-Ford algorithm with all members as sources: a cycle among the predecessors of nodes with
        negative distance has negative cost.
        """
        levels: dict[tuple[int], list[Slot]] = {}
        for member, count in self._counts.items():
            levels.setdefault((count - 1,), []).append(member)
        cost: dict[Node, int] = {}
        before: dict[Node, Node] = {}
        active: Iterable[Node] = [member for member, displaced in self._displaced.items() if displaced]
        while active:
            reached: dict[Node, None] = {}
            for node in active:
                spent = cost.get(node, 0)
                for successor, price in self._edges(node, levels):
                    self.edges += 1
                    if spent + price < cost.get(successor, 0):
                        cost[successor] = spent + price
                        before[successor] = node
                        reached[successor] = None
            if found := list(_cycles(before, reached)):
                return found
            active = reached
        return []

    def _edges(self, node: Node, levels: Mapping[tuple[int], Sequence[Slot]]) -> Iterator[tuple[Node, int]]:
        """Yield the successors of a node, with the cost of each edge."""
        if isinstance(node, str):
            yield from ((owner_before, -1) for owner_before in self._displaced[node])
            yield from ((pool, 0) for pool in self._moved[node])
            yield from ((pool, 1) for pool in self._kept[node])
            yield (self._counts[node],), 0
        elif isinstance(node[0], int):
            yield from ((member, 0) for member in levels.get(node, ()))
        else:
            yield from ((member, 0) for member in node)

    def apply(self, nodes: Sequence[Node]) -> None:
        """Apply a cycle: each of its members passes one partition on."""
        moves = []
        for node, second, third in zip(nodes, [*nodes[1:], nodes[0]], [*nodes[2:], *nodes[:2]], strict=True):
            if not isinstance(node, str):
                continue
            if isinstance(second, str):
                moves.append((next(iter(self._displaced[node][second])), second))
            elif isinstance(third, str) and not isinstance(second[0], int):
                moves.append((self._choose(node, second, third), third))
        for partition, taker in moves:
            self._take(partition)
            self._give(partition, taker)

    def _choose(self, giver: Slot, pool: Node, taker: Slot) -> TopicPartition:
        """
        Choose a partition of the pool for the giver to pass on.

        Prefer a partition that returns to its previous owner, then a partition that has to move anyway.
        """
        displaced = self._displaced[giver].get(taker, ())
        returning = (partition for partition in displaced if self._pools[partition.topic] == pool)
        others = self._moved[giver].get(pool) or self._kept[giver][pool]
        return next(returning, None) or next(iter(others))


def _cycles(before: Mapping[Node, Node], starts: Iterable[Node]) -> Iterator[list[Node]]:
    """Yield the cycles reachable from ``starts``, in the direction of the edges. No two cycles share a node."""
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
