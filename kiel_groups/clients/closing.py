"""Closing a client although its event loop no longer runs, as programs do that catch Ctrl-C around their loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from tornado.ioloop import IOLoop
from tornado.platform.asyncio import AsyncIOLoop

from kiel_groups.clients.futures import spawn

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

    def remember(self) -> None:
        """This client lives on the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def finish(self, closing: Callable[[], Awaitable[None]], name: str) -> asyncio.Future[None]:
        """
        Run the loop again until the client is closed, for ``LONGEST_S`` at most.

        Returns:
            A future that is done, but where the time was up, or the loop was closed (a client dies with it).
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            if loop is not None:
                log.warning("%s: the event loop is closed already; what was not finished stays so", name)
            # Whoever adds a callback needs a loop that takes it, whether or not that is ever run.
            done: asyncio.Future[None] = asyncio.Future(loop=cast(AsyncIOLoop, IOLoop.current()).asyncio_loop)
            done.set_result(None)
            return done
        return _run_on(loop, closing, name)


def _run_on(loop: asyncio.AbstractEventLoop, closing: Callable[[], Awaitable[None]], name: str) -> asyncio.Future[None]:
    tasks: list[asyncio.Task[None]] = []

    async def awaited() -> None:
        await closing()

    async def bounded() -> None:
        if not tasks:
            tasks.append(spawn(awaited(), name))
        _, late = await asyncio.wait(tasks, timeout=LONGEST_S)
        if late:
            log.error("%s: not done after %.0f s; given up", name, LONGEST_S)

    try:
        loop.run_until_complete(bounded())
    except KeyboardInterrupt:
        # The Ctrl-C that ended the loop may have hit a coroutine, and comes out again with that one's outcome.
        loop.run_until_complete(bounded())
    return tasks[0]
