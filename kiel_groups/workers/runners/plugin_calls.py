"""
Call the methods of a connector or a task (a plugin object), one at a time.

Coroutine functions run on the event loop, and plain functions run on a thread.

A constructor may be slow, so it runs on a thread. But if any method of the class is a coroutine function, the
constructor runs on the event loop: the clients of asyncio and Tornado that such a class creates may need the running
loop.

A thread cannot be cancelled. If a call is cancelled while its thread runs, the call waits for the thread: until then,
the method may write to its system, so the claim of the work must not be released.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from kiel_groups.errors import ClaimLostError, KielGroupsError, TaskStoppedError
from kiel_groups.workers.plugins.interfaces import Connector, SinkTask, SourceTask, Task
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session


class WorkFence:
    """
    Tells whether one runner may still deliver and commit. Each delivery and each commit first checks its fence.

    The fence is open while the session is trusted, until a caller shuts the fence. After a freeze that outlasts the
    lease, the session is not trusted, and the process delivers nothing more.

    Args:
        session: The session that has the claim.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        #: Why the runner may no longer deliver or commit; "" while it may.
        self.shut_reason = ""

    def shut(self, reason: str) -> None:
        """Make the runner deliver and commit nothing more. A later call does not change the reason."""
        self.shut_reason = self.shut_reason or reason

    @property
    def is_open(self) -> bool:
        """Whether records may be delivered now."""
        return not self.shut_reason and self._session.trusted

    async def wait_open(self) -> None:
        """
        Wait until records may be delivered. A session that has lost its connection is trusted again after a reconnect.

        Raises:
            ClaimLostError: The fence was shut.
            SessionLostError: The session is over.
        """
        while not self.is_open:
            if self.shut_reason:
                raise ClaimLostError(f"nothing is delivered any more: {self.shut_reason}")
            await self._session.wait_trusted()


#: The methods that do nothing unless a plugin overrides them. They need no thread.
_DEFAULTS = frozenset(
    {
        Connector.start,
        Connector.stop,
        Task.stop,
        SourceTask.start,
        SourceTask.flush,
        SinkTask.start,
        SinkTask.open,
        SinkTask.flush,
        SinkTask.close,
    }
)

#: The names of all methods that a worker calls on an object.
_METHODS = frozenset({method.__name__ for method in _DEFAULTS} | {"task_configs", "poll", "put"})

#: Calls a method with arguments, and returns its result.
Call: TypeAlias = Callable[..., Awaitable[Any]]

_PluginT = TypeVar("_PluginT")
_Result = TypeVar("_Result")


class _FenceClosedError(Exception):
    """The fence is closed, so the method was not called."""


