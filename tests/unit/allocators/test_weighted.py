"""The weighted allocator, and how allocators get weights."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kiel_groups.allocators import GroupSpec, MemberSpec, PartitionSpec, loads_of, run_allocator, weighted
from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, TopicPartition

pytestmark = pytest.mark.unit


def some(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def allocated(members: str, loads: list[float], current: Allocation) -> Allocation:
    """Return the allocation of members such as "a b c", for a topic whose partitions have these loads."""
    weights = {TopicPartition("t", number): load for number, load in enumerate(loads)}
    return run_allocator(
        weighted, GroupSpec.of(dict.fromkeys(members.split(), ("t",)), list(weights), current, weights)
    ).allocation


@pytest.mark.parametrize(
    ("members", "loads", "before", "after"),
    [
        ("a b", [9, 3, 3, 3], {}, {"a": some(0), "b": some(1, 2, 3)}),
        ("a b", [9, 3, 3, 3], {"a": some(1, 2, 3), "b": some(0)}, {"a": some(1, 2, 3), "b": some(0)}),
        ("a b", [9, 3, 3, 3], {"a": some(0, 1), "b": some(2, 3)}, {"a": some(0), "b": some(1, 2, 3)}),
        ("a b", [50, 51, 50, 51], {"a": some(1, 3), "b": some(0, 2)}, {"a": some(1, 3), "b": some(0, 2)}),
        ("a b", [100, 1, 1, 100], {"a": some(0, 1, 2), "b": some(3)}, {"a": some(0, 1, 2), "b": some(3)}),
        ("b", [1, 2], {"a": some(0, 1)}, {"b": some(0, 1)}),
        ("a b c", [0, 0, 5], {}, {"a": some(2), "b": some(0), "c": some(1)}),
    ],
    ids=[
        "first allocation",
        "even",
        "changed loads",
        "nearly even",
        "a move would not help",
        "a leave",
        "partitions without load",
    ],
)
def test_loads_are_balanced(members: str, loads: list[float], before: Allocation, after: Allocation) -> None:
    """The weighted allocator balances the loads of the members. No partition moves if the loads are nearly balanced."""
    assert allocated(members, loads, before) == after


def test_the_moves_of_a_plan_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that would need more moves ends after the bound; the next plan goes on from there."""
    monkeypatch.setattr("kiel_groups.allocators.by_load.MOST_MOVES", 2)
    loads = [2.0, *[1.0] * 7]
    after = allocated("a b", loads, {"a": some(*range(8)), "b": some()})
    assert len(after["b"]) == 2
    assert sum(loads[each.partition] for each in allocated("a b", loads, after)["b"]) == 4.0


def among_topics(subscribed: dict[str, str], loads: dict[str, float], current: dict[str, str]) -> dict[str, str]:
    """Return the allocation for names such as "t:0 u:1"; topics are letters."""
    weights = {TopicPartition.parse(text): load for text, load in loads.items()}
    before = {name: frozenset(map(TopicPartition.parse, owned.split())) for name, owned in current.items()}
    after = run_allocator(weighted, GroupSpec.of(subscribed, list(weights), before, weights)).allocation
    return {name: " ".join(map(str, sorted(owned))) for name, owned in after.items()}


def test_a_move_in_one_topic_allows_another_in_the_next() -> None:
    """Member b gives a partition of u to c, so b can then get a partition of t from a."""
    subscribed = {"a": "t", "b": "tu", "c": "u"}
    loads = dict.fromkeys(["t:0", "t:1", "t:2", "t:3", "u:0", "u:1", "u:2"], 10) | {"u:3": 9}
    before = {"a": "t:0 t:1 t:2 t:3", "b": "u:0 u:1 u:2 u:3"}
    assert len(among_topics(subscribed, loads, before)["a"].split()) == 3


