"""Fixtures of the tests of delivery."""

from __future__ import annotations

import pytest

from kiel_groups.clients.delivery import record_delivery


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records follow each other without a pause for other tasks, on a slow computer too."""
    monkeypatch.setattr(record_delivery, "QUANTUM_S", 3_600.0)
