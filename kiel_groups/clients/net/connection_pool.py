"""Keep the open connections of one client, by broker and purpose."""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from kiel_groups.clients.net.connection import Connection
from kiel_groups.clients.net.receive_buffers import ReceiveBuffers
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.metrics import Metrics

__all__ = ["ConnectionPool", "CONTROL"]

#: The purpose of short requests that a broker answers at once.
CONTROL = "control"

#: How long a broker is avoided after a failed request, by requests that any broker can answer, in seconds.
BLAMED_S = 30.0


class ConnectionPool:
    """
    Keeps one connection for each address and purpose, created on first use and replaced once it is closed.

    Purposes separate requests that must not wait for each other, such as metadata requests and long fetches, or fetches
    and slow produce requests.
    """

    def __init__(self, config: BrokerConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._connections: dict[tuple[HostPort, str], Connection] = {}
        self._blamed_at_s: dict[HostPort, float] = {}
        self._buffers = ReceiveBuffers()

    def get(self, address: HostPort, purpose: str) -> Connection:
        """Return the connection to this address for one purpose. A new connection opens with its first request."""
        key = (address, purpose)
        connection = self._connections.get(key)
        if connection is None or connection.closed:
            connection = self._connections[key] = Connection(address, self._config, self._metrics, self._buffers)
        return connection

    def note_failure(self, address: HostPort) -> None:
        """Note that a request to this broker failed."""
        self._blamed_at_s[address] = time.monotonic()

    def best(self, addresses: Sequence[HostPort]) -> HostPort:
        """Return the first address without a recent failure, or else the address that failed the longest ago."""
        since_s = time.monotonic() - BLAMED_S
        return min(addresses, key=lambda address: max(since_s, self._blamed_at_s.get(address, since_s)))

    def keep_only(self, addresses: Container[HostPort]) -> None:
        """Close the connections to all addresses but these."""
        for key in [key for key in self._connections if key[0] not in addresses]:
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close all connections."""
        self.keep_only(())
        self._buffers.close()
