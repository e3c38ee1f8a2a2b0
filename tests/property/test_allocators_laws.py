"""Laws of every allocation, for any members, subscriptions and partitions."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.allocators import Allocator, GroupSpec, range_allocator, round_robin, run_allocator
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.property

names = st.text("ab:-_.19", min_size=1, max_size=6)
topics = st.sampled_from(["t", "t-1", "t.1", "u", "t1", "T"])
member_lists = st.lists(names, unique=True, max_size=9)
partition_sets = st.sets(st.builds(TopicPartition, topics, st.integers(0, 40)), max_size=60)
subscriptions = st.dictionaries(names, st.sets(topics, max_size=4), max_size=9)


def plain(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
    """Allocate as a user's plain function does, which has none of the adapter's optional methods."""
    return round_robin(members, partitions)


allocators = st.sampled_from([None, plain])


@given(member_lists, partition_sets, st.randoms(use_true_random=False))
def test_round_robin_is_complete_and_balanced_and_independent_of_order(
    members: list[str], partitions: set[TopicPartition], shuffle: random.Random
) -> None:
    """
    Round robin assigns each partition once, its members differ by at most one partition, and the order of the input
    does not matter.
    """
    texts = sorted(map(str, partitions))
    owned = round_robin(sorted(members), texts)
    assigned = [f"{topic}:{n}" for its in owned.values() for topic, numbers in its.items() for n in numbers]
    assert sorted(assigned) == (texts if members else [])
    counts = [sum(map(len, its.values())) for its in owned.values()]
    assert max(counts, default=0) - min(counts, default=0) <= 1
    shuffle.shuffle(members)
    shuffle.shuffle(texts)
    assert round_robin(members, texts) == owned


@given(
    st.one_of(allocators, st.just(range_allocator)), subscriptions, partition_sets, st.randoms(use_true_random=False)
)
def test_each_partition_has_one_subscriber_as_its_owner(
    allocator: Allocator | None,
    members: dict[str, set[str]],
    partitions: set[TopicPartition],
    shuffle: random.Random,
) -> None:
    """
    Each partition has one of its topic's subscribers as its owner. It is unassigned only if no member subscribes to the
    topic. The order of the input does not matter.
    """
    outcome = run_allocator(allocator, GroupSpec.of(members, partitions))
    assert outcome.allocation.keys() == members.keys()
    owned = [partition for given in outcome.allocation.values() for partition in given]
    assert len(owned) == len(set(owned))
    assert set(owned) | outcome.unassigned.keys() == partitions
    assert not set(owned) & outcome.unassigned.keys()
    assert all(p.topic in members[member] for member, given in outcome.allocation.items() for p in given)
    wanted = set[str]().union(*members.values())
    assert all(partition.topic not in wanted for partition in outcome.unassigned)
    reordered = list(members.items())
    shuffle.shuffle(reordered)
    assert run_allocator(allocator, GroupSpec.of(dict(reordered), shuffled(partitions, shuffle))) == outcome


def shuffled(partitions: Collection[TopicPartition], shuffle: random.Random) -> list[TopicPartition]:
    """Return the partitions in a random order."""
    return shuffle.sample(sorted(partitions), len(partitions))


@given(allocators, member_lists, st.sets(topics), partition_sets)
def test_equal_subscriptions_are_balanced(
    allocator: Allocator | None, members: list[str], subscription: set[str], partitions: set[TopicPartition]
) -> None:
    """
    With equal subscriptions, members differ by at most one partition, and a plain round robin gives the same result as
    the default.
    """
    outcome = run_allocator(allocator, GroupSpec.of(dict.fromkeys(members, subscription), partitions))
    counts = [len(given) for given in outcome.allocation.values()]
    assert max(counts, default=0) - min(counts, default=0) <= 1
    assert outcome == run_allocator(None, GroupSpec.of(dict.fromkeys(members, subscription), partitions))


@given(subscriptions, partition_sets)
def test_members_of_one_subscription_are_balanced_by_the_default(
    members: dict[str, set[str]], partitions: set[TopicPartition]
) -> None:
    """
    Members with the same subscription differ by at most one partition under the default allocator, whatever other
    members subscribe to.
    """
    existing = {partition.topic for partition in partitions}
    outcome = run_allocator(None, GroupSpec.of(members, partitions))
    for one, one_topics in members.items():
        for other, other_topics in members.items():
            if one_topics & existing == other_topics & existing:
                assert abs(len(outcome.allocation[one]) - len(outcome.allocation[other])) <= 1
