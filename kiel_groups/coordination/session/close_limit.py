"""The time limit of a close, which a later call of the same close may shorten."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["CloseLimit"]

#: The part of the remaining time that waits for an application leave to the servers, and the most of it, in seconds.
RESERVED_SHARE, MOST_RESERVED_S = 0.5, 0.5


class CloseLimit:
    """
    When a close must end, on the event loop's clock.

    A close passes the limit on to all its parts. Waits that have begun end earlier if the limit is shortened.

    Args:
        timeout_s: Seconds from now, or None: the close takes as long as it needs, unless ``shorten`` sets a limit.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._by_s = math.inf
        #: The waits under way, each with the function that computes its end from the limit.
        self._waits: dict[asyncio.Timeout, Callable[[float], float]] = {}
        self.shorten(timeout_s)

    def shorten(self, timeout_s: float | None) -> None:
        """End the close within ``timeout_s`` seconds from now, unless it must end before that. None changes nothing."""
        if timeout_s is None:
            return
        self._by_s = min(self._by_s, asyncio.get_running_loop().time() + timeout_s)
        for timeout, end in self._waits.items():
            if not timeout.expired():
                timeout.reschedule(_when(end(self._by_s)))

    @asynccontextmanager
    async def timeout(self, most_s: float = math.inf, *, reserves: bool = False) -> AsyncIterator[None]:
        """
        Limit the block, as ``asyncio.timeout`` does.

        Args:
            most_s: The longest time that the block may take, in seconds.
            reserves: Whether a part of the remaining time is reserved for what follows the block.

        Raises:
            TimeoutError: The block did not end in time.
        """
        now_s = asyncio.get_running_loop().time
        latest_s = now_s() + most_s

        def end(by_s: float) -> float:
            reserved_s = min(RESERVED_SHARE * max(0.0, by_s - now_s()), MOST_RESERVED_S) if reserves else 0.0
            return min(latest_s, by_s - reserved_s)

        async with asyncio.timeout_at(_when(end(self._by_s))) as timeout:
            self._waits[timeout] = end
            try:
                yield
            finally:
                del self._waits[timeout]


def _when(at_s: float) -> float | None:
    return None if at_s == math.inf else at_s
