"""
A network that fails on demand: a TCP proxy in user space, between any client and any server, without privileges.

It runs on a thread with an event loop of its own, so it goes on while the loop under test is blocked; its methods may
be called from any thread, and have taken effect when they return. It holds at most some 200 KiB a connection: what it
does not pass on, it does not read.
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
from kiel_groups.embedded.processes.ports import ReservedPort
from kiel_groups.embedded.processes.server_process import Startable
from kiel_groups.errors import ServerError

__all__ = ["FaultProxy", "Direction", "Side"]

log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16
_CONTROL_LIMIT_S = 10.0
#: Between two tries to reach a server that does not listen yet.
_AGAIN_S = 0.05
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes go."""

    REQUESTS = "from client to server"
    RESPONSES = "from server to client"


class Side(Enum):
    """Which end of a connection is meant."""

    CLIENT = "client"
    SERVER = "server"


#: The reader is kept for as long as its writer: a connection whose reader is collected is closed by asyncio.
_Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One client's connection, the one that was made for it to the server, and the task that carries between them."""

    def __init__(self, client: _Stream, task: asyncio.Task[None]) -> None:
        self.task = task
        self.streams = {Side.CLIENT: client}

    def close(self, sides: Iterable[Side] = Side, *, reset: bool) -> None:
        """End the connections to these sides, with RST or in order; a side that is left out is not told."""
        for side in sides:
            if side in self.streams:
                _end(self.streams.pop(side)[1], reset=reset)

    def cut(self, sides: Iterable[Side], *, reset: bool) -> None:
        """The same from outside, while it is carried."""
        self.task.cancel()
        self.close(sides, reset=reset)


class FaultProxy(Startable):
    """
    Stands before a server for the time of a ``with`` or an ``async with`` block, and passes everything on until told
    otherwise.

    Faults add up and apply to open connections and new ones alike; ``heal`` ends them all. Bytes are never lost from
    the middle of a connection, as TCP loses none: what a fault holds back goes on after it.

    Args:
        upstream: The server, ``host:port``, or a function that tells it at each new connection (for a server that
            starts after the proxy).
        most_connections: Further ones are reset at once.
        upstream_wait_s: How long a connection waits for a server that does not listen, before it is reset. Without the
            proxy a client would be refused, and most try again then; behind it they are accepted, and then reset.

    Raises:
        ConfigError: ``upstream`` is no address.
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
        """How many connections came in so far."""

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
        """How many connections are open, half-open ones included."""
        return len(self._links)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Hold each chunk (of up to 64 KiB) or frame back for so long; both ways unless told one."""
        self._now(lambda: self._delays_s.update(dict.fromkeys(_directions(direction), seconds)))

    def stall(self, direction: Direction | None = None) -> None:
        """
        Pass nothing on, and no close either; both ways unless told one.

        Both ways it is a black hole. New connections are accepted, as the kernel does; the server hears of them after
        ``heal``.
        """

        def stall() -> None:
            for way in _directions(direction):
                self._flows[way].clear()

        self._now(stall)

    def refuse(self) -> None:
        """Refuse new connections, as when nobody listens; open ones go on."""
        self._now(self._stop_listening)

    def cut(self, side: Side | None = None, *, reset: bool = True) -> None:
        """
        End every open connection, by RST or (``reset=False``) in order.

        With one side given, the other is not told and its connection stays half-open: nothing comes, nothing is read.
        """
        self._now(lambda: self._cut([side] if side else list(Side), reset=reset))

    def heal(self) -> None:
        """End delays, stalls and refusals. What was cut stays cut."""

        def heal() -> None:
            self._delays_s = dict.fromkeys(Direction, 0.0)
            for flow in self._flows.values():
                flow.set()
            self._listen()

        self._now(heal)

    # ------------------------------------------------------------------ on the proxy's own thread

    def _start(self) -> None:
        if self._thread is not None:
            raise ServerError(f"the proxy runs already, at {self.address}")
        self._reserved = ReservedPort()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._live(started)), name=f"proxy {self.port}", daemon=True
        )
        self._thread.start()
        started.result()

    def _close(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._now(self._closing.set)
            self._thread.join()
        self._thread = None
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    async def _live(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._delays_s = dict.fromkeys(Direction, 0.0)
        self._flows = {direction: asyncio.Event() for direction in Direction}
        for flow in self._flows.values():
            flow.set()
        self._accepting: asyncio.Task[None] | None = None
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
        if self._accepting is None:
            listener = socket.create_server(("127.0.0.1", self.port))
            listener.setblocking(False)
            self._accepting = asyncio.create_task(self._accept(listener))

    def _stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None

    async def _accept(self, listener: socket.socket) -> None:
        # Not asyncio's server: when that is closed, a connection that it is just accepting is left open and mute.
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                self.accepted += 1
                task = asyncio.create_task(self._serve(client))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        stream = await asyncio.open_connection(sock=client, limit=_CHUNK_BYTES)
        task = asyncio.current_task()
        assert task is not None
        # One that was accepted right before the close is no link yet when all links are cut.
        if len(self._links) >= self._most_connections or self._closing.is_set():
            _end(stream[1], reset=True)
            return
        link = Link(stream, task)
        self._links.add(link)
        try:
            await self._carry(link)
        except asyncio.CancelledError:
            return  # Cut; half-open, it stays one of the links.
        except Exception as error:
            if not _is_of_the_network(error):
                log.exception("%s: a connection is reset", self.address)
            link.close(reset=True)
        self._links.discard(link)

    async def _carry(self, link: Link) -> None:
        """Connect to the server, and pass everything on until both directions have ended."""
        await self._flows[Direction.REQUESTS].wait()
        link.streams[Side.SERVER] = await self._reach_upstream()
        (from_client, to_client), (from_server, to_server) = link.streams[Side.CLIENT], link.streams[Side.SERVER]
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(link, Direction.REQUESTS, from_client, to_server))
            both.create_task(self._pump(link, Direction.RESPONSES, from_server, to_client))
        link.close(reset=False)

    async def _reach_upstream(self) -> _Stream:
        deadline_s = self._loop.time() + self._upstream_wait_s
        while True:
            host, port = _address(self._upstream if isinstance(self._upstream, str) else self._upstream())
            try:
                return await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)
            except ConnectionRefusedError:
                if self._loop.time() >= deadline_s:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _pump(
        self, link: Link, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Pass on what comes one way until its end, and then that end."""
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

    def _now(self, change: Callable[[], None]) -> None:
        """Make a change on the proxy's thread and return when it is made."""
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
