"""
Build blocking clients: each runs an asynchronous client on a loop thread, and its methods wait for their outcome.

The methods of a blocking class are built from the asynchronous client's methods, with their signatures and docstrings.
If a docstring describes a returned future, the blocking method waits for that future and returns its result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from types import SimpleNamespace, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from kiel_groups.clients.calls.callers import set_caller
from kiel_groups.clients.calls.eager_methods import give_back
from kiel_groups.clients.calls.left_loop import LeftLoop
from kiel_groups.clients.delivery.listener_calls import THREAD_HOOK, check_listener
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.sync.loop_thread import LoopThread, check_no_loop_runs

log = logging.getLogger(__name__)


#: The arguments of clients that are hooks: functions, or a listener, whose methods are.
HOOK_ARGUMENTS = frozenset({"listener", "on_bad_record", "callback", "default_offset_commit_callback"})

_REBALANCE_HOOKS = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")


class HookThreads:
    """
    Replaces hooks that are plain functions with coroutine functions that run them on daemon threads.

    Functions of one kind (listener, bad records, callbacks) run one at a time, in the order of their calls. A function
    that is called because of a hook's own call is an exception: this function runs at once, because that hook may wait
    for its end.

    A coroutine function stays as it is, and runs on the event loop. A thread cannot be cancelled. If the call of a hook
    is cancelled, the call still waits for the thread, so that the next hook starts after the thread has ended. If the
    event loop is being stopped, the call does not wait.

    Args:
        thread: The loop's thread.
        name: Part of the threads' names.
        context: Returns the context of the calling thread, in which its calls of the client run.
    """

    def __init__(self, thread: LoopThread, name: str, context: Callable[[], Context]) -> None:
        self._thread = thread
        self._name = name
        self._context = context
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def replace(self, argument: str, given: Any) -> Any:
        """
        Return the object to pass to the asynchronous client in place of an argument with a hook.

        Args:
            argument: The argument's name, one of ``HOOK_ARGUMENTS``.
            given: A listener, a function, or anything else, which is returned as it is.

        Raises:
            ArgumentTypeError: The listener is not an object with hooks.
        """
        if argument == "listener":
            check_listener(given)
            return given if given is None else self._listener(given)
        return self._function("on_bad_record" if argument == "on_bad_record" else "callback", given)

    def _listener(self, listener: object) -> object:
        """
        Return a listener with replaced rebalance hooks, and the same ``on_stalled``. The loop's thread never calls
        ``on_stalled``.
        """
        hooks = {name: getattr(listener, name, None) for name in _REBALANCE_HOOKS}
        replaced = {name: self._function("listener", hook) for name, hook in hooks.items() if hook is not None}
        for name, hook in replaced.items():
            # Logs name the hook, also if it is an object without a name.
            if hook is not hooks[name]:
                hook.__name__ = name
        on_stalled = getattr(listener, "on_stalled", None)
        return SimpleNamespace(**replaced, **({} if on_stalled is None else {"on_stalled": on_stalled}))

    def _function(self, kind: str, function: Any) -> Any:
        # The client refuses classes, and objects that cannot be called.
        if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def call(*args: Any) -> None:
            name = call.__name__ if kind == "listener" else ""
            if THREAD_HOOK.get() is not None:
                await self._run(function, args, name)
            else:
                async with self._locks[kind]:
                    await self._run(function, args, name)

        return call

    def check_outside_listener(self) -> None:
        """
        Check that ``close()`` is not called by a hook of the listener: the close would wait for the end of that hook.

        Raises:
            IllegalStateError: A hook of the listener makes the call.
        """
        if name := self._context().get(THREAD_HOOK):
            raise IllegalStateError(
                f"close() was called in the listener's {name}, for whose end it waits; have another thread call it"
            )

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], name: str) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            self._context().run(THREAD_HOOK.set, name)
            try:
                outcome.set_result(function(*args))
            except BaseException as error:
                outcome.set_exception(error)
            # The loop may have ended meanwhile.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=run, name=f"kiel-groups-{self._name}-hook", daemon=True).start()
        cancelled = False
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                if self._thread.stopped:
                    raise
                cancelled = True
        called = outcome.result()
        if inspect.iscoroutine(called) and cancelled:
            called.close()
        if cancelled:
            raise asyncio.CancelledError
        # The hook may be an object whose ``__call__`` is a coroutine function.
        if inspect.isawaitable(called):
            await called


class Client(Protocol):
    """The methods of all asynchronous clients, and ``_left_loop``, which ends a client without its event loop."""

    _left_loop: LeftLoop

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def close(self) -> asyncio.Future[None]: ...

    @property
    def closing(self) -> bool: ...


A = TypeVar("A")
C = TypeVar("C", bound=Client)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: How long the close of a client that is still open when the interpreter exits may take, in seconds.
AT_EXIT_S = 5.0


class _Propagating(Exception):  # noqa: N818 -- not an error
    """Raised on the loop's thread, in place of the exception that is propagating in the calling thread."""