def test_a_partition_that_has_moved_is_moved_again_first() -> None:
    """
    A member with too much load gives up a partition that it has just got, instead of one that it owned before. Here
    member a gives up t:2 instead of t:0, although t:0 would balance better.
    """
    subscribed = {"a": "tu", "b": "t", "c": "u"}
    loads = {"t:0": 8, "t:1": 21, "t:2": 5, "t:3": 12, "u:0": 10, "u:1": 80}
    before = {"a": "t:0 t:3", "b": "t:1", "c": "u:1"}
    assert among_topics(subscribed, loads, before) == {"a": "t:0 t:3 u:0", "b": "t:1 t:2", "c": "u:1"}


def test_a_partition_of_unknown_load_counts_as_the_median() -> None:
    """
    A partition of unknown load counts as the median of the known loads of the allocated partitions. If no load is
    known, each partition counts one.
    """
    weights = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 7, TopicPartition("t", 2): 9}
    assert loads_of(some(0, 1, 3), {**weights, TopicPartition("deleted", 0): 99})[TopicPartition("t", 3)] == 4
    assert loads_of(some(0, 1), {TopicPartition("deleted", 0): 99}) == dict.fromkeys(some(0, 1), 1)


def test_a_direct_call_counts_each_partition_as_one() -> None:
    """A direct call of the weighted allocator knows no weights. It returns an entry for each member."""
    assert weighted(["b", "a", "c"], ["t:0", "t:1"]) == {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}
    assert weighted([], ["t:0"]) == {}


def test_a_plain_function_gets_no_weights() -> None:
    """A plain function gets only members and partitions, even if the group has weights."""

    def mine(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        return {members[0]: {"t": [int(text[2:]) for text in partitions]}}

    after = run_allocator(mine, GroupSpec.of({"a": ["t"]}, some(0, 1), {}, {TopicPartition("t", 0): 5})).allocation
    assert after == {"a": some(0, 1)}


class Mine:
    """A user's allocator that sees the whole group."""

    __name__ = "mine"

    def __init__(self, returned: Mapping[str, Mapping[str, list[int]]] | Exception) -> None:
        self.returned = returned
        self.group: GroupSpec | None = None

    def __call__(self, members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        raise AssertionError("its allocate() is to be called")

    def allocate(self, group: GroupSpec) -> Mapping[str, Mapping[str, list[int]]]:
        self.group = group
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


def test_an_allocator_with_allocate_gets_the_whole_group() -> None:
    """It is called once, with all that is known of members and partitions."""
    group = GroupSpec(
        {"a": MemberSpec(frozenset({"t"}), 2, "east", some(0))},
        {TopicPartition("t", 0): PartitionSpec(weight=3, lag=7, rack="west")},
    )
    mine = Mine({"a": {"t": [0]}})
    assert run_allocator(mine, group).allocation == {"a": some(0)}
    assert mine.group is group


def test_an_exception_of_allocate_is_an_allocator_error() -> None:
    """If ``allocate`` raises an exception, an AllocatorError of one line is raised."""
    with pytest.raises(AllocatorError) as caught:
        run_allocator(Mine(KeyError("x")), GroupSpec.of({"a": ["t"]}, some(0)))
    assert str(caught.value) == "allocator mine: it raised KeyError: 'x'"


def test_a_large_group_is_allocated_within_seconds() -> None:
    """
    When a member joins 1,000 others with 100,000 partitions, only the partitions that the new member gets are moved.
    """
    chance = random.Random(1)
    names = [f"m{number:04d}" for number in range(1_001)]
    weights = {TopicPartition("t", number): chance.uniform(1, 100) for number in range(100_000)}
    before = run_allocator(
        weighted, GroupSpec.of(dict.fromkeys(names[1:], ("t",)), list(weights), {}, weights)
    ).allocation
    all_members = dict.fromkeys(names, ("t",))
    after = run_allocator(weighted, GroupSpec.of(all_members, list(weights), before, weights)).allocation
    sums = [sum(weights[partition] for partition in owned) for owned in after.values()]
    assert max(sums) - min(sums) <= 100
    assert sum(len(before[name] - after[name]) for name in names[1:]) == len(after[names[0]]) < 150
