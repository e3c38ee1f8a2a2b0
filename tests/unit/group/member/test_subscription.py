"""The subscription of a member, and the positions of its partitions."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

T0, T10, U0 = TopicPartition("t", 0), TopicPartition("t", 10), TopicPartition("u", 0)


def claimed() -> SubscriptionState:
    """Return the state of a member that owns partitions 0 and 10 of t, at 5 and 7, and partition 0 of u, at 9."""
    state = SubscriptionState()
    state.subscribe(["t", "u"])
    state.assign_from_subscribed(
        {T10: StartPosition(7, 3, 31), U0: StartPosition(9, 0, 32), T0: StartPosition(5, 1, 30)}
    )
    return state


def test_subscribe_returns_whether_the_topics_changed() -> None:
    """``subscribe()`` returns whether the topics have changed. Another order or a repeated topic is no change."""
    state = SubscriptionState()
    assert state.subscribe(["t", "u"])
    assert not state.subscribe(["u", "t", "t"])
    assert state.subscribe("u")
    assert state.subscription == {"u"}
    assert state.subscribe([])
    assert state.subscription == frozenset()


@pytest.mark.parametrize("topic", ["", "a/b", "ü", ".", "..", "x" * 256, "a b"])
def test_an_illegal_topic_changes_nothing(topic: str) -> None:
    """An illegal topic raises an error, and the former subscription is kept."""
    state = claimed()
    with pytest.raises(ConfigError, match="topic"):
        state.subscribe(["t", topic])
    assert state.subscription == {"t", "u"}


def test_a_claim_starts_with_nothing_to_commit() -> None:
    """
    After a claim, position, finished and committed offset equal the start, so there is nothing to commit. Token and
    version are the claim's.
    """
    state = claimed()
    assert state.assigned_partitions() == {T0, T10, U0}
    assert state.all_consumed_offsets() == {}
    assert [state.position(partition) for partition in (T0, T10, U0)] == [5, 7, 9]
    found = state.state(T10)
    assert found is not None
    assert (found.token, found.version, found.finished, found.committed) == (31, 3, 7, 7)


def test_only_finished_offsets_are_due_for_commit() -> None:
    """
    An offset is due for commit once it is finished, not when it is delivered. Offsets finished after a commit are due
    for the next one.
    """
    state = claimed()
    found = state.state(T0)
    assert found is not None
    found.position = 8
    assert state.all_consumed_offsets() == {}
    found.finished = 7
    assert state.all_consumed_offsets() == {T0: 7}
    state.mark_committed(T0, 6, 2)
    assert state.all_consumed_offsets() == {T0: 7}
    state.mark_committed(T0, 7, 3)
    assert state.all_consumed_offsets() == {}
    assert (found.committed, found.version, found.position) == (7, 3, 8)


def test_a_seek_backwards_is_due_for_commit() -> None:
    """A seek backwards is due for commit. Records after the new position count as neither delivered nor finished."""
    state = claimed()
    state.seek(T0, 2)
    assert state.position(T0) == 2
    assert state.all_consumed_offsets() == {T0: 2}
    with pytest.raises(KeyError):
        state.seek(TopicPartition("t", 99), 0)


def test_an_unassigned_partition_has_no_state() -> None:
    """An unassigned partition has no state, and a late commit of it is ignored. A new claim starts with a new state."""
    state = claimed()
    state.seek(T0, 6)
    state.unassign([T0, TopicPartition("t", 99)])
    state.mark_committed(T0, 6, 2)
    assert not state.is_assigned(T0)
    assert state.state(T0) is None
    assert state.position(T0) is None
    assert state.all_consumed_offsets() == {}
    state.assign_from_subscribed({T0: StartPosition(6, 4, 40)})
    assert state.is_assigned(T0)
    assert state.all_consumed_offsets() == {}


def test_the_allocation_lists_partitions_in_numerical_order() -> None:
    """``allocation()`` lists partitions in numerical order, so partition 2 comes before partition 10."""
    state = claimed()
    state.assign_from_subscribed({TopicPartition("t", 2): StartPosition(0, 0, 1)})
    assert state.allocation() == {"t": [0, 2, 10], "u": [0]}
