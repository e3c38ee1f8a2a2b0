"""Fixtures for the delivery tests."""

from __future__ import annotations

import pytest

from kiel_groups.clients.delivery import record_delivery


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable delivery's pauses for other tasks, so that tests give the same results on slow computers."""
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)
