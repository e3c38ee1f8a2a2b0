"""The duration of a lease."""

from __future__ import annotations

import pytest

from kiel_groups.group.lease import answer_limit_s, heartbeat_interval_s, lease_deadline

pytestmark = pytest.mark.unit


def test_a_lease_lasts_half_the_granted_timeout_from_the_sending() -> None:
    """
    A lease lasts half of the granted timeout from the sending of the proof. With ``reserve``, another part of the
    timeout is left unused.
    """
    assert lease_deadline(100.0, 10_000) == pytest.approx(105.0)
    assert lease_deadline(100.0, 10_000, reserve=0.75) == pytest.approx(102.5)


@pytest.mark.parametrize("reserve", [0.49, 1.0, 2.0, -1.0, float("nan")])
def test_a_lease_keeps_at_least_half_in_reserve(reserve: float) -> None:
    """
    A reserve below a half is refused, because the lease could outlast the session. A reserve of the whole timeout would
    leave no lease.
    """
    with pytest.raises(ValueError, match="reserve"):
        lease_deadline(0.0, 10_000, reserve=reserve)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_lease_needs_a_timeout(timeout_ms: int) -> None:
    """A timeout of 0 or less is refused. Before a session is opened, no timeout has been granted."""
    with pytest.raises(ValueError, match="session_timeout_ms"):
        lease_deadline(0.0, timeout_ms)


def test_two_heartbeats_may_be_lost_in_a_lease() -> None:
    """
    A lease survives two lost heartbeats: heartbeats are a sixth of the timeout apart, an answer may take another sixth,
    and the lease lasts half of the timeout.
    """
    assert heartbeat_interval_s(12_000) == pytest.approx(2.0)
    assert answer_limit_s(12_000) == pytest.approx(2.0)
    assert 2 * heartbeat_interval_s(10_000) + answer_limit_s(10_000) <= lease_deadline(0.0, 10_000) + 1e-9
