"""The open connections of one client, by broker and purpose."""

from __future__ import annotations

from collections.abc import Container

from kiel_groups.clients.connection import Connection
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.metrics import Metrics

__all__ = ["ConnectionPool"]


class ConnectionPool:
    """
    One connection for each address and purpose, made when first asked for and made anew once it is closed.

    Purposes keep apart what must not wait for each other: metadata behind a long fetch, a fetch behind a slow produce.
    """

    def __init__(self, config: BrokerConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._connections: dict[tuple[HostPort, str], Connection] = {}

    def get(self, address: HostPort, purpose: str) -> Connection:
        """The connection for this purpose; it opens with its first request."""
        key = (address, purpose)
        connection = self._connections.get(key)
        if connection is None or connection.closed:
            connection = self._connections[key] = Connection(address, self._config, self._metrics)
        return connection

    def keep_only(self, addresses: Container[HostPort]) -> None:
        """Close what leads anywhere else: those brokers have gone or moved."""
        for key in [key for key in self._connections if key[0] not in addresses]:
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close them all."""
        self.keep_only(())
