"""The sticky allocator: members own equal numbers of partitions, as far as possible, and few partitions move."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias, TypeVar

from kiel_groups.allocators.adapter import GroupAllocatorBase
from kiel_groups.allocators.by_load import balance_by_load
from kiel_groups.allocators.group_spec import Allocated, GroupSpec, Pool
from kiel_groups.model import Slot, TopicPartition

# Reduce the moves of an allocation that is as equal as possible, with the cycle-canceling algorithm for min-cost flows.
#
# The allocation is a flow of one unit for each partition, from the partition to its owner. A unit costs 1 if its
# partition could have stayed with its previous owner and does not, and 0 otherwise. In the residual graph, each cycle
# of negative cost is an exchange that saves moves, and a flow without such cycles has the least cost.
#
# Rules
#   1. In a cycle, each member passes one partition to the next member, which must be eligible for it. That costs 1 if
#      the giver is the partition's previous owner, gains 1 if the taker is the previous owner, and is free for a
#      partition that moves anyway.
#   2. A closed cycle leaves every member's count as it was. A path from a member to a member that owns one partition
#      less swaps their counts, so the allocation stays as equal. Such a path counts as a closed cycle, too.
#   3. Cycles that gain more than they cost are applied until there are none. Then no other allocation that is as equal
#      moves fewer partitions.
#
# The graph here is a condensed residual graph. Partitions of one pool are alternatives, and share their edges. Rule 2
# replaces the sink, whose edges would have convex costs to keep the counts equal. The Bellman-Ford algorithm finds the
# cycles. All disjoint cycles that it finds together are canceled before it starts again.
#
# Sources
#   - M. Klein, "A primal method for minimal cost flows with applications to the assignment and transportation
#     problems", Management Science 14 (1967), pages 205 to 220: the algorithm.
#   - R. K. Ahuja, T. L. Magnanti, J. B. Orlin, "Network Flows", Prentice Hall 1993: section 9.3 (a flow has the least
#     cost if and only if its residual graph has no negative cycle), 9.6 (cycle-canceling), 5.5 (negative cycles among
#     the predecessors), and chapter 14 (convex costs).


# Each node of the graph is one object: nodes are compared and hashed by identity, which is faster than by value.


@dataclass(frozen=True, slots=True, eq=False)
class _MemberNode:
    """The node of a member. An edge from it means that the member passes a partition on."""

    slot: Slot


@dataclass(frozen=True, slots=True, eq=False)
class _PoolNode:
    """
    The node of a pool: the members eligible for the same topics, in ascending order.

    An edge from a member to this node represents a partition of these topics that the member gives. An edge from this
    node to a member represents the partition that this member takes.
    """

    members: tuple[_MemberNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _LevelNode:
    """
    Connects each member that owns ``count`` partitions to all members that own one partition more, at no cost.

    So this node closes a path from a member with ``count + 1`` partitions to a member with ``count`` partitions. Along
    the path, each member passes one partition on.
    """

    count: int


_Node: TypeAlias = _MemberNode | _PoolNode | _LevelNode
_K = TypeVar("_K")

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
    Return an allocation that is as equal as ``owners``, and moves as few partitions as possible.

    In very large groups, the search stops after ``MOST_EDGES`` edges, so a few partitions may still move unnecessarily.

    Args:
        owners: An allocation that is as equal as possible.
        previous: The previous owner of each partition, if that member may keep the partition.
        pools: The members eligible for each topic, in ascending order.
    """
    exchange = _Exchange(owners, previous, pools)
    while exchange.apply_short_cycles():
        pass
    while exchange.edges < MOST_EDGES and (found := exchange.find_cycles()):
        for each in found:
            exchange.apply(each)
    return exchange.allocation()


