"""Blocking calls off the event loop, on daemon threads: one that never returns must not keep the process alive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_thread"]

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


def in_thread(function: Callable[[], _Result], name: str) -> asyncio.Future[_Result]:
    """
    Run a function on a new daemon thread.

    asyncio's default executor is not used, because leaving ``asyncio.run`` waits for its threads.

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
