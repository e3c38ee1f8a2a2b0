"""Public methods as plain functions: the work starts at the call, whether or not anybody awaits the result."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from tornado.ioloop import IOLoop
from tornado.platform.asyncio import AsyncIOLoop

from kiel_groups.clients.calls.callers import context_without_calls

__all__ = ["started", "spawn", "failed", "home_loop", "kept", "LoggedTask"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: The event loop itself keeps only weak references to its tasks.
_running: set[asyncio.Task[Any]] = set()


class LoggedTask(asyncio.Task[T]):
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


def home_loop() -> asyncio.AbstractEventLoop:
    """The loop that runs or, where none does yet, the one that ``IOLoop.current().start()`` is going to run."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return cast(AsyncIOLoop, IOLoop.current()).asyncio_loop


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """
    Start a coroutine and keep it alive until it ends; where no loop runs yet, it starts when one does.

    A failure that nobody retrieves is logged under ``name`` when the task is dropped.
    """
    return kept(LoggedTask(work, loop=home_loop(), name=name, context=context_without_calls()))


def kept(task: LoggedTask[T]) -> asyncio.Task[T]:
    """Keep a task alive until it ends."""
    _running.add(task)
    # In a context of its own: it would hold the caller's for as long as the task runs.
    task.add_done_callback(_running.discard, context=Context())
    # Kept until it ends, so only a program that ends before it can drop it: that is not worth a complaint.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def failed(error: Exception, name: str) -> asyncio.Task[Any]:
    """A future that fails with this error, at once; logged where nobody looks."""

    async def fail() -> NoReturn:
        raise error

    return spawn(fail(), name)


def started(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, asyncio.Task[T]]:
    """
    Make a coroutine function a plain function that returns an already started task.

    The task is a Tornado-compatible future. Its failure is logged when nobody awaits it.
    """

    @functools.wraps(method)
    def start(*args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        return spawn(method(*args, **kwargs), method.__qualname__)

    return start
