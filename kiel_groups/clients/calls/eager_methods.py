"""Start the work of the clients' methods at the call, whether or not the caller awaits the result."""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from types import CodeType, FrameType
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, cast

from tornado import gen
from tornado.ioloop import IOLoop
from tornado.platform.asyncio import AsyncIOLoop

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.errors import ClosedError, IllegalStateError, KielGroupsError

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

#: The loops that a program has left, as by a Ctrl-C, while the close of a client runs them again.
run_by_close: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

#: How long a task that was cancelled is not started again, in seconds: nothing begins on a loop that ends.
_RESUME_S = 0.1

#: The tasks in progress. The event loop itself keeps only weak references to its tasks.
_running: set[asyncio.Task[Any]] = set()


class AnotherLoopError(IllegalStateError):
    """No event loop runs on the calling thread, and the loop of the client runs on another thread."""


class LoggedTask(asyncio.Task[T]):
    """A task that logs an error that was never retrieved, with this package's logger instead of asyncio's logger."""

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

    Any other CancelledError comes from an object that the task awaited, and counts as a failure.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class _Client(Protocol):
    def connect(self) -> Awaitable[object]: ...
    def close(self) -> Awaitable[object]: ...


async def connect_or_close(client: _Client) -> None:
    """
    Connect a client for its ``__aenter__``.

    If the caller is cancelled, close the client: the client may have just connected, and Python does not call
    ``__aexit__``.
    """
    try:
        await client.connect()
    except asyncio.CancelledError:
        await client.close()
        raise


def spawn(work: Coroutine[Any, Any, T], name: str, resume: Callable[[], object] | None = None) -> asyncio.Task[T]:
    """
    Start a coroutine, and keep its task alive until it ends. If no loop runs yet, the coroutine starts with the loop.

    A failure that is never retrieved is logged under ``name`` when the task is dropped. If the task is cancelled,
    ``resume`` is called a moment later: a program may cancel all tasks of its loop, and then continue.
    """
    task = keep_alive(LoggedTask(work, loop=home_loop(), name=name, context=context_without_calls()))
    if resume is not None:

        def ended(_: asyncio.Task[T]) -> None:
            if task.cancelled():
                task.get_loop().call_later(_RESUME_S, resume)

        task.add_done_callback(ended, context=Context())
    return task


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
    Start a coroutine that continues if its caller is cancelled, for example by a close.

    A failure after the cancellation cannot reach the caller, so the failure is logged under ``name``.
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
    """
    Return a future that fails with this error. The error is logged if no caller retrieves it.

    Raises:
        AnotherLoopError: This is the error. No loop would run the future, so it would never fail.
    """
    if isinstance(error, AnotherLoopError):
        raise error

    async def fail() -> NoReturn:
        raise error

    return spawn(suspended_if_left(fail), name)


