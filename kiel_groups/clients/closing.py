"""Closing a client although its event loop no longer runs, as programs do that catch Ctrl-C around their loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kiel_groups.clients.futures import home_loop, spawn

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
    """The loop that a client was used on, to finish its business on when that loop was left."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set when the client was closed on a running loop. Elsewhere nobody is told: no coroutine of a program that
        #: ends is to go on with what it was waiting for.
        self.closed = asyncio.Event()

    def remember(self) -> None:
        """This client lives on the loop that runs now, or is about to."""
        self._loop = home_loop()

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
        """
        if running_loop() is not None:
            closing = closing or spawn(work(), name)
            closing.add_done_callback(lambda _: self.closed.set())
            return closing
        if closing is not None and closing.done():
            return closing
        if self._loop is None or self._loop.is_closed():
            if self._loop is not None:
                log.warning("%s: the event loop is closed already; what was not finished stays so", name)
            else:
                # Closed before it was ever used: whoever uses it afterwards, on whatever loop, is told at once.
                self.closed.set()
            return _nothing_to_do()
        return _run_on(self._loop, closing, work, name)


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

    try:
        return loop.run_until_complete(bounded())
    except KeyboardInterrupt:
        # The Ctrl-C that ended the loop may have hit a coroutine, and comes out again with that one's outcome.
        return loop.run_until_complete(bounded())
