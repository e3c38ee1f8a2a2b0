"""The weighted allocator, for any members, subscriptions, loads and earlier allocations of small groups."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.allocators import GroupSpec, loads_of, run_allocator, sticky, weighted
from kiel_groups.model import Allocation, TopicPartition
from tests.helpers.examples import examples
from tests.helpers.generated_groups import (
    TOPICS,
    members,
    moves,
    owned,
    owners,
    partition_counts,
    partitions_of,
    subscriptions,
)

pytestmark = pytest.mark.property

Loads = Mapping[TopicPartition, float]

#: The load of each partition by its index among all partitions. None means unknown.
measured = st.lists(st.none() | st.integers(0, 40) | st.floats(0, 1e6) | st.just(10**15), min_size=18, max_size=18)

#: The precision of sums, as a part of the heaviest load.
EXACT = 1e-9


def weights_of(partitions: list[TopicPartition], loads: list[float | None]) -> dict[TopicPartition, float]:
    """Return the weights of the partitions with a known load."""
    return {partition: load for partition, load in zip(partitions, loads, strict=False) if load is not None}


def carried(allocation: Allocation, loads: Loads) -> dict[str, float]:
    """Return the total load of each member."""
    return {member: sum(loads[partition] for partition in its) for member, its in allocation.items()}


@settings(max_examples=examples(300))
@given(subscriptions, partition_counts, owners, measured)
def test_loads_of_members_that_share_topics_differ_by_one_partition_at_most(
    subscribed: dict[str, set[str]], counts: dict[str, int], present: list[str | None], drawn_loads: list[float | None]
) -> None:
    """
    The loads of members that subscribe to a topic differ by at most the heaviest partition of the topics with the same
    subscribers, whatever the members owned before.

    Each partition with a subscriber is owned once.
    """
    partitions = partitions_of(counts)
    weights = weights_of(partitions, drawn_loads)
    after = run_allocator(
        weighted, GroupSpec.of(subscribed, partitions, owned(partitions, present), weights)
    ).allocation
    wanted = [p for p in partitions if any(p.topic in topics for topics in subscribed.values())]
    assert sorted(p for its in after.values() for p in its) == wanted
    loads = loads_of(wanted, weights)
    sums, exact = carried(after, loads), EXACT * max(loads.values(), default=0)
    subscribers = {topic: {name for name, topics in subscribed.items() if topic in topics} for topic in TOPICS}
    for giver, its in after.items():
        for partition in its:
            # The allocator balances topics with the same subscribers together.
            pool = subscribers[partition.topic]
            heaviest = max(load for other, load in loads.items() if subscribers[other.topic] == pool)
            assert all(sums[giver] - sums[taker] <= heaviest + exact for taker in pool)


@settings(max_examples=examples(200))
@given(members, partition_counts, owners, measured)
def test_loads_for_equal_subscriptions_differ_by_one_partition_at_most(
    names: list[str], counts: dict[str, int], present: list[str | None], drawn_loads: list[float | None]
) -> None:
    """
    With equal subscriptions, the loads of members differ by at most the heaviest partition, whatever they owned before.
    """
    partitions = partitions_of(counts)
    weights = weights_of(partitions, drawn_loads)
    subscribed = {name: set(TOPICS) for name in names}
    after = run_allocator(
        weighted, GroupSpec.of(subscribed, partitions, owned(partitions, present), weights)
    ).allocation
    loads = loads_of(partitions, weights)
    sums, heaviest = carried(after, loads).values(), max(loads.values(), default=0)
    assert max(sums) - min(sums) <= heaviest * (1 + EXACT)


@settings(max_examples=examples(200))
@given(subscriptions, partition_counts, owners, measured, st.randoms(use_true_random=False))
def test_results_are_stable_and_independent_of_order(
    subscribed: dict[str, set[str]],
    counts: dict[str, int],
    present: list[str | None],
    drawn_loads: list[float | None],
    shuffle: random.Random,
) -> None:
    """The weighted allocator does not change its own result, and the order of the input does not matter."""
    partitions = partitions_of(counts)
    before, weights = owned(partitions, present), weights_of(partitions, drawn_loads)
    after = run_allocator(weighted, GroupSpec.of(subscribed, partitions, before, weights))
    assert run_allocator(weighted, GroupSpec.of(subscribed, partitions, after.allocation, weights)) == after
    shuffled = [dict(shuffle.sample(list(given.items()), len(given))) for given in (subscribed, before)]
    mixed = dict(shuffle.sample(list(weights.items()), len(weights)))
    order = shuffle.sample(partitions, len(partitions))
    assert run_allocator(weighted, GroupSpec.of(shuffled[0], order, shuffled[1], mixed)) == after


@settings(max_examples=examples(200))
@given(subscriptions, partition_counts, owners, st.integers(0, 10**15) | st.none())
def test_equal_loads_are_balanced_as_by_the_sticky_allocator(
    subscribed: dict[str, set[str]], counts: dict[str, int], present: list[str | None], load: int | None
) -> None:
    """
    If all loads are equal, or none is known, the weighted allocator returns the result of the sticky one: as even as
    possible, with the fewest moves.
    """
    partitions = partitions_of(counts)
    before = owned(partitions, present)
    weights = weights_of(partitions, [load] * len(partitions))
    after = run_allocator(weighted, GroupSpec.of(subscribed, partitions, before, weights))
    assert after == run_allocator(sticky, GroupSpec.of(subscribed, partitions, before))


def test_loads_are_balanced_with_few_additional_moves() -> None:
    """
    To balance the loads of 300 groups equally well, the weighted allocator makes at most a sixth more moves than an
    exhaustive search. In nine of ten groups, it makes no more.
    """
    chance = random.Random(1)
    moved, fewest, groups = 0, 0, 300
    needless = 0
    for _ in range(groups):
        names = ["a", "b", "c"][: chance.randint(2, 3)]
        partitions = [TopicPartition("t", number) for number in range(chance.randint(2, 6))]
        loads = {partition: chance.randint(1, 30) for partition in partitions}
        before = owned(partitions, [chance.choice([*names, "gone"]) for _ in partitions])
        subscribed = {name: {"t"} for name in names}
        after = run_allocator(weighted, GroupSpec.of(subscribed, partitions, before, loads)).allocation
        least = _fewest_moves(names, loads, before, _spread(after, loads))
        moved += moves(before, after, subscribed)
        fewest += least
        needless += moves(before, after, subscribed) > least
    assert moved <= fewest * 7 / 6
    assert needless <= groups / 10


def _spread(allocation: Allocation, loads: Loads) -> float:
    """Return the difference between the largest and the smallest load of a member."""
    sums = carried(allocation, loads).values()
    return max(sums) - min(sums)


def _fewest_moves(names: list[str], loads: Loads, before: Allocation, spread: float) -> int:
    """Return the fewest moves to any allocation with at most this spread."""
    subscribed = {name: {"t"} for name in names}
    every = (
        {name: frozenset(p for p, o in zip(loads, chosen, strict=True) if o == name) for name in names}
        for chosen in product(names, repeat=len(loads))
    )
    return min(moves(before, after, subscribed) for after in every if _spread(after, loads) <= spread)
