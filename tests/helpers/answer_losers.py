"""Proxies before ZooKeeper that fail at a chosen moment of its protocol."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable

from kiel_groups.embedded.faults.fault_proxy import Direction, FaultProxy, Link

__all__ = ["AnswerLoser", "WatchLoser"]

_LENGTH = struct.Struct(">i")
#: The number that stands where an answer has its request's.
_WATCH_EVENT = _LENGTH.pack(-1)


class AnswerLoser(FaultProxy):
    """Holds all answers back from the moment of a certain request on, which itself may be held back, too."""

    def __init__(self, upstream: str | Callable[[], str]) -> None:
        super().__init__(upstream)
        self._word = b""
        self._swallows = False
        self.caught = threading.Event()

    def lose_answer_to(self, word: bytes, *, request_too: bool = False) -> None:
        """Catch the next request with these bytes in it."""
        self._swallows = request_too
        self.caught.clear()
        self._word = word

    async def _pass_on(self, direction: Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if direction is Direction.REQUESTS and self._word and self._word in chunk:
            self._word = b""
            self._flows[Direction.RESPONSES].clear()
            if self._swallows:
                self._flows[Direction.REQUESTS].clear()
            self.caught.set()
        await super()._pass_on(direction, chunk, sink)

    def reconnect(self) -> None:
        """End the connection, what was held back with it, and let the next one be."""
        self.cut()
        self.heal()


class WatchLoser(FaultProxy):
    """Passes everything on but ZooKeeper's word that something which is watched has changed."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.lost = 0

    async def _pump(
        self, link: Link, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        if direction is Direction.REQUESTS:
            await super()._pump(link, direction, source, sink)
            return
        try:
            while True:
                head = await source.readexactly(_LENGTH.size)
                body = await source.readexactly(*_LENGTH.unpack(head))
                if body.startswith(_WATCH_EVENT):
                    self.lost += 1
                else:
                    await self._pass_on(direction, head + body, sink)
        except asyncio.IncompleteReadError:
            sink.write_eof()
