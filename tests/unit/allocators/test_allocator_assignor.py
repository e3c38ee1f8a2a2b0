"""Allocators as assignors: their names, their user data, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kiel_groups.allocators import range_allocator, round_robin, sticky, weighted
from kiel_groups.allocators.adapter import Allocator
from kiel_groups.allocators.assignors import AllocatorAssignor, AssignorMember, run_assignor
from kiel_groups.errors import AllocatorError, ConfigError
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def some(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def Größtes_Team__2(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
    return {members[-1]: {"t": [int(text.rpartition(":")[2]) for text in partitions]}}


@pytest.mark.parametrize(
    ("allocator", "name"),
    [
        (round_robin, "kiel-round-robin"),
        (sticky, "kiel-sticky"),
        (weighted, "kiel-weighted"),
        (range_allocator, "kiel-range"),
        (Größtes_Team__2, "kiel-gr-tes-team-2"),
        (lambda members, partitions: {}, "kiel-lambda"),
    ],
)
def test_the_name_of_an_assignor_is_that_of_its_function(allocator: Allocator, name: str) -> None:
    """An allocator is offered by its name after ``kiel-``, in lower case and with hyphens for all other characters."""
    assert AllocatorAssignor(allocator).name == name


def test_a_name_without_letters_is_refused() -> None:
    """A function without a letter or a digit in its name cannot be offered."""

    def _(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, list[int]]]:
        return {}

    with pytest.raises(ConfigError) as caught:
        AllocatorAssignor(_)
    assert str(caught.value) == (
        "partition_allocator: a function named '_' given; members agree on its name, which needs letters or digits"
    )


def test_the_bytes_of_user_data() -> None:
    """User data is compact JSON with a version. An allocator that does not see owners has none."""
    owned = some(10, 2) + some(0, topic="u")
    assert AllocatorAssignor(sticky).metadata(["t"], owned) == b'{"owned":{"t":[2,10],"u":[0]},"version":1}'
    assert AllocatorAssignor(weighted).metadata(["t"]) == b'{"owned":{},"version":1}'
    assert AllocatorAssignor(round_robin).metadata(["t"], owned) is None
    assert AllocatorAssignor(Größtes_Team__2).metadata(["t"], owned) is None


@pytest.mark.parametrize("allocator", [sticky, weighted], ids=["sticky", "weighted"])
def test_present_owners_keep_their_partitions(allocator: Allocator) -> None:
    """Members keep the partitions of their user data if these are no more than their share."""
    assignor = AllocatorAssignor(allocator)
    owned = {"a": some(1, 3), "b": some(0, 2, 9), "c": []}
    members = {name: AssignorMember(("t",), assignor.metadata(["t"], its)) for name, its in owned.items()}
    members["d"] = AssignorMember(("t",))
    outcome = run_assignor(assignor, members, {"t": range(6)})
    assert {name: list(its) for name, its in outcome.assignment.items()} == {
        "a": some(1, 3),
        "b": some(0, 2),
        "c": some(4),
        "d": some(5),
    }
    assert outcome.findings == ()


UNREADABLE = {
    "no JSON": (b"\x00\x01", "not JSON, 2 bytes"),
    "no UTF-8": (b'"\xff"', "not JSON, 3 bytes"),
    "deep": (b"[" * 100_000, "not JSON, 100000 bytes"),
    "no object": (b"[1]", "no version"),
    "no version": (b'{"owned":{}}', "no version"),
    "a later version": (b'{"owned":[],"version":2}', "version 2, expected 1"),
    "no partitions": (b'{"version":1}', "no numbers of partitions by topic in 'owned'"),
    "a list": (b'{"owned":["t"],"version":1}', "no numbers of partitions by topic in 'owned'"),
    "a number": (b'{"owned":{"t":3},"version":1}', "no numbers of partitions by topic in 'owned'"),
    "a text": (b'{"owned":{"t":["3"]},"version":1}', "no numbers of partitions by topic in 'owned'"),
}


@pytest.mark.parametrize(("user_data", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_member_with_unreadable_user_data_owns_nothing(user_data: bytes, why: str) -> None:
    """A member whose user data is unreadable counts as owning nothing, and the outcome has a line that says so."""
    members = {"a": AssignorMember(("t",), user_data), "b": AssignorMember(("t",), b'{"owned":{"t":[0]},"version":1}')}
    outcome = run_assignor(AllocatorAssignor(sticky), members, {"t": [0, 1]})
    assert outcome.assignment == {"a": tuple(some(1)), "b": tuple(some(0))}
    assert outcome.findings == (
        f"assignor kiel-sticky cannot read the user data of member a: {why}; the member counts as owning no partition",
    )
    assert run_assignor(AllocatorAssignor(round_robin), members, {"t": [0, 1]}).findings == ()


def test_a_function_sees_members_and_partitions_as_in_other_groups() -> None:
    """A plain function gets member ids and partitions as sorted text, and the outcome has an entry for each member."""
    calls = []

    def mine(members: list[str], partitions: list[str]) -> Any:
        calls.append((members, partitions))
        return Größtes_Team__2(members, partitions)

    members = {name: AssignorMember(topics) for name, topics in {"b": ("t", "x"), "a": ("t",), "c": ()}.items()}
    outcome = run_assignor(AllocatorAssignor(mine), members, {"t": [0, 1], "other": [0]})
    assert calls == [(["a", "b"], ["t:0", "t:1"])]
    assert outcome.assignment == {"a": (), "b": tuple(some(0, 1)), "c": ()}


def test_a_function_that_fails_is_named() -> None:
    """An error of a function, and an invalid result, name the function as in other groups."""

    def forgetful(members: list[str], partitions: list[str]) -> Any:
        return {}

    with pytest.raises(AllocatorError, match=r"^allocator forgetful: 1 of 1 partitions were left out: t:0$"):
        run_assignor(AllocatorAssignor(forgetful), {"a": AssignorMember(("t",))}, {"t": [0]})
