"""The sticky allocator against an exhaustive search, on groups small enough for one."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.allocators import run_allocator, sticky
from kiel_groups.model import Allocation, TopicPartition

pytestmark = pytest.mark.property

MEMBERS = ["a", "b", "c", "d"]
TOPICS = ["t", "u", "v"]

members = st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1)
numbers = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6), max_size=3)
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS)), min_size=1)
#: Who has a partition now, by the number of its place among all of them; "gone" is nobody any more.
holders = st.lists(st.sampled_from([*MEMBERS, "gone", None]), min_size=18, max_size=18)


def partitions_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]


def held(partitions: list[TopicPartition], holding: list[str | None]) -> dict[str, frozenset[TopicPartition]]:
    pairs = list(zip(partitions, holding, strict=False))
    return {name: frozenset(p for p, holder in pairs if holder == name) for name in {h for _, h in pairs if h}}


def moves(before: Allocation, after: Allocation, subscribed: Mapping[str, set[str]]) -> int:
    """How many partitions were taken from a member that might have kept them."""
    return sum(
        1
        for member, owned in before.items()
        for partition in owned
        if partition.topic in subscribed.get(member, ()) and partition not in after[member]
    )


def unevenness(allocation: Allocation) -> int:
    """Smallest where members are as equal as can be."""
    return sum(len(owned) ** 2 for owned in allocation.values())


def best(subscribed: Mapping[str, set[str]], partitions: list[TopicPartition], before: Allocation) -> tuple[int, int]:
    """The least unevenness there is, and the fewest moves to it: by trying all there is, one partition at a time."""
    names = sorted(subscribed)
    fewest = {(0,) * len(names): 0}
    for partition in partitions:
        eligible = [index for index, name in enumerate(names) if partition.topic in subscribed[name]]
        holder = next((index for index in eligible if partition in before.get(names[index], ())), None)
        after: dict[tuple[int, ...], int] = {} if eligible else fewest
        for sizes, cost in fewest.items() if eligible else ():
            for index in eligible:
                grown = (*sizes[:index], sizes[index] + 1, *sizes[index + 1 :])
                price = cost + (holder is not None and holder != index)
                after[grown] = min(price, after.get(grown, price))
        fewest = after
    return min((sum(size * size for size in sizes), cost) for sizes, cost in fewest.items())


@settings(max_examples=300)
@given(subscriptions, numbers, holders)
def test_nothing_is_more_equal_or_moves_less(
    subscribed: dict[str, set[str]], counts: dict[str, int], holding: list[str | None]
) -> None:
    """Whatever members subscribe to and had before; partitions with a subscriber are owned once."""
    partitions = partitions_of(counts)
    before = held(partitions, holding)
    after = run_allocator(sticky, subscribed, partitions, before).allocation
    assert (unevenness(after), moves(before, after, subscribed)) == best(subscribed, partitions, before)


@settings(max_examples=300)
@given(members, numbers, holders)
def test_nothing_as_equal_moves_less_where_all_subscribe_to_the_same(
    names: list[str], counts: dict[str, int], holding: list[str | None]
) -> None:
    """The number of moves is that of an exhaustive search."""
    partitions = partitions_of(counts)
    before = held(partitions, holding)
    subscribed = {name: set(TOPICS) for name in names}
    after = run_allocator(sticky, subscribed, partitions, before).allocation
    assert (unevenness(after), moves(before, after, subscribed)) == best(subscribed, partitions, before)


@settings(max_examples=200)
@given(subscriptions, numbers, holders, st.randoms(use_true_random=False))
def test_it_is_stable_and_blind_to_order(
    subscribed: dict[str, set[str]], counts: dict[str, int], holding: list[str | None], shuffle: random.Random
) -> None:
    """Its own result it leaves as it is, and the order of what it is given means nothing."""
    partitions = partitions_of(counts)
    before = held(partitions, holding)
    after = run_allocator(sticky, subscribed, partitions, before)
    assert run_allocator(sticky, subscribed, partitions, after.allocation) == after
    shuffled = [dict(shuffle.sample(list(given.items()), len(given))) for given in (subscribed, before)]
    mixed = shuffle.sample(partitions, len(partitions))
    assert run_allocator(sticky, shuffled[0], mixed, shuffled[1]) == after
