"""The range allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from kiel_groups.allocators import GroupSpec, allocator_name, range_allocator, run_allocator
from kiel_groups.allocators.contiguous_ranges import ranges
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("members", "count", "divided"),
    [
        ("a", 3, {"a": [0, 1, 2]}),
        ("ab", 3, {"a": [0, 1], "b": [2]}),
        ("abc", 10, {"a": [0, 1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}),
        ("abc", 2, {"a": [0], "b": [1], "c": []}),
        ("ab", 0, {"a": [], "b": []}),
    ],
)
def test_the_first_members_get_one_partition_more(
    members: str, count: int, divided: Mapping[str, Sequence[int]]
) -> None:
    """Each member gets the same number of consecutive partitions, and the first members one more if some remain."""
    assert {member: list(numbers) for member, numbers in ranges(members, range(count))} == divided


def test_each_topic_is_divided_on_its_own() -> None:
    """The first member gets the larger part of each topic. Partitions are sorted as numbers."""
    partitions = ["t:10", "t:9", "t:2", "u:0"]
    assert range_allocator(["b", "a"], partitions) == {"a": {"t": [2, 9], "u": [0]}, "b": {"t": [10]}}


def test_members_are_sorted_as_threads_of_consumers() -> None:
    """The members ``a`` and ``a-`` are sorted as ``a-0`` and ``a--0``, as Kafka 0.8 sorts threads of consumers."""
    assert range_allocator(["a", "a-"], ["t:0"]) == {"a-": {"t": [0]}, "a": {}}


@pytest.mark.parametrize(("members", "given"), [([], ["t:0"]), ([], []), (["a"], [])])
def test_no_members_or_partitions(members: list[str], given: list[str]) -> None:
    """The range allocator accepts an empty list of members or of partitions."""
    assert range_allocator(members, given) == {member: {} for member in members}


def test_only_subscribers_of_a_topic_share_it() -> None:
    """Members that do not subscribe to a topic do not count in its division."""
    partitions = [TopicPartition(topic, number) for topic in "tu" for number in range(3)]
    outcome = run_allocator(range_allocator, GroupSpec.of({"a": ["u"], "b": ["t", "u"], "c": ["t"]}, partitions))
    assert {member: sorted(map(str, its)) for member, its in outcome.allocation.items()} == {
        "a": ["u:0", "u:1"],
        "b": ["t:0", "t:1", "u:2"],
        "c": ["t:2"],
    }


def test_its_name_is_range() -> None:
    """Logs and the group state call the allocator ``range``."""
    assert allocator_name(range_allocator) == "range"
