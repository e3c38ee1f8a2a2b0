"""The failures in a row that a member counts, from which the pauses before its next tries follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.member_state import CoordinatorCode, Event, JoinAnswered, MemberState, Pause, SyncAnswered, step
from tests.helpers.coordinated_states import JOINED, WAITING

pytestmark = pytest.mark.unit

C = CoordinatorCode


@pytest.mark.parametrize(
    ("state", "event", "failures"),
    [
        (WAITING, JoinAnswered(1, C.UNKNOWN), 4),
        (WAITING, JoinAnswered(1, C.NO_ERROR, 5, "m"), 3),
        (JOINED, SyncAnswered(1, C.UNKNOWN), 4),
        (JOINED, SyncAnswered(1, None), 4),
        (JOINED, SyncAnswered(1, C.REBALANCE_IN_PROGRESS), 3),
        (JOINED, SyncAnswered(1, C.NO_ERROR), 0),
    ],
)
def test_failures_count_until_a_sync_succeeds(state: MemberState, event: Event, failures: int) -> None:
    """A join that succeeds forgets nothing: the pauses grow although the coordinator grants each join."""
    after, effects = step(replace(state, failures=3), event)
    assert after.failures == failures
    assert [effect.failures for effect in effects if isinstance(effect, Pause)] == ([4] if failures == 4 else [])
