"""When failed work starts again: never by default, else after delays that double, as often as users allow."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.workers.execution.work_supervisor import RestartPolicy

pytestmark = pytest.mark.unit

BACKOFF: dict[str, Any] = {
    "restart.policy": "backoff",
    "restart.max": 4,
    "restart.backoff.ms": 1_000,
    "restart.backoff.max.ms": 3_000,
}


@pytest.mark.parametrize("settings", [None, BACKOFF | {"restart.policy": "none"}, BACKOFF | {"restart.max": 0}])
def test_work_stays_failed(settings: dict[str, Any] | None) -> None:
    """It does by default, if its settings are not legal, and after the last restart."""
    assert RestartPolicy(lambda: 1.0).delay_s(settings, 0.0) is None


def test_delays_double_up_to_the_longest_and_end() -> None:
    """The jitter changes each delay."""
    policy = RestartPolicy(lambda: 1.1)
    delays = [policy.delay_s(BACKOFF, 0.0) for _ in range(5)]
    assert delays == [pytest.approx(1.1), pytest.approx(2.2), pytest.approx(3.3), pytest.approx(3.3), None]


def test_failures_are_forgotten_after_a_long_run_or_a_restart_by_a_user() -> None:
    """The next delay is the first one again."""
    policy = RestartPolicy(lambda: 1.0)
    assert [policy.delay_s(BACKOFF, ran_s) for ran_s in (0.0, 3.0, 3.1, 0.0)] == [1.0, 2.0, 1.0, 2.0]
    policy.reset()
    assert policy.delay_s(BACKOFF, 0.0) == 1.0
