"""A simulated process that is killed leaves nothing behind."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from kiel_groups.testing import FakeEnsemble, SimulatedProcess, Timeline

pytestmark = pytest.mark.sim


def test_a_killed_process_closes_coroutines_that_have_not_started() -> None:
    """Otherwise Python warns of a coroutine that was never awaited, in the middle of another test."""
    process = SimulatedProcess(FakeEnsemble(Timeline()))
    coroutine = asyncio.sleep(1.0)
    task = process.start(coroutine)
    process.kill()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert not task.done()
