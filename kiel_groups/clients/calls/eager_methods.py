"""Make public methods plain functions: the work starts at the call, whether or not the result is awaited."""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

from tornado.ioloop import IOLoop
from tornado.platform.asyncio import AsyncIOLoop

from kiel_groups.clients.calls.callers import context_without_calls
from kiel_groups.errors import ClosedError, KielGroupsError

__all__ = [
    "LoggedTask",
    "cancels_this_task",
    "connect_or_close",
    "failed_future",
    "home_loop",
    "keep_alive",
    "run_by_close",
    "shielded",
    "spawn",
    "starts_at_call",
    "suspended_if_left",
]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: The loops that a program has left, as by a Ctrl-C, while the close of a client runs them again.
run_by_close: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

#: The tasks in progress. The event loop itself keeps only weak references to its tasks.
_running: set[asyncio.Task[Any]] = set()


class LoggedTask(asyncio.Task[T]):
    """A task that logs an error that was never retrieved, with this package's logger instead of asyncio's."""

    def __del__(self) -> None:
        # asyncio's own mark for "has an exception that was never retrieved", on the C and the Python task alike.
        if getattr(self, "_log_traceback", False):
            self._log_traceback = False
            error = self.exception()
            # A Ctrl-C that hit this task has also ended the program's loop, so it has been reported.
            if isinstance(error, Exception):
                log.error("%s failed, and its result was not awaited", self.get_name(), exc_info=error)
        super().__del__()


def home_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop or, if no loop runs yet, the loop that ``IOLoop.current().start()`` will run."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return cast(AsyncIOLoop, IOLoop.current()).asyncio_loop


def cancels_this_task(error: BaseException) -> bool:
    """
    Return whether an error is the CancelledError of the running task's own cancellation.

    Otherwise a CancelledError comes from something that the task awaited, and is a failure like any other.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class _Client(Protocol):
    def connect(self) -> Awaitable[object]: ...
    def close(self) -> Awaitable[object]: ...


async def connect_or_close(client: _Client) -> None:
    """
    Connect a client, as its ``__aenter__``.

    If the caller is cancelled, the client is closed: it may have just connected, and ``__aexit__`` is not called.
    """
    try:
        await client.connect()
    except asyncio.CancelledError:
        await client.close()
        raise


def spawn(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """
    Start a coroutine, and keep its task alive until it ends. If no loop runs yet, the coroutine starts with the loop.

    A failure that is never retrieved is logged under ``name`` when the task is dropped.
    """
    return keep_alive(LoggedTask(work, loop=home_loop(), name=name, context=context_without_calls()))


def keep_alive(task: LoggedTask[T]) -> asyncio.Task[T]:
    """Keep a task alive until it ends."""
    _running.add(task)
    # The callback gets a context of its own, or it would keep the caller's context alive while the task runs.
    task.add_done_callback(_running.discard, context=Context())
    # A kept task is dropped before its end only when the program exits, so asyncio need not warn of it.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


def shielded(work: Coroutine[Any, Any, T], name: str) -> asyncio.Future[T]:
    """
    Start a coroutine that continues although its caller is cancelled, as by a close.

    The caller does not get a failure after that: a line of the log has it, under ``name``.
    """
    task = spawn(work, name)
    shield = asyncio.shield(task)

    def ended(_: asyncio.Task[T]) -> None:
        if shield.cancelled() and not task.cancelled() and (error := task.exception()) is not None:
            trace = None if isinstance(error, KielGroupsError) else error
            log.warning("%s failed after its caller was cancelled: %s", name, error, exc_info=trace)

    task.add_done_callback(ended)
    return shield


def failed_future(error: Exception, name: str) -> asyncio.Task[Any]:
    """Return a future that fails with this error. The error is logged if no caller retrieves it."""

    async def fail() -> NoReturn:
        raise error

    return spawn(suspended_if_left(fail), name)


async def suspended_if_left(call: Callable[[], Awaitable[T]]) -> T:
    """
    Return what a call of a client returns, and raise what it raises, except while a close runs a loop that was left.

    The coroutines of a program that exits must stay suspended: an endless loop around a call would end with a traceback
    of the ClosedError. So the call is cancelled instead, which Tornado passes over.
    """
    try:
        return await call()
    except ClosedError:
        if asyncio.get_running_loop() in run_by_close:
            raise asyncio.CancelledError from None
        raise


def starts_at_call(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, asyncio.Task[T]]:
    """
    Make a coroutine function a plain function that returns an already started task.

    The task is a Tornado-compatible future. Its failure is logged if it is never retrieved.
    """

    @functools.wraps(method)
    def start(*args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        return spawn(suspended_if_left(functools.partial(method, *args, **kwargs)), method.__qualname__)

    return start
