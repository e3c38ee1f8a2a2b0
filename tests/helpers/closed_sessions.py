"""Close ZooKeeper sessions as if they had expired: of clients that are alive, and of processes that have ended."""

from __future__ import annotations

import socket
import struct

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Close, Connect

__all__ = ["close_session", "close_sessions_below"]

#: A server's secret for passwords of sessions, and the constants of Java's generator of random numbers.
_SECRET, _FACTOR, _MASK = 0xB3415C00, 0x5DEECE66D, (1 << 48) - 1


def close_session(hosts: str, session: tuple[int, bytes]) -> None:
    """
    Resume a session on another connection, and close it, with one packet.

    Between two packets, the session's own client would notice the move, connect again, and take the session back.

    Args:
        hosts: The servers, of which the first one is asked.
        session: The id and the password of the session, as ``KazooClient.client_id`` has them.
    """
    number, password = session
    connect = Connect(0, 0, 10_000, number, password, False).serialize()
    close = struct.pack("!ii", 1, Close.type)
    host, port = hosts.partition("/")[0].split(",")[0].split(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"".join(struct.pack("!i", len(request)) + request for request in (connect, close)))
        while connection.recv(4096):
            pass  # The server closes the connection when it has closed the session.


def close_sessions_below(client: KazooClient, path: str) -> None:
    """Close the sessions that own ephemeral znodes at or below a path: those of processes that were killed."""
    (host, port), *_ = client.hosts
    for number in _owners(client, path):
        close_session(f"{host}:{port}", (number, _password(number)))


def _owners(client: KazooClient, path: str) -> set[int]:
    owner = client.get(path)[1].ephemeralOwner
    below = (_owners(client, f"{path}/{child}") for child in client.get_children(path))
    return ({owner} if owner else set[int]()).union(*below)


def _password(number: int) -> bytes:
    """Return the password of a session, which servers compute from its id as ``java.util.Random`` gives it."""
    state, found = (number ^ _SECRET ^ _FACTOR) & _MASK, b""
    for _ in range(4):
        state = (state * _FACTOR + 0xB) & _MASK
        found += (state >> 16).to_bytes(4, "little")
    return found
