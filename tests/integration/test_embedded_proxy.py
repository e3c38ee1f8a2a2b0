"""The fault proxy forwards all bytes until a fault is set, and each fault has exactly its effect."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from kiel_groups.errors import ConfigError, ServerError
from tests.proxies import Direction, FaultProxy, Side

pytestmark = pytest.mark.integration

#: Long enough for any answer on the loopback interface, in seconds. No byte in this time means silence.
SILENCE_S = 0.3
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """
    A server that echoes. ``seen`` counts its connections. ``ends`` gets the error that ended a connection, or None.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.ends: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        end: BaseException | None = None
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError as error:
            end = error
        self.ends.put_nowait(end)
        writer.close()


@asynccontextmanager
async def proxied(**settings: int) -> AsyncIterator[tuple[Echo, FaultProxy]]:
    """Run an echo server behind a proxy."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30), FaultProxy(f"127.0.0.1:{port}", **settings) as proxy:
        yield echo, proxy
    server.close()


async def connect(proxy: FaultProxy) -> Stream:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def echoed(stream: Stream, data: bytes) -> bytes:
    """Send ``data`` and return the echo."""
    stream[1].write(data)
    return await stream[0].readexactly(len(data))


async def first_byte(proxy: FaultProxy) -> bytes:
    """Return the first byte that a new connection receives."""
    reader, writer = await connect(proxy)
    try:
        return await reader.read(1)
    finally:
        writer.close()


async def is_silent(stream: Stream) -> bool:
    """Return whether neither a byte nor an end arrives for some time."""
    try:
        async with asyncio.timeout(SILENCE_S):
            await stream[0].read(1)
    except TimeoutError:
        return True
    return False


async def test_bytes_are_forwarded_both_ways() -> None:
    """Megabytes are echoed unaltered, and the end of the stream is forwarded."""
    async with proxied() as (echo, proxy):
        stream = await connect(proxy)
        data = os.urandom(3 << 20)
        writing = asyncio.create_task(echoed(stream, data))
        assert await writing == data
        stream[1].write_eof()
        assert await stream[0].read() == b""
        assert await echo.ends.get() is None
        assert (proxy.accepted, echo.seen) == (1, 1)


async def test_a_delay_loses_no_bytes() -> None:
    """
    Bytes arrive later by at least the delay, in one direction or in both. After healing they arrive without delay.
    """
    async with proxied() as (_, proxy):
        stream = await connect(proxy)
        for direction, least_s in ((None, 0.4), (Direction.REQUESTS, 0.2), (Direction.RESPONSES, 0.2)):
            proxy.heal()
            proxy.delay(0.2, direction)
            began = time.monotonic()
            assert await echoed(stream, b"late") == b"late"
            assert time.monotonic() - began >= least_s
        proxy.heal()
        assert await echoed(stream, b"soon") == b"soon"


@pytest.mark.parametrize("direction", [None, *Direction], ids=lambda way: way.name if way else "both")
async def test_a_stall_is_silence_until_it_is_healed(direction: Direction | None) -> None:
    """No byte arrives, no connection ends, and after healing each byte arrives once."""
    async with proxied() as (_, proxy):
        stream = await connect(proxy)
        assert await echoed(stream, b"before") == b"before"
        proxy.stall(direction)
        stream[1].write(b"during")
        assert await is_silent(stream)
        proxy.heal()
        assert await stream[0].readexactly(6) == b"during"
        assert await echoed(stream, b"after") == b"after"


async def test_a_stall_accepts_new_connections_and_forwards_none() -> None:
    """
    A client can connect and receives nothing; the server sees the connection after healing. The end of a connection is
    not forwarded either.
    """
    async with proxied() as (echo, proxy):
        early = await connect(proxy)
        assert await echoed(early, b"x") == b"x"
        proxy.stall()
        late = await connect(proxy)
        early[1].close()
        assert await is_silent(late)
        assert (echo.seen, echo.ends.qsize()) == (1, 0)
        proxy.heal()
        assert await echoed(late, b"y") == b"y"
        assert await echo.ends.get() is None


async def test_a_stalled_connection_buffers_a_bounded_amount() -> None:
    """The sender is blocked after some hundred kilobytes, because the proxy does not buffer more."""
    async with proxied() as (_, proxy):
        _, writer = await connect(proxy)
        proxy.stall(Direction.REQUESTS)
        writer.write(bytes(64 << 20))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await writer.drain()
        writer.transport.abort()


@pytest.mark.parametrize("reset", [True, False], ids=["RST", "FIN"])
async def test_a_cut_ends_both_sides(reset: bool) -> None:
    """A cut ends the connection for both sides, by a reset or an ordinary end. The next connection works."""
    async with proxied() as (echo, proxy):
        stream = await connect(proxy)
        assert await echoed(stream, b"x") == b"x"
        proxy.cut(reset=reset)
        if reset:
            with pytest.raises(ConnectionResetError):
                await stream[0].read(1)
            assert isinstance(await echo.ends.get(), ConnectionResetError)
        else:
            assert await stream[0].read(1) == b""
            assert await echo.ends.get() is None
        assert proxy.connections == 0
        assert await echoed(await connect(proxy), b"again") == b"again"


async def test_a_half_open_connection_ends_for_one_side_only() -> None:
    """
    The server sees the end of a half-open connection. The client sees none: it can write, and receives nothing until
    its side is cut, too.
    """
    async with proxied() as (echo, proxy):
        stream = await connect(proxy)
        assert await echoed(stream, b"x") == b"x"
        proxy.cut(Side.SERVER)
        assert isinstance(await echo.ends.get(), ConnectionResetError)
        stream[1].write(b"no answer")
        assert await is_silent(stream)
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await stream[0].read(1)
        assert proxy.connections == 0


async def test_a_refusal_affects_new_connections_only() -> None:
    """
    New clients are refused as by a dead server, and open connections continue. After healing the port is the same.
    """
    async with proxied() as (_, proxy):
        stream, port = await connect(proxy), proxy.port
        assert await echoed(stream, b"x") == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await connect(proxy)
        assert await echoed(stream, b"still here") == b"still here"
        proxy.heal()
        assert proxy.port == port
        assert await echoed(await connect(proxy), b"back") == b"back"


async def test_too_many_connections_are_reset() -> None:
    """The number of open connections is limited. When one ends, another is accepted."""
    async with proxied(most_connections=1) as (_, proxy):
        first = await connect(proxy)
        assert await echoed(first, b"x") == b"x"
        with pytest.raises(ConnectionResetError):
            await first_byte(proxy)
        proxy.cut()
        assert await echoed(await connect(proxy), b"y") == b"y"


async def test_a_missing_server_resets_the_clients() -> None:
    """If the server's port is dead or not known yet, the client is reset. The proxy keeps running."""

    def unknown() -> str:
        raise ServerError("has no port before its first start")

    for upstream in ("127.0.0.1:1", unknown):
        async with FaultProxy(upstream) as proxy:
            for _ in range(2):
                with pytest.raises(ConnectionResetError):
                    await first_byte(proxy)


