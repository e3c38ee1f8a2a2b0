"""The choice of assignors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from kiel_groups.allocators import ALLOCATORS, range_allocator, sticky
from kiel_groups.allocators.assignors import AssignorMember, assignors_of, range_assignor, roundrobin_assignor
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
