"""Wait until records are finished, dropped or delivered, as a drain and a reset of a position do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["DeliveryProgress"]


class DeliveryProgress:
    """Wakes the waiting drains and resets of one consumer when fewer of its records may be in flight or buffered."""

    def __init__(self) -> None:
        #: The number of callers that wait. A loop asks for each record whether there is one.
        self.waiting = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have each waiting caller check its condition again."""
        self._changed.set()

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Wait until ``is_over`` returns True. It is called at once, and after each ``notify``."""
        self.waiting += 1
        try:
            while not is_over():
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.waiting -= 1