class Blocking(Generic[C]):
    """
    The base class of blocking clients. Records in flight belong to the thread that received them.

    Ctrl-C interrupts the wait of a call, and cancels the call. On a thread with a running event loop, a call raises a
    ConfigError that names the asynchronous client. In a fork of the process, a call raises a ClosedError.
    """

    _client: C

    def _set_up(self, make: Callable[..., C], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = make.__name__
        self._instead = f"use kiel_groups.{name} there, and await"
        self._thread = LoopThread(f"sync.{name}", self._instead, self._abandon)
        self._ending = threading.RLock()
        self._callers = threading.local()
        self._hooks = HookThreads(self._thread, f"sync.{name}", self._caller_context)
        hooks = {argument: self._hooks.replace(argument, kwargs[argument]) for argument in HOOK_ARGUMENTS & set(kwargs)}
        self._client = make(*args, **{**kwargs, **hooks})
        _open.add(self)

    def __enter__(self) -> Self:
        try:
            self._wait(self._client.__aenter__)
        except BaseException:
            self._end(functools.partial(self._client.__aexit__, *sys.exc_info()))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # As under asyncio, the asynchronous client's 'async with' gets a CancelledError for a Ctrl-C.
        cancelled = kind is not None and not issubclass(kind, Exception)
        kind = asyncio.CancelledError if cancelled else kind
        self._end(functools.partial(self._client.__aexit__, kind, error, traceback))

    def _caller_context(self) -> Context:
        """Return the calling thread's context, which makes the client attribute records in flight to this thread."""
        if not hasattr(self._callers, "context"):
            self._callers.context = Context()
            self._callers.context.run(set_caller, object())
        context: Context = self._callers.context
        return context

    def _wait(self, begin: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call ``begin`` on the event loop, and wait for the outcome of the awaitable that it returns.

        If an exception ends the wait, records that the call returns are delivered again.
        """
        context = self._caller_context()
        begun: Awaitable[T] | None = None

        async def call() -> T:
            nonlocal begun
            begun = context.run(begin, *args, **kwargs)
            return await begun

        try:
            return self._thread.call(call)
        except BaseException:
            # Records may arrive together with a Ctrl-C, or with an alarm's exception: the program never gets them.
            self._thread.post(lambda: give_back(begun))
            raise

    def _begin(
        self, begin: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        """Call ``begin`` on the event loop, and return a future with the outcome of the awaitable that it returns."""
        context = self._caller_context()

        async def call() -> T:
            return await context.run(begin, *args, **kwargs)

        return self._thread.begin(call)

    def _read_on_loop(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Call a function on the loop, and return its result. Once the client was closed, call it on this thread.

        Raises:
            ClosedError: An exception has ended the loop, or this is a fork of the process.
        """
        context = self._caller_context()

        async def call() -> T:
            return context.run(read, *args, **kwargs)

        try:
            if not self._was_closed:
                return self._thread.call(call)
        except ClosedError:
            if not self._was_closed:
                raise
        return context.run(read, *args, **kwargs)

    def _read_attribute(self, read: Callable[[C], T]) -> T:
        """Read an attribute on the loop. If the loop has ended, even by an exception, read it on this thread."""
        try:
            return self._read_on_loop(read, self._client)
        except ClosedError:
            if not self._thread.failed:
                raise
        return self._caller_context().run(read, self._client)

    def _abandon(self) -> None:
        """
        End the client without its event loop, because an exception has ended the loop.

        A member's heartbeats have a thread of their own. These heartbeats would keep the member's session and
        partitions until the process ends.
        """
        self._client._left_loop.abandon()

    def _end(self, close: Callable[[], Awaitable[None]], timeout_s: float | None = None) -> None:
        """
        Close the client, then stop the loop. Further calls, and calls in a fork of the process, do nothing.

        If another thread is already closing the client, ``close`` is still called: this call may shorten the close, and
        the close may wait for records that this thread has in flight.
        """
        self._hooks.check_outside_listener()
        context, propagating = self._caller_context(), sys.exc_info()[0] is not None

        async def as_the_caller() -> None:
            # The client's ``close`` checks ``sys.exc_info``: under an exception, the caller's records are not finished.
            if not propagating:
                return await close()
            try:
                raise _Propagating
            except _Propagating:
                return await close()

        async def call() -> None:
            await asyncio.get_running_loop().create_task(as_the_caller(), context=context)

        if self._thread.failed and not self._thread.forked:
            # The thread ends the client by itself.
            self._thread.stop()
            _open.discard(self)
        if self._has_ended():
            return
        check_no_loop_runs(self._instead)
        if not self._ending.acquire(blocking=False):
            # The other thread raises the errors of the close.
            with suppress(KielGroupsError):
                self._thread.call(call, timeout_s)
            self._ending.acquire()
        try:
            if self._has_ended():
                return
            try:
                self._thread.call(call, timeout_s)
            except (TypeError, ConfigError):
                # If an argument is not valid, the close has not begun.
                if not self._client.closing:
                    raise
                self._stop_now()
                raise
            except BaseException:
                self._stop_now()
                raise
            self._thread.stop()
            _open.discard(self)
        finally:
            self._ending.release()

    def _stop_now(self) -> None:
        """Stop the loop, and end the client without it: its close has failed, or takes too long."""
        try:
            if self._thread.stop():
                # Without a running loop, the client's own ``close`` does what is still possible.
                self._client.close()
                self._abandon()
        finally:
            _open.discard(self)

    @property
    def _was_closed(self) -> bool:
        """Whether the loop was stopped by a close, and not by an exception."""
        return self._thread.stopped and not self._thread.failed

    def _has_ended(self) -> bool:
        return self._thread.stopped or self._thread.forked

    def _end_at_exit(self) -> None:
        if self._thread.stop_unless_started():
            # Nothing is open. From Python 3.12 on, no thread starts at the exit of the interpreter.
            return
        try:
            raise _Propagating
        except _Propagating:
            self._end(functools.partial(self._client.__aexit__, asyncio.CancelledError, None, None), AT_EXIT_S)


def takes_arguments_of(
    make: Callable[P, C],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Blocking[C], P], None]]:
    """Decorate an empty ``__init__``, to replace it with a constructor with the asynchronous client's parameters."""

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Blocking[C], P], None]:
        @functools.wraps(make)
        def init(self: Blocking[C], /, *args: P.args, **kwargs: P.kwargs) -> None:
            self._set_up(make, args, kwargs)

        # A class's signature has no ``self``: without one, tools would drop the first argument in its place.
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        arguments = inspect.signature(make).parameters.values()
        vars(init)["__signature__"] = inspect.Signature([own, *arguments])
        return init

    return decorate


