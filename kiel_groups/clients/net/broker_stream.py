"""Open a TCP connection to a server whose name may have several addresses, some of which do not answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

from kiel_groups.clients.net.answer_stream import AnswerStream
from kiel_groups.clients.net.receive_buffers import ReceiveBuffers
from kiel_groups.config import HostPort

__all__ = ["open_stream"]

#: How long an address may take before the next one is tried beside it, in seconds: the delay of RFC 8305.
_NEXT_ADDRESS_S = 0.25


async def open_stream(address: HostPort, buffers: ReceiveBuffers, timeout_s: float) -> AnswerStream:
    """
    Connect to the first address of a server that accepts a connection.

    Addresses are tried in the resolver's order. The next one is tried when one refuses, and beside one that is slow: a
    host that drops packets does not cost the time-out.

    Args:
        address: The server.
        buffers: The memory that the stream receives into.
        timeout_s: How long connecting may take, in seconds.

    Raises:
        TimeoutError: No address has accepted a connection in time.
        OSError: All addresses refuse, or the name has none.
    """
    attempts: list[asyncio.Future[AnswerStream]] = []
    opened: asyncio.Future[AnswerStream] | None = None
    try:
        async with asyncio.timeout(timeout_s):
            hosts = await _hosts_of(address)
            for host in hosts:
                attempts.append(asyncio.ensure_future(_connect(host, address.port, buffers)))
                opened = await _first_open(attempts, None if len(attempts) == len(hosts) else _NEXT_ADDRESS_S)
                if opened is not None:
                    break
        return (opened or attempts[-1]).result()
    finally:
        for attempt in attempts:
            if attempt is not opened:
                attempt.cancel()
                attempt.add_done_callback(_close)


async def _connect(host: str, port: int, buffers: ReceiveBuffers) -> AnswerStream:
    connected = asyncio.get_running_loop().create_connection(lambda: AnswerStream(buffers), host, port)
    _, stream = await connected
    return stream


async def _hosts_of(address: HostPort) -> Sequence[str]:
    """Return the addresses of a name, in the resolver's order; the name itself if there are none, for its error."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        pass
    else:
        return [address.host]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError:
        return [address.host]
    return list(dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in found))


async def _first_open(
    attempts: Sequence[asyncio.Future[AnswerStream]], patience_s: float | None
) -> asyncio.Future[AnswerStream] | None:
    """
    Return an attempt that has succeeded, or None if it is time for the next one.

    That is after ``patience_s``, or once the newest attempt has failed. If ``patience_s`` is None, all have failed.
    """
    loop = asyncio.get_running_loop()
    started_s, waiting = loop.time(), {attempt for attempt in attempts if not attempt.done()}
    while waiting:
        left_s = None if patience_s is None else started_s + patience_s - loop.time()
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt
        if not done or (patience_s is not None and attempts[-1].done()):
            break
    return None


def _close(attempt: asyncio.Future[AnswerStream]) -> None:
    """Close the stream of an attempt that has succeeded although another one was faster."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