class _Exchange:
    """The allocation while members exchange partitions to save moves."""

    def __init__(
        self,
        owners: Mapping[TopicPartition, Slot],
        previous: Mapping[TopicPartition, Slot],
        pools: Mapping[str, tuple[Slot, ...]],
    ) -> None:
        #: The number of edges followed so far.
        self.edges = 0
        slots = sorted({slot for pool in pools.values() for slot in pool})
        nodes = {slot: _MemberNode(slot) for slot in slots}
        members = list(nodes.values())
        pool_nodes = {pool: _PoolNode(tuple(nodes[slot] for slot in pool)) for pool in set(pools.values())}
        #: The pool of each topic, and the members of each pool.
        self._pools = {topic: pool_nodes[pool] for topic, pool in pools.items()}
        self._sharers = {pool: frozenset(pool.members) for pool in pool_nodes.values()}
        self._previous = {partition: nodes[previous[partition]] for partition in owners if partition in previous}
        self._owners: dict[TopicPartition, _MemberNode] = {}
        self._counts = dict.fromkeys(members, 0)
        #: The partitions of each member, by pool: partitions that the member owned before, and partitions that move.
        self._kept: dict[_MemberNode, dict[_PoolNode, Owned]] = {member: {} for member in members}
        self._moved: dict[_MemberNode, dict[_PoolNode, Owned]] = {member: {} for member in members}
        #: The partitions of each member that another member owned before and may keep, by previous owner.
        self._displaced: dict[_MemberNode, dict[_MemberNode, Owned]] = {member: {} for member in members}
        for partition, owner in sorted(owners.items()):
            self._give(partition, nodes[owner])
        #: The levels that members are on. Cycles swap counts at most, so no other level comes up.
        self._levels = {count: _LevelNode(count) for count in set(self._counts.values())}

    def allocation(self) -> dict[TopicPartition, Slot]:
        """Return the present owner of each partition."""
        return {partition: member.slot for partition, member in self._owners.items()}

    def _give(self, partition: TopicPartition, taker: _MemberNode) -> None:
        """Assign a partition that has no owner."""
        self._owners[partition] = taker
        self._counts[taker] += 1
        owner_before, pool = self._previous.get(partition), self._pools[partition.topic]
        (self._kept if owner_before is taker else self._moved)[taker].setdefault(pool, {})[partition] = None
        if owner_before is not None and owner_before is not taker:
            self._displaced[taker].setdefault(owner_before, {})[partition] = None

    def _take(self, partition: TopicPartition) -> None:
        """Unassign a partition from its owner."""
        giver = self._owners[partition]
        self._counts[giver] -= 1
        owner_before, pool = self._previous.get(partition), self._pools[partition.topic]
        _remove((self._kept if owner_before is giver else self._moved)[giver], pool, partition)
        if owner_before is not None and owner_before is not giver:
            _remove(self._displaced[giver], owner_before, partition)

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

    def _closing_node(self, member: _MemberNode, owner_before: _MemberNode) -> _LevelNode | _PoolNode | None:
        """Return the node that leads from the previous owner back to the member at no cost, or None."""
        self.edges += 1 + len(self._moved[owner_before])
        if self._counts[member] == self._counts[owner_before] + 1:
            return self._levels[self._counts[owner_before]]
        return next((pool for pool in self._moved[owner_before] if member in self._sharers[pool]), None)

    def find_cycles(self) -> list[list[_Node]]:
        """
        Return disjoint cycles that gain more than they cost. If no such cycle exists, return an empty list.

        Each cycle is the list of its nodes, in the direction of the edges. This is the Bellman-Ford algorithm with all
        members as sources: a cycle among the predecessors of nodes with negative distance has negative cost.
        """
        above: dict[int, list[_MemberNode]] = {}
        for member, count in self._counts.items():
            above.setdefault(count - 1, []).append(member)
        cost: dict[_Node, int] = {}
        before: dict[_Node, _Node] = {}
        active: Iterable[_Node] = [member for member, displaced in self._displaced.items() if displaced]
        while active:
            reached: dict[_Node, None] = {}
            for node in active:
                spent = cost.get(node, 0)
                for successor, price in self._edges(node, above):
                    self.edges += 1
                    if spent + price < cost.get(successor, 0):
                        cost[successor] = spent + price
                        before[successor] = node
                        reached[successor] = None
            if found := list(_cycles(before, reached)):
                return found
            active = reached
        return []

    def _edges(self, node: _Node, above: Mapping[int, Sequence[_MemberNode]]) -> Iterator[tuple[_Node, int]]:
        """
        Yield the successors of a node, with the cost of each edge. ``above`` has the members by their count minus one.
        """
        if isinstance(node, _MemberNode):
            yield from ((owner_before, -1) for owner_before in self._displaced[node])
            yield from ((pool, 0) for pool in self._moved[node])
            yield from ((pool, 1) for pool in self._kept[node])
            yield self._levels[self._counts[node]], 0
        elif isinstance(node, _LevelNode):
            yield from ((member, 0) for member in above.get(node.count, ()))
        else:
            yield from ((member, 0) for member in node.members)

    def apply(self, nodes: Sequence[_Node]) -> None:
        """Apply a cycle: each member in the cycle passes one partition on."""
        moves = []
        for node, second, third in zip(nodes, [*nodes[1:], nodes[0]], [*nodes[2:], *nodes[:2]], strict=True):
            if not isinstance(node, _MemberNode):
                continue
            if isinstance(second, _MemberNode):
                moves.append((next(iter(self._displaced[node][second])), second))
            elif isinstance(third, _MemberNode) and isinstance(second, _PoolNode):
                moves.append((self._choose(node, second, third), third))
        for partition, taker in moves:
            self._take(partition)
            self._give(partition, taker)

    def _choose(self, giver: _MemberNode, pool: _PoolNode, taker: _MemberNode) -> TopicPartition:
        """
        Choose a partition of the pool for the giver to pass on.

        Prefer a partition that returns to its previous owner, then a partition that has to move anyway.
        """
        displaced = self._displaced[giver].get(taker, ())
        returning = (partition for partition in displaced if self._pools[partition.topic] is pool)
        others = self._moved[giver].get(pool) or self._kept[giver][pool]
        return next(returning, None) or next(iter(others))


