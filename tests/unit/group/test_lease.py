"""The duration of a lease."""

from __future__ import annotations

import pytest

from kiel_groups.group.lease import answer_limit_s, heartbeat_interval_s, lease_deadline

pytestmark = pytest.mark.unit


def test_a_lease_lasts_half_the_granted_timeout_from_the_sending() -> None:
    """A lease lasts half of the granted timeout from the sending of the proof."""
    assert lease_deadline(100.0, 10_000) == pytest.approx(105.0)


def test_two_heartbeats_may_be_lost_in_a_lease() -> None:
    """
    A lease survives two lost heartbeats: heartbeats are a sixth of the timeout apart, an answer may take another sixth,
    and the lease lasts half of the timeout.
    """
    assert heartbeat_interval_s(12_000) == pytest.approx(2.0)
    assert answer_limit_s(12_000) == pytest.approx(2.0)
    assert 2 * heartbeat_interval_s(10_000) + answer_limit_s(10_000) <= lease_deadline(0.0, 10_000) + 1e-9


def test_an_interval_that_was_asked_for_is_kept_up_to_a_third_of_the_timeout() -> None:
    """The server may have granted a shorter timeout than the one for which the interval was set."""
    assert heartbeat_interval_s(12_000, 3_000) == pytest.approx(3.0)
    assert heartbeat_interval_s(12_000, 9_000) == pytest.approx(4.0)
