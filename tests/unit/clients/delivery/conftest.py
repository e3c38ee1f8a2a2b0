"""Fixtures for the delivery tests."""

from __future__ import annotations

import pytest

from kiel_groups.clients.delivery import record_loop as record_delivery
from kiel_groups.clients.delivery.record_loop import PythonLoopSteps, RecordLoop
from tests.helpers import delivery_bench
from tests.helpers.step_variants import STEPS, on_python_steps


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable delivery's pauses for other tasks, so that tests give the same results on slow computers."""
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)


@pytest.fixture(params=STEPS)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with each form of the loops' steps."""
    if not request.param:
        monkeypatch.setattr(delivery_bench, "RecordLoop", on_python_steps(RecordLoop, PythonLoopSteps))
