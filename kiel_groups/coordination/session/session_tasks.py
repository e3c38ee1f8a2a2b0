"""Coroutines that run on their own until the session they belong to is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kiel_groups.errors import SessionLostError

__all__ = ["TaskSet"]

log = logging.getLogger(__name__)


class TaskSet:
    """
    The tasks of one session.

    A task that ends because the session is over ends quietly; any other error goes to ``on_error``, once each.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        #: In the order in which they were begun; they are cancelled in it.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_error = on_error
        self._closed = False

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine; after ``cancel`` nothing is started any more."""
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

    async def cancel(self) -> None:
        """End all of them and wait until they have ended."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
