"""Fixtures of the tests on simulated time."""

from __future__ import annotations

import pytest

from tests.sim.session_bench import SessionBench


@pytest.fixture
def bench() -> SessionBench:
    """Return a bench for one session on a single simulated server."""
    return SessionBench()
