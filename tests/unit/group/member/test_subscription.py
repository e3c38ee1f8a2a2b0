"""The topics of a subscription."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group.member.subscription import SubscriptionState

pytestmark = pytest.mark.unit


def test_subscribe_returns_whether_the_topics_changed() -> None:
    """``subscribe()`` returns whether the topics have changed. Another order or a repeated topic is no change."""
    state = SubscriptionState()
    assert state.subscribe(["t", "u"])
    assert not state.subscribe(["u", "t", "t"])
    assert state.subscribe("u")
    assert state.topics == {"u"}
    assert state.subscribe([])
    assert state.topics == frozenset()


@pytest.mark.parametrize("topic", ["", "a/b", "ü", ".", "..", "x" * 256, "a b"])
def test_an_illegal_topic_changes_nothing(topic: str) -> None:
    """The error is raised, and the former subscription is kept."""
    state = SubscriptionState()
    state.subscribe(["t", "u"])
    with pytest.raises(ConfigError, match="topic"):
        state.subscribe(["t", topic])
    assert state.topics == {"t", "u"}
