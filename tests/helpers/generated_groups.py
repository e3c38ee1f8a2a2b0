"""Hypothesis strategies for groups that are small enough for an exhaustive search of their allocations."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from kiel_groups.model import Allocation, TopicPartition

__all__ = ["TOPICS", "members", "partition_counts", "subscriptions", "owners", "partitions_of", "owned", "moves"]

MEMBERS = ["a", "b", "c", "d"]
TOPICS = ["t", "u", "v"]

members = st.lists(st.sampled_from(MEMBERS), unique=True, min_size=1)
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6), max_size=3)
subscriptions = st.dictionaries(st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS)), min_size=1)
#: The current owner of each partition, by the partition's index. "gone" is a former member.
owners = st.lists(st.sampled_from([*MEMBERS, "gone", None]), min_size=18, max_size=18)


def partitions_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return all partitions of the topics in ``counts``, sorted."""
    return [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]


def owned(partitions: list[TopicPartition], present: list[str | None]) -> dict[str, frozenset[TopicPartition]]:
    """Return the partitions of each owner. ``present`` has one owner, or None, per partition."""
    pairs = list(zip(partitions, present, strict=False))
    names = {owner for _, owner in pairs if owner}
    return {name: frozenset(p for p, owner in pairs if owner == name) for name in names}


def moves(before: Allocation, after: Allocation, subscribed: Mapping[str, set[str]]) -> int:
    """Return the number of partitions that are taken from a member that still subscribes to their topics."""
    return sum(
        1
        for member, its in before.items()
        for partition in its
        if partition.topic in subscribed.get(member, ()) and partition not in after[member]
    )
