"""
Closing a client although its event loop no longer runs, as programs do that catch Ctrl-C around their loop.

Where the loop can run again, it does, for a bounded time: at ``close()``, or when the interpreter ends after a close
that nobody waited for. Where it is closed (``asyncio.run`` has ended), what can be done without it is done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 -- its exit hook, after which no name is resolved, is to run after ours
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from kiel_groups.clients.calls import interrupts
from kiel_groups.clients.calls.eager_methods import LoggedTask, home_loop, kept, spawn

__all__ = ["LeftLoop", "running_loop"]

log = logging.getLogger(__name__)

#: How long a close may run the loop again, in seconds: a program that was told to end must end.
LONGEST_S = 5.0


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread at this moment, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LeftLoop:
    """
    The loop that a client was used on, to finish its business on when that loop was left.

    Args:
        at_exit: Called when the interpreter ends, where the loop was left but not closed: to close what was not.
        abandon: What can be done where the loop is closed, or did not suffice; called once.
    """

    def __init__(self, at_exit: Callable[[], None] | None = None, abandon: Callable[[], None] | None = None) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_exit = at_exit
        self._abandon = abandon
        self._pid = 0
        #: Set when the client was closed on a running loop. Elsewhere nobody is told: no coroutine of a program that
        #: ends is to go on with what it was waiting for.
        self.closed = asyncio.Event()

    def remember(self) -> None:
        """Note the loop that runs now or is about to, and keep Ctrl-C out of its callbacks until the close."""
        self._loop = home_loop()
        interrupts.defer(self)
        self._pid = os.getpid()
        _left.add(self)

    def abandon(self) -> None:
        """Do without the loop what can be done without it, once."""
        work, self._abandon = self._abandon, None
        if work is not None:
            work()

    def exit(self) -> None:
        """The interpreter ends; a fork of the process that used the client leaves it alone."""
        if self._loop is None or self._loop.is_running() or self._pid != os.getpid():
            return
        if self._at_exit is not None and not self._loop.is_closed():
            self._at_exit()
        self.abandon()

    def close(
        self, closing: asyncio.Future[None] | None, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Future[None]:
        """
        Close a client, once: on the running loop, or on the one that was left, for ``LONGEST_S`` at most.

        Args:
            closing: What an earlier call returned.
            work: What there is to do.
            name: What to call it in the log.

        Returns:
            A future; where no loop runs it is done, but where the time was up.

        Raises:
            KeyboardInterrupt: Another Ctrl-C came while no loop ran but this one; the close is given up.
        """
        if running_loop() is not None:
            closing = closing or spawn(work(), name)
            closing.add_done_callback(self._was_closed)
            return closing
        if closing is not None and closing.done() and not closing.cancelled():
            return closing
        if self._loop is None:
            # Closed before it was ever used: whoever uses it afterwards, on whatever loop, is told at once.
            self.closed.set()
            return _nothing_to_do()
        if self._loop.is_closed():
            log.warning("%s: the event loop is closed already; what was not finished stays so", name)
            self.abandon()
            return _nothing_to_do()
        try:
            with interrupts.uninterrupted():
                return _run_on(self._loop, closing, work, name)
        except KeyboardInterrupt:
            self._at_exit = None
            self.abandon()
            raise
        finally:
            interrupts.restore(self)

    def _was_closed(self, _: asyncio.Future[None]) -> None:
        self.closed.set()
        interrupts.restore(self)


_left: weakref.WeakSet[LeftLoop] = weakref.WeakSet()


def _exit() -> None:
    ends_s = time.monotonic() + LONGEST_S
    for left in list(_left):
        if time.monotonic() > ends_s:
            log.error("not every client could be closed within %.0f s of the end of the interpreter", LONGEST_S)
            return
        try:
            left.exit()
        except Exception:
            log.exception("a client was not closed at the end of the interpreter")


# atexit would be too late: from there neither a thread can be started nor a name be resolved. The thread pools of
# concurrent.futures end by the same hook.
threading._register_atexit(_exit)  # type: ignore[attr-defined]


def _nothing_to_do() -> asyncio.Future[None]:
    # Whoever adds a callback needs a loop that takes it, whether or not that ever runs.
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

    waiting = kept(LoggedTask(bounded(), loop=loop, name=f"wait for {name}"))
    waiting.add_done_callback(lambda _: loop.stop())
    raised, again = interrupts.raised(), False
    while not waiting.done():
        # More than once: what the program left behind may stop the loop, as run_sync does when its function ends.
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            # With a handler of the program's own, the Ctrl-C that ended the loop may have hit a coroutine, and comes
            # out again, once, with that one's outcome.
            if again or interrupts.raised() > raised:
                raise
            again = True
    return waiting.result()
