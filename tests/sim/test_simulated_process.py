"""Simulated processes: the cleanup when one is killed, and blocks of an event loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.fakes import FakeEnsemble, SimulatedProcess, Timeline

pytestmark = pytest.mark.sim


def test_a_killed_process_closes_coroutines_that_have_not_started() -> None:
    """
    A killed process closes coroutines that have not started. Otherwise, Python would warn during another test that a
    coroutine was never awaited.
    """
    process = SimulatedProcess(FakeEnsemble(Timeline()))
    coroutine = asyncio.sleep(1.0)
    task = process.start(coroutine)
    process.kill()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert not task.done()


def test_a_shorter_block_does_not_end_a_longer_one() -> None:
    """The event loop is blocked until both blocks have ended, which is the time in ``blocked_until_s``."""
    timeline = Timeline()
    process = SimulatedProcess(FakeEnsemble(timeline))
    turns, start_s = list[float](), timeline.now_s

    async def note_time() -> None:
        turns.append(timeline.now_s)

    process.block(20.0)
    timeline.after(5.0, process.block, 1.0)
    timeline.after(6.5, process.start, note_time())
    timeline.run_until(lambda: bool(turns), 30.0)
    assert turns == [process.blocked_until_s] == [start_s + 20.0]
