"""The offset that a reset stores never skips an unfinished record that is still in the log."""

from __future__ import annotations

import pytest

from kiel_groups.group.partition_offsets import Commit, PendingReset, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("lost", "start", "end", "policy", "finished", "stored"),
    [
        # Retention deleted the records after the position.
        pytest.param(100, 200, 900, "earliest", 50, 200, id="overtaken, earliest"),
        pytest.param(100, 200, 900, "latest", 50, 900, id="overtaken, latest"),
        pytest.param(100, 50, 900, "latest", 100, 900, id="finished up to the lost position, latest"),
        # The log was truncated below the finished offset, so every record in it is finished.
        pytest.param(1000, 0, 100, "latest", 1000, 100, id="truncated, latest"),
        pytest.param(1000, 0, 100, "earliest", 1000, 0, id="truncated, earliest"),
        pytest.param(10, 0, 0, "earliest", 10, 0, id="emptied"),
        # The log was truncated, and still has unfinished records.
        pytest.param(150, 0, 100, "latest", 90, 90, id="unfinished records, latest"),
        pytest.param(150, 0, 100, "earliest", 90, 0, id="unfinished records, earliest"),
        pytest.param(150, 95, 100, "latest", 90, 95, id="some unfinished records, latest"),
        pytest.param(150, 95, 100, "latest", 100, 100, id="no unfinished record, latest"),
    ],
)
def test_the_stored_offset(lost: int, start: int, end: int, policy: str, finished: int, stored: int) -> None:
    """A reset stores the offset of the policy, or an earlier offset if the log still has unfinished records."""
    reset = PendingReset(lost, start, end, start if policy == "earliest" else end)
    assert reset.offset_after(finished) == stored


def test_commits_during_a_reset() -> None:
    """During a reset, offsets beyond the end of the log are not committed. Offsets within the log are."""
    subscription = SubscriptionState()
    subscription.offsets.open({P0: StartPosition(80, 1, 1)})
    state = subscription.offsets.of(P0)
    assert state is not None
    subscription.offsets.choose_reset(P0, PendingReset(150, 0, 100, 100))
    state.finished = 101
    assert not subscription.offsets.has_uncommitted()
    state.finished = 100
    assert subscription.offsets.commits() == {P0: Commit(100, 1)}
    state.finished = 101
    subscription.offsets.seek(P0, 100)
    assert subscription.offsets.resetting() == frozenset()
    assert subscription.offsets.commits() == {P0: Commit(100, 1)}


def test_a_reset_does_not_skip_records_that_the_application_has_not_committed() -> None:
    """
    Without automatic commits, a reset stores no offset beyond the committed one, because the application may not yet
    have stored the results of finished records.
    """
    subscription = SubscriptionState()
    subscription.offsets.open({P0: StartPosition(50, 1, 1)})
    state = subscription.offsets.of(P0)
    assert state is not None
    assert state.reset_offset(autocommit=True) is None
    state.finished = 100
    subscription.offsets.choose_reset(P0, PendingReset(150, 0, 100, 100))
    assert state.reset_offset(autocommit=True) == 100
    assert state.reset_offset(autocommit=False) == 50
