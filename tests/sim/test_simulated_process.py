"""Simulated processes, by themselves."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from kiel_groups.testing import FakeEnsemble, SimulatedProcess, Timeline

pytestmark = pytest.mark.sim


def test_what_a_killed_process_had_not_begun_is_ended() -> None:
    """Else Python says, whenever it finds it, that nobody awaited it: in the middle of another test."""
    process = SimulatedProcess(FakeEnsemble(Timeline()))
    work = asyncio.sleep(1.0)
    task = process.start(work)
    process.kill()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert not task.done()
