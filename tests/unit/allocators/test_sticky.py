"""The sticky allocator, and the names of allocators."""

from __future__ import annotations

import random
from importlib import import_module

import pytest

from kiel_groups.allocators import (
    ALLOCATORS,
    GroupSpec,
    allocator_name,
    allocator_of,
    named_allocator,
    round_robin,
    run_allocator,
    sticky,
)
from kiel_groups.errors import ConfigError
from kiel_groups.model import Allocation, TopicPartition

pytestmark = pytest.mark.unit

#: The package has the allocator under the module's name.
fewest_moves = import_module("kiel_groups.allocators.sticky")


def some(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def allocated(members: str, partitions: frozenset[TopicPartition], current: Allocation) -> Allocation:
    """Return the allocation of members such as "a b c", which subscribe to t and u."""
    subscribed = dict.fromkeys(members.split(), ("t", "u"))
    return run_allocator(sticky, GroupSpec.of(subscribed, partitions, current)).allocation


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
    ids=["nothing", "a join", "a leave", "a new partition", "one less", "other members"],
)
def test_only_partitions_that_must_move_are_moved(members: str, partitions: int, after: Allocation) -> None:
    """The sticky allocator moves only partitions that have to move. All other partitions stay with their members."""
    assert allocated(members, some(*range(partitions)), BEFORE) == after


def test_a_partition_of_two_members_stays_with_one() -> None:
    """A partition that two members own stays with one of them. Assignments may overlap during a publication."""
    after = allocated("a b", some(0, 1), {"a": some(0, 1), "b": some(0, 1)})
    assert sorted(map(len, after.values())) == [1, 1]


def test_partitions_move_from_the_topic_of_which_a_member_has_most() -> None:
    """
    Partitions move from the topic of which a member owns most. So each topic is spread over the members if that needs
    no further move.
    """
    mine = some(0, 1, 2, 3) | some(0, 1, topic="u")
    after = allocated("a b", mine, {"a": mine})
    assert {p.topic for p in after["b"]} == {"t", "u"}
    assert len(after["b"]) == 3


def test_a_chain_of_moves_balances_where_no_single_move_can() -> None:
    """
    Members a and b share one topic, b and c another topic. To balance them, b gives one partition to c and gets one
    from a.
    """
    subscribed = {"a": ["t"], "b": ["t", "u"], "c": ["u"]}
    current = {"a": some(0, 1), "b": some(0, topic="u"), "c": frozenset[TopicPartition]()}
    after = run_allocator(sticky, GroupSpec.of(subscribed, some(0, 1) | some(0, topic="u"), current)).allocation
    assert after == {"a": some(0), "b": some(1), "c": some(0, topic="u")}


def test_a_direct_call_allocates_without_a_previous_allocation() -> None:
    """A direct call of the sticky allocator assumes no previous allocation, and returns an entry for each member."""
    assert sticky(["b", "a", "c"], ["t:0", "t:1"]) == {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}
    assert sticky([], ["t:0"]) == {}


def test_a_large_group_is_allocated_within_seconds() -> None:
    """
    When a member joins 1,000 others with 100,000 partitions, only the 99 partitions that the new member gets are moved.
    """
    names = [f"m{number:04d}" for number in range(1_001)]
    all_partitions = some(*range(100_000))
    before = run_allocator(sticky, GroupSpec.of(dict.fromkeys(names[1:], ("t",)), all_partitions)).allocation
    after = run_allocator(sticky, GroupSpec.of(dict.fromkeys(names, ("t",)), all_partitions, before)).allocation
    assert len(after[names[0]]) == 99
    assert sum(len(owned - before.get(name, frozenset())) for name, owned in after.items()) == 99


def test_mixed_subscriptions_cause_no_needless_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Twenty members subscribe to some of ten topics. Exchanges of partitions reduce the moves, and the result is as
    balanced as without exchanges. The allocator does not change its own result.
    """
    chance = random.Random(1)
    topics = [f"t{number}" for number in range(10)]
    subscribed = {f"m{number:02d}": chance.sample(topics, chance.randint(2, 6)) for number in range(20)}
    all_partitions = frozenset(TopicPartition(topic, number) for topic in topics for number in range(100))
    joiner = max(subscribed)
    others = {name: listed for name, listed in subscribed.items() if name != joiner}
    before = run_allocator(sticky, GroupSpec.of(others, all_partitions)).allocation

    def moves(after: Allocation) -> int:
        return sum(len(before[name] - after[name]) for name in others)

    after = run_allocator(sticky, GroupSpec.of(subscribed, all_partitions, before)).allocation
    assert run_allocator(sticky, GroupSpec.of(subscribed, all_partitions, after)).allocation == after
    monkeypatch.setattr(fewest_moves, "MOST_EDGES", 0)
    monkeypatch.setattr(fewest_moves._Exchange, "apply_short_cycles", lambda _: False)
    unimproved = run_allocator(sticky, GroupSpec.of(subscribed, all_partitions, before)).allocation
    assert sorted(map(len, after.values())) == sorted(map(len, unimproved.values()))
    assert moves(after) < moves(unimproved)


def test_names() -> None:
    """Each included allocator has a name. None selects round robin, and a function is used unchanged."""
    assert {name: allocator_name(allocator) for name, allocator in ALLOCATORS.items()} == {
        name: name for name in ALLOCATORS
    }
    assert allocator_of(None, "x") is allocator_of("round_robin", "x") is round_robin
    assert allocator_of("sticky", "x") is allocator_of(sticky, "x") is sticky


NAMES = ", ".join(ALLOCATORS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stiky", f"x: there is no allocator 'stiky'; expected one of {NAMES}; did you mean 'sticky'?"),
        ("nearest", f"x: there is no allocator 'nearest'; expected one of {NAMES}"),
        (3, f"x: 3 given; expected a function, or one of {NAMES}"),
    ],
)
def test_unknown_names_are_refused(given: object, message: str) -> None:
    """An unknown allocator is refused with an error that lists the known names, and suggests a similar one."""
    with pytest.raises(ConfigError) as caught:
        allocator_of(given, "x")  # type: ignore[arg-type]
    assert str(caught.value) == message
    if isinstance(given, str):
        with pytest.raises(ConfigError):
            named_allocator(given, "x")
