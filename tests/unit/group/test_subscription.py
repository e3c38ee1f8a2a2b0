"""The rules of a subscription: three ways to get partitions, topics, patterns, and the topics of the group."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition
from tests.helpers.subscriptions import CLEAN, USED, member, partition_snapshot, snapshot, use

pytestmark = pytest.mark.unit

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


class Listener:
    """A listener that is only compared."""

    def on_partitions_revoked(self, partitions: Any) -> None: ...

    def on_partitions_assigned(self, partitions: Any) -> None: ...

    def on_partitions_lost(self, partitions: Any) -> None: ...


# The three ways

WAYS: dict[str, Callable[[SubscriptionState], object]] = {
    "topics": lambda state: state.subscribe(["t"], listener=Listener()),
    "pattern": lambda state: state.subscribe(pattern="t.*", listener=Listener()),
    "manual": lambda state: state.assign_from_user([T0]),
}
OTHER_WAYS: dict[str, list[Callable[[SubscriptionState], object]]] = {
    "topics": [lambda state: state.subscribe(pattern="u"), lambda state: state.assign_from_user([U0])],
    "pattern": [lambda state: state.subscribe(["u"]), lambda state: state.assign_from_user([U0])],
    "manual": [
        lambda state: state.subscribe(["u"]),
        lambda state: state.subscribe(pattern="u"),
        lambda state: state.change_subscription(["u"]),
        lambda state: state.assign_from_subscribed([T0]),
    ],
}
IN_WORDS = {
    "topics": "topics (subscribe(topics))",
    "pattern": "a pattern (subscribe(pattern=...))",
    "manual": "a manual assignment (assign(partitions))",
}


@pytest.mark.parametrize(("way", "call"), [(way, call) for way, calls in OTHER_WAYS.items() for call in calls])
def test_topics_a_pattern_and_a_manual_assignment_exclude_each_other(
    way: str, call: Callable[[SubscriptionState], object]
) -> None:
    """The error names the three ways, the one in use, and ``unsubscribe()``. Nothing changes."""
    state = SubscriptionState()
    WAYS[way](state)
    before = snapshot(state)
    with pytest.raises(IllegalStateError) as refused:
        call(state)
    text = str(refused.value)
    assert f"the consumer has {IN_WORDS[way]};" in text
    assert ", ".join(IN_WORDS.values()) in text
    assert "call unsubscribe() first" in text
    assert snapshot(state) == before


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_any_way_is_open_after_unsubscribe(first: str, second: str) -> None:
    state, fresh = SubscriptionState(), SubscriptionState()
    WAYS[first](state)
    state.unsubscribe()
    WAYS[second](state)
    WAYS[second](fresh)
    assert snapshot(state) | {"listener": None} == snapshot(fresh) | {"listener": None}


def test_topics_and_a_pattern_together_are_refused() -> None:
    state = SubscriptionState()
    with pytest.raises(IllegalStateError, match=r"topics and a pattern given; .* in one way only: topics"):
        state.subscribe(["t"], pattern="t")
    assert snapshot(state) == snapshot(SubscriptionState())


@pytest.mark.parametrize(
    "call",
    [
        lambda state: state.subscribe([]),
        lambda state: state.subscribe(),
        lambda state: state.assign_from_user([]),
        lambda state: state.subscribe(pattern=""),
    ],
)
def test_nothing_to_consume_is_an_error(call: Callable[[SubscriptionState], object]) -> None:
    """No topics, no partitions, or an empty pattern: the error says what was expected. Nothing changes."""
    state = SubscriptionState()
    with pytest.raises(ConfigError, match="expected"):
        call(state)
    assert snapshot(state) == snapshot(SubscriptionState())


@pytest.mark.parametrize(
    ("way", "is_automatic"), [("topics", True), ("pattern", True), ("manual", False), (None, False)]
)
def test_the_group_assigns_the_partitions_of_topics_and_patterns(way: str | None, is_automatic: bool) -> None:
    state = SubscriptionState()
    if way is not None:
        WAYS[way](state)
    assert state.partitions_auto_assigned() is is_automatic


def test_without_a_subscription_the_group_assigns_nothing() -> None:
    state = SubscriptionState()
    with pytest.raises(IllegalStateError, match=r"no subscription; call subscribe\(\) first"):
        state.assign_from_subscribed([])


# Topics


def test_the_same_topics_again_are_no_change() -> None:
    """``subscribe()`` returns whether the topics have changed. Another order or a repeated topic is no change."""
    state = SubscriptionState()
    assert state.subscribe(["t", "u"])
    assert not state.subscribe(["u", "t", "t"])
    assert not state.change_subscription(["u", "t"])
    assert state.subscribe("u")
    assert state.topics == {"u"}
    state.unsubscribe()
    assert state.subscribe("u"), "the member must register again"


@pytest.mark.parametrize("topic", ["", "a/b", "ü", ".", "..", "x" * 256, "a b"])
@pytest.mark.parametrize("call", [SubscriptionState.subscribe, SubscriptionState.change_subscription])
def test_an_illegal_topic_changes_nothing(call: Callable[..., object], topic: str) -> None:
    state = member(T0)
    before = snapshot(state)
    with pytest.raises(ConfigError, match="topic"):
        call(state, ["t", topic])
    assert snapshot(state) == before


def test_a_removed_topic_stops_at_once() -> None:
    """Its partitions are not assigned any more. Their claims remain until the member releases them."""
    state = member(T0, U0)
    state.subscribe(["t"])
    assert state.assigned_partitions() == {T0}
    assert state.offsets.is_open(U0)
    state.change_subscription(["u"])
    assert state.assigned_partitions() == frozenset()


def test_a_topic_that_remains_keeps_the_state_of_its_partitions() -> None:
    state = member(T0, U0)
    use(state, T0)
    state.subscribe(["t", "v"])
    assert partition_snapshot(state, T0) == USED


def test_a_topic_that_returns_starts_clean() -> None:
    """A topic that is subscribed to again before its release has the position of its claim and nothing else."""
    state = member(T0, U0)
    use(state, U0)
    state.subscribe(["t"])
    state.subscribe(["t", "u"])
    assert not state.is_assigned(U0), "the member assigns it"
    state.assign_from_subscribed([T0, U0])
    assert partition_snapshot(state, U0) == CLEAN._replace(position=USED.position)


def test_subscribe_replaces_its_listener() -> None:
    """``change_subscription()`` and a refused call keep it. The revocation after ``unsubscribe()`` still needs it."""
    state, first, second = SubscriptionState(), Listener(), Listener()
    state.subscribe(["t"], listener=first)
    state.change_subscription(["u"])
    assert state.listener is first
    with pytest.raises(ConfigError):
        state.subscribe(["a/b"], listener=second)
    assert state.listener is first
    assert not state.subscribe(["u"], listener=second)
    assert state.listener is second
    state.unsubscribe()
    assert state.listener is second
    state.subscribe(["u"])
    assert state.listener is None


# Patterns


def test_a_pattern_is_text_or_compiled() -> None:
    """The same pattern again is no change, and keeps its matches."""
    state = SubscriptionState()
    assert state.subscribe(pattern="t.*")
    assert state.set_matches("t.*", ["t1", "t2"])
    assert not state.subscribe(pattern=re.compile("t.*"))
    assert state.topics == {"t1", "t2"}
    assert state.subscribed_pattern == re.compile("t.*")
    assert state.subscribe(pattern=re.compile("t.*", re.IGNORECASE)), "other flags are another pattern"


@pytest.mark.parametrize("pattern", ["(", "*", b"t", re.compile(b"t"), 7, ["t"], "(" * 500, "a{99999999999}"])
def test_a_pattern_that_is_no_regular_expression_is_refused(pattern: Any) -> None:
    state = member(T0, pattern="t|u")
    before = snapshot(state)
    with pytest.raises(ConfigError, match=r"pattern: .* regular expression"):
        state.subscribe(pattern=pattern)
    assert snapshot(state) == before


def test_a_pattern_may_match_no_topic() -> None:
    """``set_matches()`` sets the matches. The last one may have been deleted."""
    state = member(T0, pattern="t|u")
    assert state.set_matches("t|u", [])
    assert state.topics == state.assigned_partitions() == frozenset()
    assert state.partitions_auto_assigned()


def test_another_pattern_has_no_topics_until_they_are_set() -> None:
    """A match may take for ever, so the call evaluates no pattern. Matches of the previous pattern are ignored."""
    state, changes = member(T0, U0, pattern="t|u"), list[frozenset[str]]()
    state.on_matches = lambda: changes.append(state.topics)
    assert state.subscribe(pattern="(t|t)*v")
    assert state.topics == state.assigned_partitions() == frozenset()
    assert not state.set_matches("t|u", ["t"])
    assert state.set_matches("(t|t)*v", ["tv"])
    assert not state.set_matches("(t|t)*v", ["tv"])
    assert changes == [{"tv"}]
    with pytest.raises(IllegalStateError, match="a pattern"):
        state.change_subscription(["t"])


def test_records_are_waited_for_once_topics_or_partitions_were_chosen() -> None:
    """A consumer without any would wait for ever. After ``unsubscribe`` it may: the application will choose others."""
    subscribed, assigned = SubscriptionState(), SubscriptionState()
    for each in (subscribed, assigned):
        with pytest.raises(IllegalStateError, match=r"getone\(\): the consumer has neither .*; call subscribe\(\) or"):
            each.check_chosen("getone()")
    subscribed.subscribe("t")
    assigned.assign_from_user([TopicPartition("t", 0)])
    for each in (subscribed, assigned):
        each.check_chosen("getone()")
        each.unsubscribe()
        each.check_chosen("getone()")
