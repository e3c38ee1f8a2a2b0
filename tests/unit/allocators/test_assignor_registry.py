"""The choice of assignors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from kiel_groups.allocators import ALLOCATORS, range_allocator, sticky
from kiel_groups.allocators.assignors import (
    AllocatorAssignor,
    AssignorMember,
    assignors_of,
    range_assignor,
    roundrobin_assignor,
    with_capacity,
)
from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def mine(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
    return {}


class Own:
    """An assignor of an application."""

    def __init__(self, name: Any = "own") -> None:
        self.name = name

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        return None

    def assign(
        self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        return {}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ["range", "roundrobin"]),
        ("range", ["range"]),
        ("sticky", ["kiel-sticky"]),
        ("round_robin", ["kiel-round-robin"]),
        (sticky, ["kiel-sticky"]),
        (range_allocator, ["kiel-range"]),
        (mine, ["kiel-mine"]),
        (("roundrobin", "weighted", mine, Own()), ["roundrobin", "kiel-weighted", "kiel-mine", "own"]),
        (["range"], ["range"]),
    ],
    ids=["default", "java", "ours", "underscore", "object", "allocator", "function", "several", "list"],
)
def test_chosen_assignors(given: Any, names: list[str]) -> None:
    """
    Assignors are chosen by name, function or object, one or several. The default is that of kafka-python, and a choice
    replaces it.
    """
    assert [assignor.name for assignor in assignors_of(given)] == names


def test_names_of_java_mean_the_assignors_of_java() -> None:
    """The names ``range`` and ``roundrobin`` mean Java's assignors. An assignor object is used unchanged."""
    own = Own()
    assert assignors_of(("range", "roundrobin", own)) == (range_assignor, roundrobin_assignor, own)


NAMES = ", ".join([*ALLOCATORS, "roundrobin"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("stiky", f"x: there is no assignor 'stiky'; expected one of {NAMES}; did you mean 'sticky'?"),
        ((), f"x: none given; expected one or more of {NAMES}, or functions"),
        (3, f"x: 3 given; expected a function, an object with name, metadata and assign, or one of {NAMES}"),
        (Own, f"x: {Own!r} given; expected a function, an object with name, metadata and assign, or one of {NAMES}"),
        (("range", "range"), "x: the assignor 'range' is given twice; the members of a group agree on a name"),
        ((mine, mine), "x: the assignor 'kiel-mine' is given twice; the members of a group agree on a name"),
        (Own(""), "x: an assignor with the name '' given; expected a text"),
        (Own(None), "x: an assignor with the name None given; expected a text"),
    ],
    ids=["misspelt", "none", "number", "class", "twice", "same name", "empty name", "no name"],
)
def test_other_values_are_refused(given: Any, message: str) -> None:
    """Other values are refused with an error that says what is expected."""
    with pytest.raises(ConfigError) as caught:
        assignors_of(given, "x")
    assert str(caught.value) == message


def test_members_tell_their_capacity_to_allocators_that_use_it() -> None:
    """A member of three times the capacity gets three times the partitions; an unusable capacity is a finding."""
    (large,) = with_capacity(assignors_of("sticky"), 3.0)
    (usual,) = with_capacity(assignors_of("sticky"), 1.0)
    assert usual is assignors_of("sticky")[0]
    assert (large.metadata(["t"]), usual.metadata(["t"])) == (
        b'{"capacity":3.0,"owned":{},"version":1}',
        b'{"owned":{},"version":1}',
    )
    members = {name: AssignorMember(("t",), each.metadata(["t"])) for name, each in (("a", large), ("b", usual))}
    assigned = usual.assign(members, {"t": range(8)})
    assert {name: len(owned) for name, owned in assigned.items()} == {"a": 6, "b": 2}
    members["a"] = AssignorMember(("t",), b'{"capacity":-1,"owned":{},"version":1}')
    assert {name: len(owned) for name, owned in usual.assign(members, {"t": range(8)}).items()} == {"a": 4, "b": 4}
    assert isinstance(usual, AllocatorAssignor)
    assert "of member a: capacity: -1 given; expected a number" in usual.findings(members)[0]


@pytest.mark.parametrize("given", [None, "range", "round_robin"])
def test_a_capacity_without_effect_is_refused(given: str | None) -> None:
    """Of what the member offers, at least one has to use it."""
    with pytest.raises(
        ConfigError, match=r"^capacity: 2.0 given; .* only allocators such as 'sticky' use it, and this"
    ):
        with_capacity(assignors_of(given), 2.0)
