"""The real runtime's clock."""

from __future__ import annotations

import time

import pytest

from kiel_groups.coordination.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit


def test_leases_are_measured_by_the_clock_that_counts_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Leases are measured by a clock that also counts the time in which the computer is suspended. With another clock, a
    lease would outlast its session.
    """
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.5, time.CLOCK_MONOTONIC: 1.5}.__getitem__)
    assert Runtime().boot_time_s() == 7.5
