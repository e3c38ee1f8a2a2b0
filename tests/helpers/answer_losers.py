"""Proxies to ZooKeeper that lose answers, or watch events."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable

from tests.proxies.fault_proxy import Direction, FaultProxy, Link

__all__ = ["AnswerLoser", "WatchLoser"]

_LENGTH = struct.Struct(">i")
#: The xid of watch events. An answer has the xid of its request instead.
_WATCH_EVENT = _LENGTH.pack(-1)


class AnswerLoser(FaultProxy):
    """Drops the answer to a chosen request and all later answers, and optionally the request itself."""

    def __init__(self, upstream: str | Callable[[], str]) -> None:
        super().__init__(upstream)
        self._word = b""
        self._loses_request = False
        self.caught = threading.Event()

    def lose_answer_to(self, word: bytes, *, request_too: bool = False) -> None:
        """
        Choose the next request that contains ``word``. With ``request_too``, the server does not receive this request.
        """
        self._loses_request = request_too
        self.caught.clear()
        self._word = word

    async def _pass_on(self, direction: Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if direction is Direction.REQUESTS and self._word and self._word in chunk:
            self._word = b""
            self._flows[Direction.RESPONSES].clear()
            if self._loses_request:
                self._flows[Direction.REQUESTS].clear()
            self.caught.set()
        await super()._pass_on(direction, chunk, sink)

    def reconnect(self) -> None:
        """Close the connection, so that the stalled bytes are lost. Forward everything on the next connection."""
        self.cut()
        self.heal()


class WatchLoser(FaultProxy):
    """Forwards everything except watch events, and counts these in ``lost``."""

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
