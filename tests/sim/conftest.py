"""Fixtures of the tests on simulated time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.testing import SimulatedRuntime
from tests.sim.session_bench import SessionBench


@pytest.fixture
def bench() -> Iterator[SessionBench]:
    """Provide a session on a server of its own."""
    made = SessionBench()
    with runtime.replaced(SimulatedRuntime(made.timeline)):
        yield made