class PluginCalls:
    """
    Creates one plugin object, and calls its methods one at a time.

    Args:
        runtime: Starts the threads.
        name: Part of the threads' names.
        fence: Checked right before each call by ``in_turn``.
    """

    def __init__(self, runtime: Runtime, name: str, fence: WorkFence) -> None:
        self._runtime = runtime
        self._name = name
        self._fence = fence
        self._lock = asyncio.Lock()
        #: Whether the last call has begun, or waits for the calls before it.
        self._is_last = False

    async def create(self, plugin_class: type[_PluginT]) -> _PluginT:
        """
        Create the plugin object, and return it. A cancelled call waits for the constructor, and drops the object.

        Raises:
            KielGroupsError: The constructor has tried to end the process, or to cancel the worker.
            Exception: Any error of the constructor.
        """
        async with self._lock:
            if _needs_thread(plugin_class):
                return cast("_PluginT", await self._on_thread(partial(guarded, plugin_class, ())))
            try:
                return plugin_class()
            except (SystemExit, asyncio.CancelledError) as error:
                raise _refused(plugin_class, error) from error

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """
        Call a method after the calls before it, and return its result.

        Raises:
            TaskStoppedError: ``call_last`` was called already.
            KielGroupsError: The method has tried to end the process, or to cancel the worker.
            Exception: Any error of the method.
        """
        if self._is_last:
            raise TaskStoppedError(f"{self._name} is stopped")
        async with self._lock:
            return await self._run(method, arguments)

    async def in_turn(self, work: Callable[[Call], Awaitable[_Result]]) -> _Result:
        """
        Run ``work`` after the calls before it, while the fence is open. No other call begins before ``work`` has ended.

        Args:
            work: Called with a function that calls a method, as ``call`` does. ``work`` may use this function once. If
                the fence closes before the method begins, the function raises an error, and ``work`` runs again when
                the fence is open.

        Raises:
            TaskStoppedError: ``call_last`` was called already.
            ClaimLostError: The fence was shut.
            SessionLostError: The session is over.
            Exception: Any error of ``work``.
        """
        while True:
            await self._fence.wait_open()
            if self._is_last:
                raise TaskStoppedError(f"{self._name} is stopped")
            async with self._lock:
                # The process may have been frozen while it waited for the calls before, or for a thread.
                with suppress(_FenceClosedError):
                    return await work(self._call_if_open)

    async def call_fenced(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method while the fence is open, and return its result; raises as ``in_turn``."""
        return await self.in_turn(lambda call: call(method, *arguments))

    async def _call_if_open(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return await self._run(method, arguments, self._check_open)

    def _check_open(self) -> None:
        if not self._fence.is_open:
            raise _FenceClosedError

    async def call_last(self, method: Callable[..., Any]) -> None:
        """
        Call a method after the calls before it, and refuse later calls. A cancellation does not prevent the call.

        Raises:
            KielGroupsError: The method has tried to end the process, or to cancel the worker.
            Exception: Any error of the method.
        """
        self._is_last = True
        is_cancelled = False
        while True:
            try:
                await self._lock.acquire()
                break
            except asyncio.CancelledError:
                is_cancelled = True
        try:
            await self._run(method, ())
        finally:
            self._lock.release()
        if is_cancelled:
            raise asyncio.CancelledError

    async def _run(
        self, method: Callable[..., Any], arguments: tuple[Any, ...], check: Callable[[], None] = lambda: None
    ) -> Any:
        """Call a method, and return its result. First call ``check``, which may raise an error, on the same thread."""
        if getattr(method, "__func__", None) in _DEFAULTS:
            return None
        if inspect.iscoroutinefunction(method):
            check()
            return await self._awaited(method, method(*arguments))

        def run() -> Any:
            check()
            return guarded(method, arguments)

        result = await self._on_thread(run)
        return await self._awaited(method, result) if inspect.isawaitable(result) else result

    async def ended(self) -> None:
        """
        Wait until no call runs any more. Cancellations of this wait are ignored.

        A call may outlast its caller: clients call hooks of a task, and a client's close waits only for a limited time.
        """
        while self._lock.locked():
            with suppress(asyncio.CancelledError):
                async with self._lock:
                    pass

    @staticmethod
    async def _awaited(method: Callable[..., Any], work: Awaitable[Any]) -> Any:
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            return await work
        except SystemExit as error:
            raise _refused(method, error) from error
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling() > cancelled:
                raise
            raise _refused(method, error) from error

    async def _on_thread(self, function: Callable[[], Any]) -> Any:
        running = self._runtime.in_thread(function, self._name)
        is_cancelled = False
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            # The caller was cancelled, and drops the error. asyncio would log an error that is not retrieved.
            running.exception()
            raise asyncio.CancelledError
        return running.result()


def _needs_thread(plugin_class: type[object]) -> bool:
    """Return whether the class has its own constructor, and no method that a worker calls is a coroutine function."""
    if plugin_class.__init__ is object.__init__ and plugin_class.__new__ is object.__new__:
        return False
    return not any(inspect.iscoroutinefunction(getattr(plugin_class, name, None)) for name in _METHODS)


def guarded(method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """
    Call a plugin's method, and return its result. Replace errors that would end more than this call.

    Raises:
        KielGroupsError: The method raised an error that is not an ``Exception``, for example SystemExit.
        Exception: Any error of the method.
    """
    try:
        return method(*arguments)
    except Exception:
        raise
    except BaseException as error:
        raise _refused(method, error) from error


def _refused(method: Callable[..., Any], error: BaseException) -> KielGroupsError:
    name = getattr(method, "__qualname__", repr(method))
    return KielGroupsError(f"{name} raised {type(error).__name__}, which would end more than its own work")