def _remove(index: dict[_K, Owned], key: _K, partition: TopicPartition) -> None:
    """Remove a partition from an index. If the key has no other partition, remove the key, too."""
    del index[key][partition]
    if not index[key]:
        del index[key]


def _cycles(before: Mapping[_Node, _Node], starts: Iterable[_Node]) -> Iterator[list[_Node]]:
    """Yield the cycles reachable from ``starts``, in the direction of the edges. No two cycles share a node."""
    seen: set[_Node] = set()
    for start in starts:
        path: dict[_Node, None] = {}
        node = start
        while node in before and node not in seen and node not in path:
            path[node] = None
            node = before[node]
        if node in path:
            nodes = list(path)
            yield nodes[nodes.index(node) :][::-1]
        seen |= path.keys()


# The sticky allocator: members own equal numbers of partitions, as far as possible, and few partitions move.
#
# Rules
#   1. At first, a member keeps the partitions that it owns and is subscribed to. If several members own a partition,
#      only the first by name can keep it.
#   2. Each unowned partition is assigned to the eligible member with the fewest partitions.
#   3. While a member owns at least two partitions more than a member that could take one, one partition moves: directly
#      if both members are eligible for it, or along a shortest chain of members, each of which receives one partition
#      and passes one on. When no such move is left, no allocation is more equal (a semi-matching without a
#      cost-reducing path is optimal).
#   4. Partitions that move anyway are moved first. Among several topics, the giver passes on a partition of the topic
#      of which it has most. This spreads topics as far as possible without further moves.
#
# If all members subscribe to the same topics, no allocation that is as equal moves fewer partitions. Chains give no
# such guarantee. They are needed only if subscriptions overlap in part, and there ``fewest_moves`` undoes unnecessary
# moves.


#: The giver, the topic of the partition, and the taker.
Link: TypeAlias = tuple[Slot, str, Slot]


class Sticky(GroupAllocatorBase):
    """The sticky allocator; its one instance is :data:`sticky`."""

    __name__ = "sticky"

    def allocate(self, group: GroupSpec) -> Allocated:
        """
        Return partition ids by topic by member. The members' counts are as equal as possible, with the fewest moves.

        If capacities differ, members get partitions in proportion to their capacities, with few moves.
        """
        if group.has_capacities:
            return balance_by_load(group, dict.fromkeys(group.assignable, 1))
        shares = _Shares(group)
        shares.assign_unowned()
        shares.level()
        shares.minimize_moves()
        return shares.result()


class _Shares:
    """The assignment in progress: the partitions of each member."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._pools = group.pools
        members = sorted({member for pool in set(self._pools.values()) for member in pool})
        self._counts = dict.fromkeys(members, 0)
        #: The previous owner of each partition, if that member may keep it.
        self._previous = group.present_owners
        #: Partition numbers by topic by member: those owned before, and those that move. The last number moves first.
        self._kept: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}
        self._new: dict[Slot, dict[str, list[int]]] = {member: {} for member in members}
        for partition, owner in self._previous.items():
            self._counts[owner] += 1
            self._kept[owner].setdefault(partition.topic, []).append(partition.partition)

    def assign_unowned(self) -> None:
        """
        Assign each unowned partition to the eligible member with the fewest partitions.

        Small pools come first, since larger pools can compensate.
        """
        shared: dict[Pool, list[TopicPartition]] = {}
        for partition in self._group.assignable:
            if partition not in self._previous:
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
        """Move partitions until no member owns two partitions more than another member that could take one of them."""
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
        """Undo unnecessary moves. If all topics have the same members, there are no unnecessary moves."""
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

        The member with the most partitions gives one partition to the member with the fewest. So no giver becomes a
        taker, and no taker becomes a giver.
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

        Topics with partitions that move anyway come first. Among equal topics, the topic of which the member owns the
        most partitions comes first, then the topic of which the member has given the fewest partitions.
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
        """
        Return a shortest chain from a member to a member with at least two partitions less, or [] if there is no chain.
        """
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
    """Return the links of the chain that ends at a member, in order."""
    links: list[Link] = []
    while (step := reached[end]) is not None:
        links.append((*step, end))
        end = step[0]
    return links[::-1]


#: The sticky allocator: partitions stay with their owner where possible.
sticky = Sticky()
