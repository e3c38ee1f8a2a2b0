"""The weighted allocator, case by case, and how allocators are told of weights."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from kiel_groups.allocators import WeighingAllocator, loads_of, run_allocator, weighted
from kiel_groups.errors import AllocatorError
from kiel_groups.model import Allocation, TopicPartition

pytestmark = pytest.mark.unit


def some(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def allocated(members: str, loads: list[float], current: Allocation) -> Allocation:
    """What members "a b c" get of a topic whose partitions weigh so much."""
    weights = {TopicPartition("t", number): load for number, load in enumerate(loads)}
    return run_allocator(weighted, dict.fromkeys(members.split(), ("t",)), list(weights), current, weights).allocation


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
    ids=["afresh", "even", "changed loads", "nearly even", "not worth a move", "a leave", "idle ones"],
)
def test_loads_are_made_equal(members: str, loads: list[float], before: Allocation, after: Allocation) -> None:
    """And nothing moves where they nearly are."""
    assert allocated(members, loads, before) == after


def among_topics(subscribed: dict[str, str], loads: dict[str, float], current: dict[str, str]) -> dict[str, str]:
    """Who gets what, and has it now, by names such as "t:0 u:1"; topics are letters."""
    weights = {TopicPartition.parse(text): load for text, load in loads.items()}
    before = {name: frozenset(map(TopicPartition.parse, owned.split())) for name, owned in current.items()}
    after = run_allocator(weighted, subscribed, list(weights), before, weights).allocation
    return {name: " ".join(map(str, sorted(owned))) for name, owned in after.items()}


def test_what_one_topic_evens_out_goes_on_in_the_next() -> None:
    """b gives to c of u, and then has room for a part of t that a may give to it."""
    subscribed = {"a": "t", "b": "tu", "c": "u"}
    loads = dict.fromkeys(["t:0", "t:1", "t:2", "t:3", "u:0", "u:1", "u:2"], 10) | {"u:3": 9}
    before = {"a": "t:0 t:1 t:2 t:3", "b": "u:0 u:1 u:2 u:3"}
    assert len(among_topics(subscribed, loads, before)["a"].split()) == 3


def test_what_is_moved_already_is_moved_first() -> None:
    """a got t:2 and then had too much: it passes that on, and keeps what it had, though t:0 would even out more."""
    subscribed = {"a": "tu", "b": "t", "c": "u"}
    loads = {"t:0": 8, "t:1": 21, "t:2": 5, "t:3": 12, "u:0": 10, "u:1": 80}
    before = {"a": "t:0 t:3", "b": "t:1", "c": "u:1"}
    assert among_topics(subscribed, loads, before) == {"a": "t:0 t:3 u:0", "b": "t:1 t:2", "c": "u:1"}


def test_a_partition_of_unknown_load_counts_as_the_median() -> None:
    """Of the known ones that there are; without any all count one."""
    weights = {TopicPartition("t", 0): 1, TopicPartition("t", 1): 7, TopicPartition("t", 2): 9}
    assert loads_of(some(0, 1, 3), {**weights, TopicPartition("gone", 0): 99})[TopicPartition("t", 3)] == 4
    assert loads_of(some(0, 1), {TopicPartition("gone", 0): 99}) == dict.fromkeys(some(0, 1), 1)


def test_called_as_a_plain_function_it_deals_out_by_what_it_knows() -> None:
    """Every member has an entry."""
    assert weighted(["b", "a", "c"], ["t:0", "t:1"]) == {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}
    knowing = weighted.weighing({TopicPartition("t", 0): 3, TopicPartition("t", 1): 1})
    assert knowing(["a", "b"], ["t:0", "t:1", "t:2"]) == {"a": {"t": [0]}, "b": {"t": [1, 2]}}
    assert weighted([], ["t:0"]) == {}


def test_a_plain_function_is_told_nothing_of_weights() -> None:
    """Two arguments are all it takes."""

    def mine(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        return {members[0]: {"t": [int(text[2:]) for text in partitions]}}

    after = run_allocator(mine, {"a": ["t"]}, some(0, 1), None, {TopicPartition("t", 0): 5}).allocation
    assert after == {"a": some(0, 1)}
    assert not isinstance(mine, WeighingAllocator)


class Mine:
    """A user's allocator that looks at weights, with a mistake in it."""

    __name__ = "mine"

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def __call__(self, members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        raise AssertionError("it offers more than that")

    def weighing(self, weights: Mapping[TopicPartition, float]) -> object:
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "allocator mine: its weighing returned 'NoneType'; expected an object with allocate"),
        (KeyError("x"), "allocator mine: it raised KeyError: 'x'"),
    ],
)
def test_one_that_fails_to_look_at_weights_is_told_of(returned: object, told: str) -> None:
    """In one line, as any other mistake of an allocator's."""
    with pytest.raises(AllocatorError) as caught:
        run_allocator(Mine(returned), {"a": ["t"]}, some(0))
    assert str(caught.value) == told


def test_a_large_group_is_allocated_within_seconds() -> None:
    """1,000 members, 100,000 partitions, one more member: nothing moves but what it gets."""
    chance = random.Random(1)
    names = [f"m{number:04d}" for number in range(1_001)]
    weights = {TopicPartition("t", number): chance.uniform(1, 100) for number in range(100_000)}
    before = run_allocator(weighted, dict.fromkeys(names[1:], ("t",)), list(weights), None, weights).allocation
    everybody = dict.fromkeys(names, ("t",))
    after = run_allocator(weighted, everybody, list(weights), before, weights).allocation
    sums = [sum(weights[partition] for partition in owned) for owned in after.values()]
    assert max(sums) - min(sums) <= 100
    assert sum(len(before[name] - after[name]) for name in names[1:]) == len(after[names[0]]) < 150
