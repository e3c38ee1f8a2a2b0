"""Fixtures of the tests on simulated time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.testing import SimulatedRuntime
from tests.sim.session_bench import SessionBench


@pytest.fixture
def bench() -> Iterator[SessionBench]:
    """Provide a bench for one session on a single simulated server."""
    made = SessionBench()
    with runtime.replaced(SimulatedRuntime(made.timeline)):
        yield made
