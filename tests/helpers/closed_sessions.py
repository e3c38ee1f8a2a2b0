"""Close the ZooKeeper session of a client that is alive, as if it had expired."""

from __future__ import annotations

import socket
import struct

from kazoo.protocol.serialization import Close, Connect

__all__ = ["close_session"]


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
