"""The weighted allocator, for any members, subscriptions, loads and earlier allocations of small groups."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.allocators import loads_of, run_allocator, sticky, weighted
from kiel_groups.model import Allocation, TopicPartition
from tests.property.test_allocators_sticky_laws import (
    TOPICS,
    held,
    holders,
    members,
    moves,
    numbers,
    partitions_of,
    subscriptions,
)

pytestmark = pytest.mark.property

Loads = Mapping[TopicPartition, float]

#: By the place of a partition among all of them; of None nobody knows the load.
measured = st.lists(st.none() | st.integers(0, 40) | st.floats(0, 1e6) | st.just(10**15), min_size=18, max_size=18)

#: Loads are counted in parts of the heaviest.
EXACT = 1e-9


def weights_of(partitions: list[TopicPartition], loads: list[float | None]) -> dict[TopicPartition, float]:
    return {partition: load for partition, load in zip(partitions, loads, strict=False) if load is not None}


def carried(allocation: Allocation, loads: Loads) -> dict[str, float]:
    return {member: sum(loads[partition] for partition in owned) for member, owned in allocation.items()}


@settings(max_examples=300)
@given(subscriptions, numbers, holders, measured)
def test_no_single_move_would_make_two_more_equal_that_are_far_apart(
    subscribed: dict[str, set[str]], counts: dict[str, int], holding: list[str | None], given_loads: list[float | None]
) -> None:
    """
    Whatever all had before: who carries more than another one that may have a partition of its, does so by that
    partition's load at most, or by the heaviest one's of its topic. Each partition with a subscriber is owned once.
    """
    partitions = partitions_of(counts)
    weights = weights_of(partitions, given_loads)
    after = run_allocator(weighted, subscribed, partitions, held(partitions, holding), weights).allocation
    wanted = [p for p in partitions if any(p.topic in topics for topics in subscribed.values())]
    assert sorted(p for owned in after.values() for p in owned) == wanted
    loads = loads_of(wanted, weights)
    sums, exact = carried(after, loads), EXACT * max(loads.values(), default=0)
    sharers = {topic: {name for name, topics in subscribed.items() if topic in topics} for topic in TOPICS}
    for giver, owned in after.items():
        for partition in owned:
            # Topics with the same subscribers are looked at as one.
            pool = sharers[partition.topic]
            heaviest = max(load for other, load in loads.items() if sharers[other.topic] == pool)
            assert all(sums[giver] - sums[taker] <= heaviest + exact for taker in pool)


@settings(max_examples=200)
@given(members, numbers, holders, measured)
def test_who_may_have_the_same_is_within_the_heaviest_partition(
    names: list[str], counts: dict[str, int], holding: list[str | None], given_loads: list[float | None]
) -> None:
    """Whatever they had before."""
    partitions = partitions_of(counts)
    weights = weights_of(partitions, given_loads)
    subscribed = {name: set(TOPICS) for name in names}
    after = run_allocator(weighted, subscribed, partitions, held(partitions, holding), weights).allocation
    loads = loads_of(partitions, weights)
    sums, heaviest = carried(after, loads).values(), max(loads.values(), default=0)
    assert max(sums) - min(sums) <= heaviest * (1 + EXACT)


@settings(max_examples=200)
@given(subscriptions, numbers, holders, measured, st.randoms(use_true_random=False))
def test_it_is_stable_and_blind_to_order(
    subscribed: dict[str, set[str]],
    counts: dict[str, int],
    holding: list[str | None],
    given_loads: list[float | None],
    shuffle: random.Random,
) -> None:
    """Its own result it leaves as it is, and the order of what it is given means nothing."""
    partitions = partitions_of(counts)
    before, weights = held(partitions, holding), weights_of(partitions, given_loads)
    after = run_allocator(weighted, subscribed, partitions, before, weights)
    assert run_allocator(weighted, subscribed, partitions, after.allocation, weights) == after
    shuffled = [dict(shuffle.sample(list(given.items()), len(given))) for given in (subscribed, before)]
    mixed = dict(shuffle.sample(list(weights.items()), len(weights)))
    order = shuffle.sample(partitions, len(partitions))
    assert run_allocator(weighted, shuffled[0], order, shuffled[1], mixed) == after


@settings(max_examples=200)
@given(subscriptions, numbers, holders, st.integers(0, 10**15) | st.none())
def test_where_all_weigh_the_same_it_is_the_sticky_one(
    subscribed: dict[str, set[str]], counts: dict[str, int], holding: list[str | None], load: int | None
) -> None:
    """With no loads at all, too: as equal as can be in number, with the fewest moves."""
    partitions = partitions_of(counts)
    before = held(partitions, holding)
    weights = weights_of(partitions, [load] * len(partitions))
    after = run_allocator(weighted, subscribed, partitions, before, weights)
    assert after == run_allocator(sticky, subscribed, partitions, before)


def test_hardly_more_moves_than_an_exhaustive_search_needs() -> None:
    """For loads as equal: over some hundred small groups a sixth more at most, and in nine of ten not one too many."""
    chance = random.Random(1)
    moved, fewest, groups = 0, 0, 300
    needless = 0
    for _ in range(groups):
        names = ["a", "b", "c"][: chance.randint(2, 3)]
        partitions = [TopicPartition("t", number) for number in range(chance.randint(2, 6))]
        loads = {partition: chance.randint(1, 30) for partition in partitions}
        before = held(partitions, [chance.choice([*names, "gone"]) for _ in partitions])
        subscribed = {name: {"t"} for name in names}
        after = run_allocator(weighted, subscribed, partitions, before, loads).allocation
        least = _fewest_moves(names, loads, before, _spread(after, loads))
        moved += moves(before, after, subscribed)
        fewest += least
        needless += moves(before, after, subscribed) > least
    assert moved <= fewest * 7 / 6
    assert needless <= groups / 10


def _spread(allocation: Allocation, loads: Loads) -> float:
    sums = carried(allocation, loads).values()
    return max(sums) - min(sums)


def _fewest_moves(names: list[str], loads: Loads, before: Allocation, spread: float) -> int:
    """To any allocation that is as equal."""
    subscribed = {name: {"t"} for name in names}
    every = (
        {name: frozenset(p for p, o in zip(loads, owners, strict=True) if o == name) for name in names}
        for owners in product(names, repeat=len(loads))
    )
    return min(moves(before, after, subscribed) for after in every if _spread(after, loads) <= spread)
