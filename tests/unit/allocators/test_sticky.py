"""The sticky allocator, case by case, and how allocators are chosen by name."""

from __future__ import annotations

import random

import pytest

from kiel_groups.allocators import (
    ALLOCATORS,
    allocator_of,
    fewest_moves,
    named_allocator,
    round_robin,
    run_allocator,
    sticky,
    weighted,
)
from kiel_groups.errors import ConfigError
from kiel_groups.model import Allocation, TopicPartition

pytestmark = pytest.mark.unit


def some(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def allocated(members: str, partitions: frozenset[TopicPartition], current: Allocation) -> Allocation:
    """What members "a b c" get, each subscribed to t and u."""
    subscribed = dict.fromkeys(members.split(), ("t", "u"))
    return run_allocator(sticky, subscribed, partitions, current).allocation


BEFORE = {"a": some(0, 2), "b": some(1, 3)}


@pytest.mark.parametrize(
    ("members", "partitions", "after"),
    [
        ("a b", 4, BEFORE),
        ("a b c", 4, {"a": some(0), "b": some(1, 3), "c": some(2)}),
        ("b", 4, {"b": some(0, 1, 2, 3)}),
        ("a b", 5, {"a": some(0, 2, 4), "b": some(1, 3)}),
        ("a b", 3, {"a": some(0, 2), "b": some(1)}),
        ("c d", 4, {"c": some(0, 2), "d": some(1, 3)}),
    ],
    ids=["nothing", "a join", "a leave", "a new partition", "one less", "others altogether"],
)
def test_a_change_moves_what_it_must(members: str, partitions: int, after: Allocation) -> None:
    """And nothing else."""
    assert allocated(members, some(*range(partitions)), BEFORE) == after


def test_a_partition_that_two_have_stays_with_one() -> None:
    """Slices may overlap while a publication is under way."""
    after = allocated("a b", some(0, 1), {"a": some(0, 1), "b": some(0, 1)})
    assert sorted(map(len, after.values())) == [1, 1]


def test_a_giver_gives_of_the_topic_of_which_it_has_most() -> None:
    """Topics are spread where that costs nothing."""
    mine = some(0, 1, 2, 3) | some(0, 1, topic="u")
    after = allocated("a b", mine, {"a": mine})
    assert {p.topic for p in after["b"]} == {"t", "u"}
    assert len(after["b"]) == 3


def test_a_chain_evens_out_what_no_single_move_can() -> None:
    """a may give to b alone, b to c: b passes one on and gets one."""
    subscribed = {"a": ["t"], "b": ["t", "u"], "c": ["u"]}
    current = {"a": some(0, 1), "b": some(0, topic="u"), "c": frozenset[TopicPartition]()}
    after = run_allocator(sticky, subscribed, some(0, 1) | some(0, topic="u"), current).allocation
    assert after == {"a": some(0), "b": some(1), "c": some(0, topic="u")}


def test_called_as_a_plain_function_it_deals_out_afresh() -> None:
    """Every member has an entry."""
    assert sticky(["b", "a", "c"], ["t:0", "t:1"]) == {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}
    assert sticky([], ["t:0"]) == {}


def test_a_large_group_is_allocated_within_seconds() -> None:
    """1,000 members, 100,000 partitions, one more member: a hundred move."""
    names = [f"m{number:04d}" for number in range(1_001)]
    everything = some(*range(100_000))
    before = run_allocator(sticky, dict.fromkeys(names[1:], ("t",)), everything).allocation
    after = run_allocator(sticky, dict.fromkeys(names, ("t",)), everything, before).allocation
    assert len(after[names[0]]) == 99
    assert sum(len(owned - before.get(name, frozenset())) for name, owned in after.items()) == 99


def test_who_subscribes_to_what_costs_no_move_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty members, each with some of ten topics: what is exchanged moves less, is as equal, and then stays."""
    chance = random.Random(1)
    topics = [f"t{number}" for number in range(10)]
    subscribed = {f"m{number:02d}": chance.sample(topics, chance.randint(2, 6)) for number in range(20)}
    everything = frozenset(TopicPartition(topic, number) for topic in topics for number in range(100))
    joiner = max(subscribed)
    others = {name: listed for name, listed in subscribed.items() if name != joiner}
    before = run_allocator(sticky, others, everything).allocation

    def moves(after: Allocation) -> int:
        return sum(len(before[name] - after[name]) for name in others)

    after = run_allocator(sticky, subscribed, everything, before).allocation
    assert run_allocator(sticky, subscribed, everything, after).allocation == after
    monkeypatch.setattr(fewest_moves, "MOST_EDGES", 0)
    monkeypatch.setattr(fewest_moves._Exchange, "apply_short_cycles", lambda _: False)
    unimproved = run_allocator(sticky, subscribed, everything, before).allocation
    assert sorted(map(len, after.values())) == sorted(map(len, unimproved.values()))
    assert moves(after) < moves(unimproved)


def test_names() -> None:
    """All allocators have one; nothing given is round robin, a function is itself."""
    assert dict(ALLOCATORS) == {"round_robin": round_robin, "sticky": sticky, "weighted": weighted}
    assert allocator_of(None, "x") is allocator_of("round_robin", "x") is round_robin
    assert allocator_of("sticky", "x") is allocator_of(sticky, "x") is sticky


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "stiky",
            "x: there is no allocator 'stiky'; expected one of round_robin, sticky, weighted; did you mean 'sticky'?",
        ),
        ("range", "x: there is no allocator 'range'; expected one of round_robin, sticky, weighted"),
        (3, "x: 3 given; expected a function, or one of round_robin, sticky, weighted"),
    ],
)
def test_names_that_are_none(given: object, told: str) -> None:
    """One line that says what there is."""
    with pytest.raises(ConfigError) as caught:
        allocator_of(given, "x")  # type: ignore[arg-type]
    assert str(caught.value) == told
    if isinstance(given, str):
        with pytest.raises(ConfigError):
            named_allocator(given, "x")
