"""Java's assignors, and the check of an assignor's result. Generated groups are compared with Java elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from kiel_groups.allocators.assignors import (
    Assignor,
    AssignorMember,
    range_assignor,
    roundrobin_assignor,
    run_assignor,
)
from kiel_groups.errors import AllocatorError
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def subscriptions(**topics: str) -> dict[str, AssignorMember]:
    """Return the subscriptions of members to topics, which are given as in ``a="t u"``."""
    return {member: AssignorMember(tuple(its.split())) for member, its in topics.items()}


def assigned(assignor: Assignor, members: Mapping[str, AssignorMember], **counts: int) -> dict[str, str]:
    """Return the partitions of each member as text. ``counts`` has the number of partitions of each topic."""
    outcome = run_assignor(assignor, members, {topic: range(count) for topic, count in counts.items()})
    return {member: " ".join(map(str, owned)) for member, owned in outcome.assignment.items()}


def test_range_divides_each_topic_among_its_subscribers() -> None:
    """Java's range gives the first subscriber of each topic one partition more, and leaves out topics without any."""
    members = subscriptions(b="t u", a="t", c="missing")
    assert assigned(range_assignor, members, t=3, u=2, other=1) == {"a": "t:0 t:1", "b": "t:2 u:0 u:1", "c": ""}


def test_roundrobin_goes_on_over_all_topics() -> None:
    """Java's round robin does not begin again with the first member at each topic."""
    members = subscriptions(b="t u", a="u t")
    assert assigned(roundrobin_assignor, members, t=3, u=3) == {"a": "t:0 t:2 u:1", "b": "t:1 u:0 u:2"}


def test_roundrobin_skips_members_that_do_not_subscribe() -> None:
    """A member that does not subscribe to a topic misses its turns, which are not made up for."""
    members = subscriptions(a="t", b="t u", c="u missing")
    assert assigned(roundrobin_assignor, members, t=2, u=3) == {"a": "t:0", "b": "t:1 u:1", "c": "u:0 u:2"}


@pytest.mark.parametrize("assignor", [range_assignor, roundrobin_assignor], ids=lambda assignor: str(assignor.name))
def test_members_are_sorted_as_java_sorts(assignor: Assignor) -> None:
    """Members are sorted by UTF-16 code units, in which an emoji comes before a full-width tilde."""
    members = {name: AssignorMember(("t",)) for name in ("\uff5e", "\U0001f600")}
    assert assigned(assignor, members, t=1) == {"\U0001f600": "t:0", "\uff5e": ""}


@pytest.mark.parametrize("assignor", [range_assignor, roundrobin_assignor], ids=lambda assignor: str(assignor.name))
def test_groups_without_members_topics_or_user_data(assignor: Assignor) -> None:
    """Java's assignors accept groups without members or topics, and send no user data."""
    assert assigned(assignor, {}, t=1) == {}
    assert assigned(assignor, subscriptions(a="", b="t")) == {"a": "", "b": ""}
    assert assignor.metadata(["t"], [TopicPartition("t", 0)]) is None


class Fixed:
    """An assignor of an application, which returns a value or raises an error."""

    name = "fixed"

    def __init__(self, result: Any) -> None:
        self._result = result

    def metadata(self, topics: Collection[str], owned: Collection[TopicPartition] = ()) -> bytes | None:
        raise AssertionError

    def assign(self, subscriptions: Mapping[str, AssignorMember], partitions: Mapping[str, Sequence[int]]) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_an_assignor_of_an_application_keeps_its_order() -> None:
    """The outcome has the partitions in the assignor's order, also as plain pairs, and an entry for every member."""
    result = {"b": [("t", 1), TopicPartition("t", 0)]}
    assert assigned(Fixed(result), subscriptions(a="t", b="t"), t=2) == {"a": "", "b": "t:1 t:0"}


REFUSED: dict[str, tuple[object, str]] = {
    "raised": (KeyError("two\nlines"), "it raised KeyError: 'two\\nlines'"),
    "none": (None, "it returned None; expected {member: [TopicPartition]}"),
    "text": ({"a": "t:0"}, "'a' was given a value of type str; expected {member: [TopicPartition]}"),
    "allocation": ({"a": {"t": [0]}}, "'a' was given a value of type dict; expected {member: [TopicPartition]}"),
    "entry": ({"a": ["t:0"]}, "'a' was given 't:0'; expected a TopicPartition"),
    "topic": ({"a": [(0, "t")]}, "'a' was given (0, 't'); expected a TopicPartition"),
    "number": ({"a": [("t", "0")]}, "'a' was given '0' of topic 't'; partition ids are ints"),
    "member": ({"z": [("t", 0)]}, "'z' is not among the 2 members: a, b"),
    "unknown": ({"a": [("t", 5)]}, "'a' was given t:5, which is not one of the 1 partitions of that topic"),
    "not subscribed": (
        {"a": [("t", 0)], "b": [("t", 0)]},
        "'b' was given partitions of topic 't', but does not subscribe to it",
    ),
    "twice": ({"a": [("t", 0), ("t", 0)]}, "t:0 was handed out twice, to 'a' and to 'a'"),
    "left out": ({}, "1 of 1 partitions were left out: t:0"),
}


@pytest.mark.parametrize(("result", "words"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_assignment_is_refused_in_one_line(result: object, words: str) -> None:
    """An invalid assignment is refused with one line that names the assignor and the mistake."""
    with pytest.raises(AllocatorError) as caught:
        assigned(Fixed(result), subscriptions(a="t", b=""), t=1)
    assert str(caught.value) == f"assignor fixed: {words}"
    assert caught.value.__cause__ is (result if isinstance(result, Exception) else None)
