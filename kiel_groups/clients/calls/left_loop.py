"""
Close a client whose event loop no longer runs, for programs that catch Ctrl-C around their loop.

If the loop can run again, this module runs it for a bounded time: at ``close()``, or when the interpreter exits and a
close was not awaited. If the loop is closed (``asyncio.run`` has ended), the client does what it can without a loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 -- its exit hook stops name resolution, and must run after ours
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from kiel_groups.clients.calls import interrupts
from kiel_groups.clients.calls.eager_methods import LoggedTask, home_loop, keep_alive, run_by_close, spawn

__all__ = ["LeftLoop", "running_loop"]

log = logging.getLogger(__name__)

#: How long a close may run the loop again, in seconds, since a program that was asked to exit must exit.
LONGEST_S = 5.0


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LeftLoop:
    """
    Remembers the loop that a client is used on. If the program has left that loop, the client's close runs it again.

    Args:
        at_exit: Closes the client if necessary; called when the interpreter exits, if the loop was left but not closed.
        abandon: Does what is possible without the loop; called at most once: when the interpreter exits, or when
            ``close`` finds the loop closed or is interrupted.
    """

    def __init__(self, at_exit: Callable[[], None] | None = None, abandon: Callable[[], None] | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_exit = at_exit
        self._abandon = abandon
        self._pid = 0
        #: Set once the client was closed on a running loop. Not set by a close on a loop that was left, since the
        #: coroutines of a program that exits must stay suspended.
        self.closed = asyncio.Event()

    def remember(self) -> None:
        """Remember the loop that runs now or will run. Until the close, a Ctrl-C interrupts none of its callbacks."""
        self._loop = home_loop()
        interrupts.defer(self)
        self._pid = os.getpid()
        _left.add(self)

    def abandon(self) -> None:
        """Do what is possible without the loop, once."""
        work, self._abandon = self._abandon, None
        if work is not None:
            work()

    def exit(self) -> None:
        """
        Close or abandon the client when the interpreter exits.

        Do nothing if the loop is running, or in a fork of the process that used the client.
        """
        if self._loop is None or self._loop.is_running() or self._pid != os.getpid():
            return
        if self._at_exit is not None and not self._loop.is_closed():
            self._at_exit()
        self.abandon()

    def close(
        self, closing: asyncio.Future[None] | None, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Future[None]:
        """
        Close a client, once: on the running loop, or on the loop that was left, for ``LONGEST_S`` at most.

        Args:
            closing: The future that an earlier call returned, or None for the first call. If it was cancelled, the
                client is closed again.
            work: The client's close.
            name: The name of the close in the log.

        Returns:
            A future. If no loop was running, it is done, unless the close takes longer than ``LONGEST_S``.

        Raises:
            KeyboardInterrupt: Another Ctrl-C came while this method ran the loop, so the close was given up.
        """
        if running_loop() is not None:
            if closing is None or closing.cancelled():
                closing = spawn(work(), name)
            closing.add_done_callback(self._was_closed)
            return closing
        if closing is not None and closing.done() and not closing.cancelled():
            return closing
        if self._loop is None:
            # The client was closed before it was used: later calls, on any loop, need not wait for a close.
            self.closed.set()
            return _nothing_to_do()
        if self._loop.is_closed():
            log.warning("%s: the event loop is closed already; work that was not finished is not completed", name)
            self.abandon()
            return _nothing_to_do()
        try:
            run_by_close.add(self._loop)
            with interrupts.uninterrupted():
                return _run_on(self._loop, closing, work, name)
        except KeyboardInterrupt:
            self._at_exit = None
            self.abandon()
            raise
        finally:
            run_by_close.discard(self._loop)
            interrupts.restore(self)

    def _was_closed(self, _: asyncio.Future[None]) -> None:
        self.closed.set()
        interrupts.restore(self)


_left: weakref.WeakSet[LeftLoop] = weakref.WeakSet()


def _exit() -> None:
    ends_s = time.monotonic() + LONGEST_S
    for left in list(_left):
        if time.monotonic() > ends_s:
            log.error("not all clients were closed: %.0f s have passed since the interpreter's exit began", LONGEST_S)
            return
        try:
            left.exit()
        except Exception:
            log.exception("a client was not closed at the end of the interpreter")


# atexit is too late: its functions can neither start a thread nor resolve a host name. The thread pools of
# concurrent.futures end by the same hook.
threading._register_atexit(_exit)  # type: ignore[attr-defined]


def _nothing_to_do() -> asyncio.Future[None]:
    # A callback that is added to the future needs a loop, even if the loop never runs again.
    done: asyncio.Future[None] = asyncio.Future(loop=home_loop())
    done.set_result(None)
    return done


def _run_on(
    loop: asyncio.AbstractEventLoop,
    closing: asyncio.Future[None] | None,
    work: Callable[[], Coroutine[Any, Any, None]],
    name: str,
) -> asyncio.Future[None]:
    async def bounded() -> asyncio.Future[None]:
        nonlocal closing
        closing = closing or spawn(work(), name)
        _, late = await asyncio.wait({closing}, timeout=LONGEST_S)
        if late:
            log.error("%s: not done after %.0f s; given up", name, LONGEST_S)
        return closing

    waiting = keep_alive(LoggedTask(bounded(), loop=loop, name=f"wait for {name}"))
    waiting.add_done_callback(lambda _: loop.stop())
    raised, again = interrupts.raised(), False
    while not waiting.done():
        # Run the loop repeatedly: callbacks that the program left may stop it, as at the end of run_sync's function.
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            # If the program has its own handler, the Ctrl-C that ended the loop may have been raised in a coroutine.
            # It is raised a second time with that coroutine's outcome, which is ignored.
            if again or interrupts.raised() > raised:
                raise
            again = True
    return waiting.result()
