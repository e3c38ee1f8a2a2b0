"""Call the application's hooks on threads beside the loop, so that they can call the blocking methods of clients."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from types import SimpleNamespace
from typing import Any

from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.errors import IllegalStateError
from kiel_groups.sync.loop_thread import LoopThread

__all__ = ["HOOK_ARGUMENTS", "HookThreads"]

#: The arguments of clients that are hooks: functions, or a listener, whose methods are.
HOOK_ARGUMENTS = frozenset({"listener", "on_bad_record", "callback", "default_offset_commit_callback"})

_REBALANCE_HOOKS = ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost")

#: Whether the call in this context was made by a hook.
_IN_HOOK: ContextVar[bool] = ContextVar("in_hook", default=False)

#: The name of the listener's hook that made the call in this context, or None.
_LISTENER_HOOK: ContextVar[str | None] = ContextVar("listener_hook", default=None)


class HookThreads:
    """
    Replaces plain functions by coroutine functions that run them on a daemon thread and wait for them on the loop.

    Functions of one kind run one at a time, in the order of their calls. The exception is a function that is called
    because of a call that a hook made: the hook may be waiting for it.

    A coroutine function stays as it is, and runs on the loop. A thread cannot be cancelled: if the call is cancelled,
    it still waits for the thread, so that the next hook starts afterwards. Once the loop is being stopped it does not.

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
        Return what the client gets in place of an argument.

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
        """Return an object with the hooks that a listener has. ``on_stalled`` has a thread of its own already."""
        hooks = {name: getattr(listener, name, None) for name in _REBALANCE_HOOKS}
        replaced = {name: self._function("listener", hook) for name, hook in hooks.items() if hook is not None}
        for name, hook in replaced.items():
            # Logs name the hook, also if it is an object without a name.
            if hook is not hooks[name]:
                hook.__name__ = name
        on_stalled = getattr(listener, "on_stalled", None)
        return SimpleNamespace(**replaced, **({} if on_stalled is None else {"on_stalled": on_stalled}))

    def _function(self, kind: str, function: Any) -> Any:
        # The client refuses what is not a function, and classes.
        if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def call(*args: Any) -> None:
            name = call.__name__ if kind == "listener" else None
            if _IN_HOOK.get():
                await self._run(function, args, name)
            else:
                async with self._locks[kind]:
                    await self._run(function, args, name)

        return call

    def check_outside_listener(self, call: str) -> None:
        """
        Check that a call is not made by a hook of the listener: the call waits for the end of the hook.

        Raises:
            IllegalStateError: The hook makes the call.
        """
        if (name := self._context().get(_LISTENER_HOOK)) is not None:
            raise IllegalStateError(
                f"{call} was called in the listener's {name}, for whose end it waits; have another thread call it"
            )

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], listener_hook: str | None) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            self._context().run(_IN_HOOK.set, True)
            self._context().run(_LISTENER_HOOK.set, listener_hook)
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
        # Of an object whose call is a coroutine function, for instance.
        if inspect.isawaitable(called):
            await called