def fails_in_future(method: Callable[P, asyncio.Future[T]]) -> Callable[P, asyncio.Future[T]]:
    """Decorate a method that returns a future, so that the future raises the KielGroupsErrors of the call itself."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        try:
            return method(*args, **kwargs)
        except KielGroupsError as error:
            return failed_future(error, method.__qualname__)

    return call


async def suspended_if_left(call: Callable[[], Awaitable[T]]) -> T:
    """
    Await a call of a client, and raise CancelledError instead of ClosedError if the program has left the event loop.

    After the program has left the loop, a close may run the loop again, and end the call. With a ClosedError, a loop
    around the call would end with a traceback when the program exits. Tornado ignores a CancelledError.
    """
    try:
        return await call()
    except ClosedError:
        if asyncio.get_running_loop() in run_by_close:
            raise asyncio.CancelledError from None
        raise


def starts_at_call(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, asyncio.Task[T]]:
    """
    Decorate a coroutine function, so that a call starts a task and returns it.

    The task is a Tornado-compatible future. A failure that is never retrieved is logged.
    """

    @functools.wraps(method)
    def start(*args: P.args, **kwargs: P.kwargs) -> asyncio.Task[T]:
        return spawn(suspended_if_left(functools.partial(method, *args, **kwargs)), method.__qualname__)

    return start


# The future of a call that returns values or records notes whether a caller received them.
#
# What this relies on
#   - ``await`` of a task calls the task's own ``__await__``, also that of a subclass. If the caller is cancelled as the
#     values arrive, ``CancelledError`` is raised at the ``yield from`` in it.
#   - All other ways to read the values call ``result()`` of the subclass: ``gather``, a ``yield`` in a Tornado
#     coroutine, ``chain_future``. asyncio's loop also calls it for each awaiting task, even if it then cancels that
#     task.
#   - When the future is not referred to any more, as after the caller was cancelled, CPython's reference counts delete
#     it at once. That is how ``ConsumeCall.is_dropped`` finds values that no caller can receive.
#   - When the time of ``gen.with_timeout`` is up, it adds a callback that calls ``result()`` and drops the outcome. Its
#     code object is a constant of ``with_timeout``, named ``error_callback``. The frame below ``result()``, which
#     ``sys._getframe`` finds, has this code.
#
# If Tornado renames that function, moves it, or calls ``result()`` from a function within it, values that arrive after
# the timeout count as received although no caller has them. The coroutine's next call finishes them, and the next
# commit skips them: they are lost. If asyncio reads the outcome of a task without calling ``result()`` and
# ``__await__`` of a subclass, as it does for plain tasks, received values are delivered again. If a future outlives its
# last caller, values that no caller received are delivered again after ``UNCLAIMED_S``, and later ones may come before
# them. Checked with CPython 3.11.7, 3.12.1 and 3.13.0, and Tornado 6.5, 6.5.10 and 6.6.1.
# ``tests/unit/clients/calls/test_runtime_assumptions.py`` fails if this changes.


#: The callback that ``gen.with_timeout`` adds to a future whose time is up; it reads the outcome and drops it.
_DROPS_OUTCOME = [
    code
    for code in gen.with_timeout.__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == "error_callback"
]


class _ConsumeTask(LoggedTask[T]):
    """
    A task whose values are marked as received once a caller has awaited it to the end, or has called ``result()``.

    Values are not marked if the caller is cancelled just when they arrive, or if ``gen.with_timeout`` reads them after
    its timeout.
    """

    def __init__(self, work: Coroutine[Any, Any, T], call: ConsumeCall, name: str, late: Callable[[], T]) -> None:
        super().__init__(work, loop=home_loop(), name=name, context=context_without_calls())
        self._call = call
        self._late = late
        #: Whether a caller had received the values before the latest ``result()``.
        self._received_before = False
        call.returns(self)

    def __await__(self) -> Generator[Any, None, T]:
        try:
            values = yield from super().__await__()
        except asyncio.CancelledError:
            # The event loop called result() before it cancelled the caller. Another caller may have the values.
            self._call.received = self._received_before
            # The traceback keeps this frame, and would keep the future, for as long as the caller's task is kept.
            del self
            raise
        self._call.received = self._received_before = True
        return self._unless_given_up(values)

    def result(self) -> T:
        values = super().result()
        self._received_before = self._call.received
        self._call.received = self._call.received or not _only_drops_outcome(sys._getframe(1))
        return self._unless_given_up(values)

    def give_back(self) -> None:
        """Mark the values for another delivery. No caller has the values, although the call was awaited to its end."""
        self._call.received, self._call.superseded = False, True

    def _unless_given_up(self, values: T) -> T:
        """Return the values. If the values came too late and are delivered again, return the result of ``late``."""
        return self._late() if self._call.redelivered and values else values


def _only_drops_outcome(frame: FrameType) -> bool:
    return frame.f_code in _DROPS_OUTCOME


def give_back(call: object) -> None:
    """
    Mark the values of a call for another delivery. The caller's thread was interrupted while it waited for the values.

    Objects that ``start_consume_call`` has not returned are ignored.
    """
    if isinstance(call, _ConsumeTask):
        call.give_back()


def start_consume_call(
    work: Coroutine[Any, Any, T], call: ConsumeCall, name: str, late: Callable[[], T]
) -> asyncio.Task[T]:
    """
    Start a call that returns values or records. ``call`` tracks whether a caller has received them.

    If the values are delivered again before a caller reads the result, the result is what ``late`` returns or raises.
    """
    return keep_alive(_ConsumeTask(work, call, name, late))
