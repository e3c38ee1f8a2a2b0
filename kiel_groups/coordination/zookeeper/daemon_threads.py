"""
Run blocking functions on daemon threads, off the event loop.

The threads are daemons so that a call that never returns does not keep the process alive. Callers go through
``runtime``, where the simulator replaces the threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["Ticker", "in_thread"]

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


def in_thread(function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
    """
    Run a function on a new daemon thread.

    asyncio's default executor is not used, because ``asyncio.run`` waits for its threads before it returns.

    Returns:
        A future of the running loop; cancelling it abandons the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            log.debug("%s ended after its event loop was closed", name)

    threading.Thread(target=run, name=f"kiel-groups-{name}", daemon=True).start()
    return future


class Ticker:
    """
    Calls ``tick`` repeatedly on a thread of its own.

    ``tick`` returns the seconds until the next call, or None to end the thread. ``wake`` shortens the wait for the next
    call. ``tick`` must not raise, because an exception would end the thread unnoticed.
    """

    def __init__(self, tick: Callable[[], float | None], name: str) -> None:
        self._tick = tick
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kiel-groups-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread, which calls ``tick`` at once."""
        self._thread.start()

    def wake(self) -> None:
        """Have the thread call ``tick`` soon. Any thread may call this method, which never blocks."""
        self._wake.set()

    def _run(self) -> None:
        while (pause_s := self._tick()) is not None:
            self._wake.wait(pause_s)
            self._wake.clear()
