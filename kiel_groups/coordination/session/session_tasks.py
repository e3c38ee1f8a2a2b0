"""Run background tasks that belong to one session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any

from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.errors import SessionLostError

__all__ = ["TaskSet", "cancelled_by"]

log = logging.getLogger(__name__)

#: The pause between two cancellations of a task that must end, in seconds.
_AGAIN_S = 0.02


async def cancelled_by(tasks: Collection[asyncio.Future[Any]], limit: CloseLimit) -> None:
    """
    Cancel tasks and wait until they have ended, but not for servers beyond the limit.

    A task that is still closing its session then is cancelled once more: its session is closed by threads.
    """
    late = set(tasks)
    for task in late:
        task.cancel()
    with suppress(TimeoutError):
        async with limit.timeout():
            while late:
                _, late = await asyncio.wait(late)
    while late:
        for task in late:
            task.cancel()
        _, late = await asyncio.wait(late, timeout=_AGAIN_S)


class TaskSet:
    """
    The tasks of one session.

    A task that fails because the session is over ends silently. Any other error is passed to ``on_error``.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        #: In the order of their start, which is also the order of their cancellation.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_error = on_error
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a task. After ``cancel``, close the coroutine instead."""
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, SessionLostError):
            self._on_error(error)

    def cancel(self) -> Awaitable[object]:
        """Cancel all tasks but the current task, at once. Return an awaitable of the end of the cancelled tasks."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True)
