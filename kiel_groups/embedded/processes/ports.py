"""Ports of the loopback interface, chosen by the system and kept for as long as a server may want to come back."""

from __future__ import annotations

import socket

from kiel_groups.errors import ServerError

__all__ = ["ReservedPort", "accepts"]


class ReservedPort:
    """
    A port that the system gives to nobody else while a server that used it is down.

    The socket is bound but does not listen: a client that connects is refused as by a dead server, a server (both sides
    set SO_REUSEADDR) may bind and listen beside it, and neither another server's bind to port 0 nor the source port of
    an outgoing connection gets it. Without that, a client that keeps trying a dead server's port may be given that very
    port as its own and meet itself.

    Args:
        number: The port; 0 has the system choose one.

    Raises:
        ServerError: Somebody has this port, or it is not for everybody (below 1024).
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
    """Whether something listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
