"""
A TCP proxy that injects network faults between any client and any server, without privileges.

The proxy runs on its own thread with its own event loop, and so keeps running while the loop under test is blocked. Its
methods may be called from any thread, and have taken effect when they return. The proxy stops reading while it cannot
forward, so it buffers at most about 200 KiB for each connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum
from typing import TypeAlias

from kiel_groups.config import parse_hosts
from kiel_groups.embedded.processes import ReservedPort, Startable
from kiel_groups.errors import ServerError

__all__ = ["FaultProxy", "Direction", "Side"]

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
_CONTROL_LIMIT_S = 10.0
#: Pause between two attempts to connect to a server that does not listen yet.
_RETRY_DELAY_S = 0.05
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Direction(Enum):
    """The direction in which bytes are sent."""

    REQUESTS = "from client to server"
    RESPONSES = "from server to client"


class Side(Enum):
    """One end of a proxied connection."""

    CLIENT = "client"
    SERVER = "server"


#: The reader is kept with its writer: asyncio closes a connection whose reader was garbage-collected.
_Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """
    A client's connection to the proxy, the proxy's connection to the server, and the task that forwards between them.
    """

    def __init__(self, client: _Stream, task: asyncio.Task[None]) -> None:
        self.task = task
        self.streams = {Side.CLIENT: client}

    def close(self, sides: Iterable[Side] = Side, *, reset: bool) -> None:
        """Close the connections to these sides, with RST or FIN. The connections to other sides stay open."""
        for side in sides:
            if side in self.streams:
                _end(self.streams.pop(side)[1], reset=reset)

    def cut(self, sides: Iterable[Side], *, reset: bool) -> None:
        """Stop forwarding, and close the connections to these sides."""
        self.task.cancel()
        self.close(sides, reset=reset)


class FaultProxy(Startable):
    """
    Proxies a server during a ``with`` or ``async with`` block, and forwards everything until a fault is injected.

    Faults add up, and apply to open and new connections alike. ``heal`` ends all faults. As in TCP, no bytes are lost
    from the middle of a connection: bytes that a fault delays are forwarded after the fault.

    Args:
        upstream: The server, ``host:port``, or a function that returns it for each new connection (for a server that
            starts after the proxy).
        most_connections: The largest number of open connections. Further connections are reset at once.
        upstream_wait_s: How long a connection waits for a server that does not listen, before it is reset. Most clients
            retry when a server refuses them. The proxy has accepted their connection, so they see a reset instead.

    Raises:
        ConfigError: ``upstream`` is not an address.
    """

    def __init__(
        self, upstream: str | Callable[[], str], *, most_connections: int = 1_000, upstream_wait_s: float = 0.0
    ) -> None:
        if isinstance(upstream, str):
            _address(upstream)
        self._upstream = upstream
        self._upstream_wait_s = upstream_wait_s
        self._most_connections = most_connections
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserved: ReservedPort | None = None
        self._thread: threading.Thread | None = None
        self.accepted = 0
        """The number of connections accepted so far."""

    @property
    def port(self) -> int:
        """The port that clients connect to, on 127.0.0.1."""
        if self._reserved is None:
            raise ServerError("the proxy has no port before its start")
        return self._reserved.number

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of open connections, including half-open ones."""
        return len(self._links)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """
        Delay each chunk (of up to 64 KiB) or frame, by default in both directions.

        Those of a connection wait in turn: in each direction, at most one of them is forwarded in ``seconds``.
        """
        self._on_thread(lambda: self._delays_s.update(dict.fromkeys(_directions(direction), seconds)))

    def stall(self, direction: Direction | None = None) -> None:
        """
        Stop forwarding bytes and closes, in one direction or, by default, in both.

        The kernel still accepts new connections, and the proxy connects them to the server after ``heal``.
        """

        def stall() -> None:
            for way in _directions(direction):
                self._flows[way].clear()

        self._on_thread(stall)

    def refuse(self) -> None:
        """Refuse new connections, as if no server listened. Open connections are not affected."""
        self._on_thread(self._stop_listening)

    def cut(self, side: Side | None = None, *, reset: bool = True) -> None:
        """
        Close every open connection, with RST or (``reset=False``) with FIN.

        If a side is given, only the connections to that side are closed. The connections to the other side stay
        half-open: the proxy sends nothing on them, and reads nothing from them.
        """
        self._on_thread(lambda: self._cut([side] if side else list(Side), reset=reset))

    def heal(self) -> None:
        """End delays, stalls and refusals. Connections that were cut stay closed."""

        def heal() -> None:
            self._delays_s = dict.fromkeys(Direction, 0.0)
            for flow in self._flows.values():
                flow.set()
            self._listen()

        self._on_thread(heal)

    # ------------------------------------------------------------------ on the proxy's own thread

    def _start(self) -> None:
        if self._thread is not None:
            raise ServerError(f"the proxy runs already, at {self.address}")
        self._reserved = ReservedPort()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name=f"proxy {self.port}", daemon=True
        )
        self._thread.start()
        started.result()

    def _close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._on_thread(self._closing.set)
            self._thread.join()
        self._thread = None
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    async def _run(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._delays_s = dict.fromkeys(Direction, 0.0)
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for flow in self._flows.values():
            flow.set()
        self._listener: socket.socket | None = None
        try:
            self._listen()
        except OSError as error:
            started.set_exception(ServerError(f"the proxy cannot listen at {self.address}: {error}"))
            return
        started.set_result(None)
        await self._closing.wait()
        self._stop_listening()
        self._cut(Side, reset=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut(self, sides: Iterable[Side], *, reset: bool) -> None:
        for link in list(self._links):
            link.cut(sides, reset=reset)
            if not link.streams:
                self._links.discard(link)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        # asyncio accepts in no other way without a race: a server that is closed while it accepts a connection, and a
        # ``sock_accept`` that is cancelled then, leave that connection open, and nothing is ever sent on it.
        with suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = listener.accept()
            self.accepted += 1
            task = asyncio.create_task(self._serve(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        stream = await asyncio.open_connection(sock=client, limit=_CHUNK_BYTES)
        task = asyncio.current_task()
        assert task is not None
        # A connection accepted right before the close was not yet a link when all links were cut.
        if len(self._links) >= self._most_connections or self._closing.is_set():
            _end(stream[1], reset=True)
            return
        link = Link(stream, task)
        self._links.add(link)
        try:
            await self._forward(link)
        except asyncio.CancelledError:
            return  # The link was cut. If it is half-open, it stays in ``_links``.
        except Exception as error:
            if not _is_of_the_network(error):
                log.exception("%s: a connection is reset", self.address)
            link.close(reset=True)
        self._links.discard(link)

    async def _forward(self, link: Link) -> None:
        """Connect to the server, and forward until both directions have ended."""
        await self._flows[Direction.REQUESTS].wait()
        link.streams[Side.SERVER] = await self._connect_upstream()
        (from_client, to_client), (from_server, to_server) = link.streams[Side.CLIENT], link.streams[Side.SERVER]
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(link, Direction.REQUESTS, from_client, to_server))
            both.create_task(self._pump(link, Direction.RESPONSES, from_server, to_client))
        link.close(reset=False)

    async def _connect_upstream(self) -> _Stream:
        deadline_s = self._loop.time() + self._upstream_wait_s
        while True:
            host, port = _address(self._upstream if isinstance(self._upstream, str) else self._upstream())
            try:
                return await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)
            except ConnectionRefusedError:
                if self._loop.time() >= deadline_s:
                    raise
                await asyncio.sleep(_RETRY_DELAY_S)

    async def _pump(
        self, link: Link, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward one direction until its end of file, and then forward the end of file, too."""
        while chunk := await source.read(_CHUNK_BYTES):
            await self._pass_on(direction, chunk, sink)
        await self._flows[direction].wait()
        sink.write_eof()

    async def _pass_on(self, direction: Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if delay_s := self._delays_s[direction]:
            await asyncio.sleep(delay_s)
        await self._flows[direction].wait()
        sink.write(chunk)
        await sink.drain()

    def _on_thread(self, change: Callable[[], None]) -> None:
        """
        Call ``change`` on the proxy's thread, and return when the call has ended.

        Raises:
            ServerError: The proxy does not run, or this call is made on the proxy's own thread.
        """
        if threading.current_thread() is self._thread:
            raise ServerError("the proxy's own thread cannot change it; do it from another one")
        if self._thread is None or not self._thread.is_alive():
            raise ServerError("the proxy does not run")

        async def make() -> None:
            change()

        asyncio.run_coroutine_threadsafe(make(), self._loop).result(_CONTROL_LIMIT_S)


def _directions(direction: Direction | None) -> Iterable[Direction]:
    return Direction if direction is None else (direction,)


def _address(upstream: str) -> tuple[str, int]:
    address = parse_hosts(upstream, 0, "upstream")[0]
    return address.host, address.port


def _is_of_the_network(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, ExceptionGroup) and error.split(OSError)[1] is None)


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        writer.transport.abort()
    else:
        writer.close()
