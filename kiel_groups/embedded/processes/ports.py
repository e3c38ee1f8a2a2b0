"""Loopback ports that stay reserved for a server while it is down."""

from __future__ import annotations

import socket

from kiel_groups.errors import ServerError

__all__ = ["ReservedPort", "accepts"]


class ReservedPort:
    """
    A port that the system gives to no other process while the server is down.

    The socket is bound but does not listen. So a client is refused, as by a dead server, and the server can bind and
    listen beside the socket, because both set SO_REUSEADDR. The system uses the port neither for another server's bind
    to port 0, nor as the source port of an outgoing connection. Without this, a client that retries a dead server's
    port might get that port as its own source port, and connect to itself.

    Args:
        number: The port. 0 lets the system choose one.

    Raises:
        ServerError: Another process uses the port, or the port requires privileges (below 1024).
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number))
        except OSError as error:
            self._socket.close()
            raise ServerError(f"port {number} of 127.0.0.1 cannot be had: {error.strerror}; choose another") from error
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back to the system."""
        self._socket.close()


def accepts(port: int) -> bool:
    """Return whether a process listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
