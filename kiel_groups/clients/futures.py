"""Public methods as plain functions: the work starts at the call, whether or not anybody awaits the result."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = ["started", "spawn"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: The event loop itself keeps only weak references to its tasks.
_running: set[asyncio.Task[Any]] = set()


class _LoggedTask(asyncio.Task[T]):
    """A task that says in *our* log, not in asyncio's, that it failed and nobody looked."""

    def __del__(self) -> None:
        # asyncio's own mark for "has an exception that was never retrieved", on the C and the Python task alike.
        if getattr(self, "_log_traceback", False):
            self._log_traceback = False
            error = self.exception()
            # A Ctrl-C that hit this task has ended the program's loop, too: somebody knows.
            if isinstance(error, Exception):
                log.error("%s failed, and nobody awaited it", self.get_name(), exc_info=error)
        super().__del__()


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """
    Start a coroutine on the running loop and keep it alive until it ends.

    A failure that nobody retrieves is logged under ``name`` when the task is dropped.
    """
    task = _LoggedTask(work, loop=asyncio.get_running_loop(), name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    # Kept until it ends, so only a program that ends before it can drop it: that is not worth a complaint.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def started(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, asyncio.Task[T]]:
    """
    Make a coroutine function a plain function that returns an already started task.

    The task is a Tornado-compatible future. Its failure is logged when nobody awaits it.

    Raises:
        RuntimeError: At the call, where no event loop runs.
    """

    @functools.wraps(method)
    def start(*args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        # Asked before the coroutine exists: one that never starts would warn that it was never awaited.
        asyncio.get_running_loop()
        return spawn(method(*args, **kwargs), method.__qualname__)

    return start
