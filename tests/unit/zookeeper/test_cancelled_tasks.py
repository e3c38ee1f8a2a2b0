"""The end of tasks that are cancelled: waited for, but not for servers beyond a time limit."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.zookeeper.tasks import CloseLimit, TaskSet, cancelled_by

pytestmark = pytest.mark.unit


async def closing(closed: asyncio.Event) -> None:
    """Wait for ever; once cancelled, wait for a close, as a task that ends its session does."""
    try:
        await asyncio.Event().wait()
    finally:
        await closed.wait()


async def test_tasks_have_time_to_close_without_a_limit() -> None:
    closed = asyncio.Event()
    task = asyncio.ensure_future(closing(closed))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(cancelled_by([task], CloseLimit()))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    closed.set()
    async with asyncio.timeout(5.0):
        await waiting
    assert task.cancelled()


@pytest.mark.parametrize("limit_s", [-1.0, 0.0, 0.05])
async def test_tasks_that_still_close_at_the_limit_are_cancelled_again(limit_s: float) -> None:
    """Also a task that waits twice: each wait is cancelled."""
    never = asyncio.Event()

    async def twice() -> None:
        try:
            await closing(never)
        finally:
            await never.wait()

    tasks = [asyncio.ensure_future(work) for work in (closing(never), twice())]
    await asyncio.sleep(0)
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    async with asyncio.timeout(5.0):
        await cancelled_by(tasks, CloseLimit(limit_s))
    assert all(task.cancelled() for task in tasks)
    assert max(0.0, limit_s) <= now_s() - began_s < 4.0


async def test_tasks_that_are_done_are_not_waited_for() -> None:
    task = asyncio.ensure_future(asyncio.sleep(0))
    await task
    await cancelled_by([task], CloseLimit())
    await cancelled_by([], CloseLimit())
    assert not task.cancelled()


async def test_the_tasks_of_a_session_are_cancelled_at_once() -> None:
    """A close without any time left is cancelled itself before it waits."""
    tasks = TaskSet(lambda error: None)
    tasks.start(asyncio.sleep(60.0))
    (task,) = tasks._tasks
    ended = tasks.cancel()
    assert task.cancelling()
    await ended
    assert task.cancelled()
