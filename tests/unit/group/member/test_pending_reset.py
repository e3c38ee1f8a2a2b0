"""The offset that a reset stores: never one that skips a record which the log still has and nobody has finished."""

from __future__ import annotations

import pytest

from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("lost", "start", "end", "policy", "done", "stored"),
    [
        # Retention overtook the group: what was fetched before is not in the log any more.
        pytest.param(100, 200, 900, "earliest", 50, 200, id="overtaken, earliest"),
        pytest.param(100, 200, 900, "latest", 50, 900, id="overtaken, latest"),
        # The log was cut below all that is done: nothing is owed.
        pytest.param(1000, 0, 100, "latest", 1000, 100, id="cut, latest"),
        pytest.param(1000, 0, 100, "earliest", 1000, 0, id="cut, earliest"),
        pytest.param(10, 0, 0, "earliest", 10, 0, id="emptied"),
        # The log was cut, and has records before the cut that nobody has finished.
        pytest.param(150, 0, 100, "latest", 90, 90, id="owed, latest"),
        pytest.param(150, 0, 100, "earliest", 90, 0, id="owed, earliest"),
        pytest.param(150, 95, 100, "latest", 90, 95, id="owed in part, latest"),
        pytest.param(150, 95, 100, "latest", 100, 100, id="owed no more, latest"),
    ],
)
def test_the_stored_offset(lost: int, start: int, end: int, policy: str, done: int, stored: int) -> None:
    """It is the policy's, or earlier where the log has records that are not done."""
    reset = PendingReset(lost, start, end, start if policy == "earliest" else end)
    assert reset.offset_after(done) == stored


def test_commits_while_a_reset_waits() -> None:
    """Offsets beyond the end of the log are not stored; those within it are."""
    subscription = SubscriptionState()
    subscription.assign_from_subscribed({P0: StartPosition(80, 1, 1)})
    state = subscription.state(P0)
    assert state is not None
    subscription.choose_reset(P0, PendingReset(150, 0, 100, 100))
    state.finished = 101
    assert subscription.all_consumed_offsets() == {}
    state.finished = 100
    assert subscription.all_consumed_offsets() == {P0: 100}
    state.finished = 101
    subscription.seek(P0, 100)
    assert subscription.resetting() == frozenset()
    assert subscription.all_consumed_offsets() == {P0: 100}


def test_what_the_application_has_yet_to_commit_is_not_skipped() -> None:
    """An application that commits by itself may have finished records without having stored their results."""
    subscription = SubscriptionState()
    subscription.assign_from_subscribed({P0: StartPosition(50, 1, 1)})
    state = subscription.state(P0)
    assert state is not None
    assert state.reset_offset(autocommit=True) is None
    state.finished = 100
    subscription.choose_reset(P0, PendingReset(150, 0, 100, 100))
    assert state.reset_offset(autocommit=True) == 100
    assert state.reset_offset(autocommit=False) == 50