def test_misuse_is_refused() -> None:
    """
    An invalid address, a fault on a stopped proxy, a second start, and reading the port before the start are errors.
    """
    with pytest.raises(ConfigError, match="upstream: 'nowhere:x' is not an address"):
        FaultProxy("nowhere:x")
    proxy = FaultProxy("127.0.0.1:1")
    with pytest.raises(ServerError, match="does not run"):
        proxy.stall()
    with pytest.raises(ServerError, match="no port before its start"):
        _ = proxy.port
    with proxy, pytest.raises(ServerError, match="runs already"), proxy:
        pass
    with pytest.raises(ServerError, match="does not run"):
        proxy.heal()


def test_the_proxy_closes_while_clients_connect() -> None:
    """A connection that is accepted right before the close ends, too, even while the proxy is stalled."""

    def close_while_clients_connect() -> None:
        with FaultProxy("127.0.0.1:9") as proxy:
            proxy.stall()
            clients.extend(socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3))

    clients: list[socket.socket] = []
    for _ in range(10):
        closing = threading.Thread(target=close_while_clients_connect, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()
    for client in clients:
        client.close()


async def test_a_refusal_while_a_client_connects_loses_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Each connection is refused or accepted. asyncio's own ways to accept have a race there, which it logs."""
    async with proxied() as (_, proxy):
        for _ in range(300):
            connecting = asyncio.ensure_future(
                asyncio.to_thread(socket.create_connection, ("127.0.0.1", proxy.port), 5)
            )
            await asyncio.to_thread(proxy.refuse)
            with suppress(ConnectionError):
                (await connecting).close()
            proxy.heal()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