def _calling(
    method: Callable[Concatenate[A, P], R], run: Callable[[Blocking[Any], Callable[[], R]], T]
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return a method that has ``run`` call a method of the asynchronous client."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self, functools.partial(method, self._client, *args, **kwargs))

    return call


def blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return a method that waits for the outcome of an asynchronous client's method."""
    return _calling(method, Blocking._wait)


def in_background(
    method: Callable[Concatenate[A, P], Awaitable[T]],
) -> Callable[Concatenate[Blocking[Any], P], concurrent.futures.Future[T]]:
    """Return a method that starts an asynchronous client's method, and returns a future without waiting for it."""
    return _calling(method, Blocking._begin)


def until_closed(
    method: Callable[Concatenate[A, P], Awaitable[T]],
) -> Callable[Concatenate[Blocking[Any], P], T | None]:
    """
    Return a method that waits as a method of ``blocking`` does, and returns None if the client was or is being closed.
    """

    def wait(self: Blocking[Any], begin: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return self._wait(begin)
        except ClosedError:
            if not self._was_closed:
                raise
            return None

    return _calling(method, wait)


def immediate(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return a method that calls a plain method of an asynchronous client on the client's loop."""
    return _calling(method, Blocking._read_on_loop)


def ending(method: Callable[Concatenate[A, P], Awaitable[None]]) -> Callable[Concatenate[Blocking[Any], P], None]:
    """Return a method that closes the asynchronous client, and then stops its loop."""
    return _calling(method, Blocking._end)


def takes_hook(
    argument: str, method: Callable[Concatenate[Blocking[Any], P], T]
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """
    Wrap a blocking method, so that plain functions passed as ``argument`` run on threads of their own.

    ``argument`` names a callback, or a listener with hooks. Without the wrapper, these functions would run on the
    loop's thread.
    """
    index = list(inspect.signature(method).parameters).index(argument) - 1

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        positional: Any = args
        if argument in kwargs:
            kwargs[argument] = self._hooks.replace(argument, kwargs[argument])
        elif len(args) > index:
            hook = self._hooks.replace(argument, args[index])
            positional = (*args[:index], hook, *args[index + 1 :])
        return method(self, *positional, **kwargs)

    return call


class Attribute(Generic[A, T]):
    """
    A property of an asynchronous client of the class ``client``. ``read`` reads the property on the client's loop.
    """

    def __init__(self, client: type[A], read: Callable[[A], T]) -> None:
        self._client = client
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(getattr(self._client, name, self), "__doc__", None)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: Blocking[Any], owner: type) -> T: ...

    def __get__(self, instance: Blocking[Any] | None, owner: type) -> Self | T:
        return self if instance is None else instance._read_attribute(self._read)


#: The clients to close when the interpreter exits.
_open: set[Blocking[Any]] = set()


def open_clients() -> list[Blocking[Any]]:
    """Return the clients of this process that were not closed."""
    return list(_open)


def _exit() -> None:
    for client in list(_open):
        try:
            client._end_at_exit()
        except Exception:
            log.exception("a client could not be closed at the exit of the interpreter")


# ``atexit`` would be too late: by then the executors that the loops use have been shut down.
threading._register_atexit(_exit)  # type: ignore[attr-defined]
