"""Laws of every assignor, for any members, subscriptions and partitions."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.allocators import GroupSpec, range_allocator, round_robin, run_allocator, sticky, weighted
from kiel_groups.allocators.assignors import (
    AllocatorAssignor,
    Assignor,
    AssignorMember,
    encode_member,
    parse_member,
    range_assignor,
    roundrobin_assignor,
    run_assignor,
)
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.property

ours = [AllocatorAssignor(allocator) for allocator in (round_robin, sticky, weighted, range_allocator)]
java = st.sampled_from([range_assignor, roundrobin_assignor])
names = st.text("ab:-.\uff5e\U0001f600", min_size=1, max_size=5)
topics = st.sampled_from(["t", "t-1", "u", "T", "missing"])
topic_lists = st.lists(topics, unique=True, max_size=4).map(tuple)
partition_sets = st.sets(st.builds(TopicPartition, topics, st.integers(0, 40)), max_size=20)
user_data = st.one_of(st.none(), st.binary(max_size=5), partition_sets.map(encode_member))
members = st.dictionaries(names, st.builds(AssignorMember, topic_lists, user_data), max_size=9)
counts = st.dictionaries(st.sampled_from(["t", "t-1", "u", "T"]), st.integers(0, 30))


def numbers(partition_counts: Mapping[str, int]) -> dict[str, range]:
    return {topic: range(count) for topic, count in partition_counts.items()}


@given(st.one_of(java, st.sampled_from(ours)), members, counts, st.randoms(use_true_random=False))
def test_each_partition_of_a_subscribed_topic_has_one_owner(
    assignor: Assignor, group: dict[str, AssignorMember], partition_counts: dict[str, int], shuffle: random.Random
) -> None:
    """
    Each partition of a topic with a subscriber is assigned once, to a subscriber. The order of members and topics does
    not matter.
    """
    outcome = run_assignor(assignor, group, numbers(partition_counts))
    assert outcome.assignment.keys() == group.keys()
    assigned = [partition for owned in outcome.assignment.values() for partition in owned]
    wanted = {topic for its in group.values() for topic in its.topics}
    existing = {TopicPartition(topic, n) for topic, count in partition_counts.items() for n in range(count)}
    assert len(assigned) == len(set(assigned))
    assert set(assigned) == {partition for partition in existing if partition.topic in wanted}
    assert all(p.topic in group[member].topics for member, owned in outcome.assignment.items() for p in owned)
    mixed_group = dict(shuffle.sample(list(group.items()), len(group)))
    mixed_counts = dict(shuffle.sample(list(partition_counts.items()), len(partition_counts)))
    assert run_assignor(assignor, mixed_group, numbers(mixed_counts)) == outcome


@given(members, counts)
def test_range_is_balanced_within_each_topic(
    group: dict[str, AssignorMember], partition_counts: dict[str, int]
) -> None:
    """Under Java's range, subscribers of a topic own consecutive numbers of it, and differ by at most one partition."""
    assignment = run_assignor(range_assignor, group, numbers(partition_counts)).assignment
    for topic in partition_counts:
        owned = [
            [partition.partition for partition in assignment[member] if partition.topic == topic]
            for member, its in group.items()
            if topic in its.topics
        ]
        sizes = [len(its) for its in owned]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert all(its == list(range(its[0], its[0] + len(its))) for its in owned if its)


@given(st.sets(names, max_size=9), topic_lists, counts)
def test_roundrobin_is_balanced_for_equal_subscriptions(
    group: set[str], subscription: tuple[str, ...], partition_counts: dict[str, int]
) -> None:
    """Under Java's round robin, members with equal subscriptions differ by at most one partition in all."""
    subscriptions = dict.fromkeys(group, AssignorMember(subscription))
    assignment = run_assignor(roundrobin_assignor, subscriptions, numbers(partition_counts)).assignment
    sizes = [len(its) for its in assignment.values()]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(st.dictionaries(names, st.builds(AssignorMember, topic_lists, partition_sets.map(encode_member))), counts)
def test_allocators_decide_as_in_other_groups(
    group: dict[str, AssignorMember], partition_counts: dict[str, int]
) -> None:
    """As an assignor, the sticky allocator decides as in a ZooKeeper-coordinated group with the same owners."""
    assignor = AllocatorAssignor(sticky)
    current = {member: parse_member(its.user_data).owned for member, its in group.items()}
    existing = [TopicPartition(topic, n) for topic, count in partition_counts.items() for n in range(count)]
    expected = run_allocator(
        sticky, GroupSpec.of({member: its.topics for member, its in group.items()}, existing, current)
    )
    outcome = run_assignor(assignor, group, numbers(partition_counts))
    assert {member: frozenset(owned) for member, owned in outcome.assignment.items()} == expected.allocation


@given(partition_sets)
def test_user_data_is_read_as_it_was_written(owned: set[TopicPartition]) -> None:
    """The partitions in the user data are those that were encoded."""
    assert parse_member(encode_member(owned)).owned == owned
