"""The rules of a subscription: the state of each assigned partition, from its assignment to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.config import GroupConfig
from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.group.partition_offsets import PendingReset, StartOrigin
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition
from tests.helpers.subscriptions import CLEAN, START, USED, claim, manual, member, partition_snapshot, snapshot, use

pytestmark = pytest.mark.unit

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


# Assignments


def test_a_rebalance_keeps_the_state_of_partitions_that_stay() -> None:
    """A new partition starts clean, and so does one that left and came back."""
    state = member(T0, T1)
    for partition in (T0, T1):
        use(state, partition)
    state.offsets.end([T1])
    state.assign_from_subscribed([T0])
    claim(state, T1, U0)
    state.assign_from_subscribed([T0, T1, U0])
    assert partition_snapshot(state, T0) == USED
    assert partition_snapshot(state, T1) == partition_snapshot(state, U0) == CLEAN


def test_an_assignment_of_an_unsubscribed_topic_is_refused() -> None:
    state = member(T0)
    before = snapshot(state)
    with pytest.raises(ConfigError, match=r"v:0 given; the subscription has t, u"):
        state.assign_from_subscribed([T1, TopicPartition("v", 0)])
    assert snapshot(state) == before


def test_another_manual_assignment_keeps_the_state_of_partitions_that_stay() -> None:
    """A removed partition ends at once; it starts clean and without a position if it is assigned again."""
    state = manual(T0, T1)
    for partition in (T0, T1):
        use(state, partition)
    state.assign_from_user([T0, U0])
    assert state.assigned_partitions() == {T0, U0}
    assert partition_snapshot(state, T0) == USED
    assert state.offsets.open_partitions() == {T0}
    state.assign_from_user([T0, T1])
    assert partition_snapshot(state, T1) == CLEAN._replace(position=None)


def test_the_end_of_a_manual_assignment_ends_its_partitions() -> None:
    state = manual(T0, T1)
    state.unsubscribe()
    assert state.assigned_partitions() == state.offsets.open_partitions() == frozenset()


def test_the_end_of_a_subscription_leaves_the_claims_to_the_member() -> None:
    """A manual assignment of the same partition is refused until the member has released it."""
    state = member(T0, U0)
    state.unsubscribe()
    assert state.assigned_partitions() == frozenset()
    assert state.offsets.open_partitions() == {T0, U0}
    before = snapshot(state)
    with pytest.raises(IllegalStateError, match=r"t:0 not released by this consumer's member yet; wait"):
        state.assign_from_user([T0, T1])
    assert snapshot(state) == before
    state.offsets.end([T0])
    state.assign_from_user([T0, T1])
    assert state.missing_fetch_positions() == {T0, T1}


@pytest.mark.parametrize(
    "given",
    [[("t", 0)], T0, [TopicPartition("t", -1)], [TopicPartition("t", True)], [TopicPartition("a/b", 0)], ["t:0"]],
)
def test_a_manual_assignment_has_legal_partitions(given: Any) -> None:
    state = manual(T0)
    before = snapshot(state)
    with pytest.raises(ConfigError, match=r"expected TopicPartition|topic: 'a/b' is not a legal name"):
        state.assign_from_user(given)
    assert snapshot(state) == before


@pytest.mark.parametrize("make", [member, manual])
@pytest.mark.parametrize(
    "call",
    [
        lambda state: state.seek(U0, 5),
        lambda state: state.position(U0),
        lambda state: state.pause(U0),
        lambda state: state.resume(U0),
        lambda state: state.highwater(U0),
    ],
)
def test_a_partition_that_is_not_assigned_is_refused(
    make: Callable[..., SubscriptionState], call: Callable[[SubscriptionState], object]
) -> None:
    """The error names it, and the partitions that are assigned."""
    state = make(T0, T1)
    before = snapshot(state)
    with pytest.raises(IllegalStateError, match=r"\(\): u:0 is not assigned to this consumer; assigned are: t:0, t:1"):
        call(state)
    assert snapshot(state) == before


def test_questions_about_a_partition_that_is_not_assigned() -> None:
    """A partition that is not assigned is neither paused nor fetchable. A late high watermark of it is ignored."""
    state = member(T0)
    claim(state, T1)
    state.set_highwater(T1, 40)
    assert not state.is_assigned(T1)
    assert not state.is_paused(T1)
    state.assign_from_subscribed([T0, T1])
    assert state.highwater(T1) is None


# Positions


def test_nothing_has_a_position_before_its_claim_is_open() -> None:
    state = SubscriptionState()
    state.subscribe("t")
    state.offsets.claim([T0], created=1)
    state.assign_from_subscribed([T0])
    assert state.missing_fetch_positions() == {T0}
    assert state.position(T0) is None
    claim(state, T0)
    assert state.missing_fetch_positions() == frozenset()
    assert state.position(T0) == START


def test_a_seek_before_the_claim_is_open_is_refused() -> None:
    state = SubscriptionState()
    state.subscribe("t")
    state.assign_from_subscribed([T0])
    with pytest.raises(IllegalStateError, match="t:0 has no position yet, because the member is opening its claim"):
        state.seek(T0, 5)
    assert state.missing_fetch_positions() == {T0}


def test_the_first_seek_of_a_manual_partition_opens_it() -> None:
    """It has nothing to commit, and no fencing token."""
    state = SubscriptionState()
    state.assign_from_user([T0, T1])
    assert state.missing_fetch_positions() == {T0, T1}
    state.seek(T0, 5)
    assert state.missing_fetch_positions() == {T1}
    offsets = state.offsets.of(T0)
    assert offsets is not None
    assert (offsets.position, offsets.finished, offsets.version, offsets.token) == (5, 5, 0, 0)
    assert offsets.origin is StartOrigin.SEEK
    assert not offsets.uncommitted


@pytest.mark.parametrize("make", [member, manual])
def test_a_seek_moves_position_and_finished(make: Callable[..., SubscriptionState]) -> None:
    """Backwards, too. A reset that the policy has chosen is void. A pause remains."""
    state = make(T0)
    state.pause(T0)
    state.offsets.choose_reset(T0, PendingReset(10, 20, 30, 20))
    state.seek(T0, 3)
    offsets = state.offsets.of(T0)
    assert offsets is not None
    assert (state.position(T0), offsets.finished, offsets.reset) == (3, 3, None)
    assert state.is_paused(T0)


@pytest.mark.parametrize("offset", [-1, 1.0, "3", None, True, 1 << 63])
def test_a_seek_needs_an_offset(offset: Any) -> None:
    """An offset beyond int64 would be committed, and would fail the fetches of the other partitions, too."""
    state = member(T0)
    with pytest.raises(ConfigError, match=rf"seek\(\): t:0: {offset!r} given; .* a whole number from 0 to 2\*\*63 - 1"):
        state.seek(T0, offset)
    assert state.position(T0) == START


def test_highwater_is_what_a_leader_reported_last() -> None:
    """Also a smaller one, of a log that was truncated."""
    state = member(T0)
    assert state.highwater(T0) is None
    state.set_highwater(T0, 50)
    state.set_highwater(T0, 40)
    assert state.highwater(T0) == 40


# Pauses


@pytest.mark.parametrize("make", [member, manual])
def test_a_paused_partition_keeps_its_position(make: Callable[..., SubscriptionState]) -> None:
    state = make(T0, T1)
    state.pause(T0)
    state.pause(T0)
    assert state.paused_partitions() == {T0}
    assert state.position(T0) == START
    state.resume(T0)
    state.resume(T1)
    assert state.paused_partitions() == frozenset()


@pytest.mark.parametrize("policy", ["newest", "LATEST", "", 0])
def test_an_unknown_reset_policy_is_an_error(policy: Any) -> None:
    """The error lists the known policies."""
    with pytest.raises(ConfigError, match=f"auto_offset_reset: {policy!r} given; expected 'earliest', 'latest' or"):
        GroupConfig(group="g", auto_offset_reset=policy)
