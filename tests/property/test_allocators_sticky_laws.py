"""The sticky allocator, compared with an exhaustive search on small groups."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.allocators import GroupSpec, run_allocator, sticky
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


def unevenness(allocation: Allocation) -> int:
    """Return a number that is smallest for the most even allocation."""
    return sum(len(its) ** 2 for its in allocation.values())


def best(subscribed: Mapping[str, set[str]], partitions: list[TopicPartition], before: Allocation) -> tuple[int, int]:
    """Return the least unevenness, and the fewest moves to reach it, by trying each owner of each partition."""
    names = sorted(subscribed)
    fewest = {(0,) * len(names): 0}
    for partition in partitions:
        eligible = [index for index, name in enumerate(names) if partition.topic in subscribed[name]]
        owner = next((index for index in eligible if partition in before.get(names[index], ())), None)
        after: dict[tuple[int, ...], int] = {} if eligible else fewest
        for sizes, cost in fewest.items() if eligible else ():
            for index in eligible:
                grown = (*sizes[:index], sizes[index] + 1, *sizes[index + 1 :])
                price = cost + (owner is not None and owner != index)
                after[grown] = min(price, after.get(grown, price))
        fewest = after
    return min((sum(size * size for size in sizes), cost) for sizes, cost in fewest.items())


@settings(max_examples=examples(300))
@given(subscriptions, partition_counts, owners)
def test_no_allocation_is_more_even_or_moves_less(
    subscribed: dict[str, set[str]], counts: dict[str, int], present: list[str | None]
) -> None:
    """
    For any subscriptions and current owners, the sticky allocator's result is as even as that of an exhaustive search,
    with as few moves.
    """
    partitions = partitions_of(counts)
    before = owned(partitions, present)
    after = run_allocator(sticky, GroupSpec.of(subscribed, partitions, before)).allocation
    assert (unevenness(after), moves(before, after, subscribed)) == best(subscribed, partitions, before)


@settings(max_examples=examples(300))
@given(members, partition_counts, owners)
def test_no_allocation_for_equal_subscriptions_moves_less(
    names: list[str], counts: dict[str, int], present: list[str | None]
) -> None:
    """
    For equal subscriptions, the sticky allocator's result is as even as that of an exhaustive search, with as few
    moves.
    """
    partitions = partitions_of(counts)
    before = owned(partitions, present)
    subscribed = {name: set(TOPICS) for name in names}
    after = run_allocator(sticky, GroupSpec.of(subscribed, partitions, before)).allocation
    assert (unevenness(after), moves(before, after, subscribed)) == best(subscribed, partitions, before)


@settings(max_examples=examples(200))
@given(subscriptions, partition_counts, owners, st.randoms(use_true_random=False))
def test_results_are_stable_and_independent_of_order(
    subscribed: dict[str, set[str]], counts: dict[str, int], present: list[str | None], shuffle: random.Random
) -> None:
    """The sticky allocator does not change its own result, and the order of the input does not matter."""
    partitions = partitions_of(counts)
    before = owned(partitions, present)
    after = run_allocator(sticky, GroupSpec.of(subscribed, partitions, before))
    assert run_allocator(sticky, GroupSpec.of(subscribed, partitions, after.allocation)) == after
    shuffled = [dict(shuffle.sample(list(given.items()), len(given))) for given in (subscribed, before)]
    mixed = shuffle.sample(partitions, len(partitions))
    assert run_allocator(sticky, GroupSpec.of(shuffled[0], mixed, shuffled[1])) == after
