"""
The network of one client: a proxy in front of each server, used by this client only.

So a fault can affect the network of a single member or broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.proxies import FaultProxy
from tests.proxies.fault_proxy import Direction

__all__ = ["Network", "RegistryProxy"]


class Network:
    """The connections of one client to some servers: a proxy for each server."""

    def __init__(self, proxies: Iterable[FaultProxy]) -> None:
        self.proxies = list(proxies)

    @property
    def addresses(self) -> str:
        return ",".join(proxy.address for proxy in self.proxies)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        for proxy in self.proxies:
            proxy.refuse()
            proxy.cut()

    def stall(self, direction: Direction | None = None) -> None:
        """Stop forwarding, in one direction or in both. No connection is closed."""
        for proxy in self.proxies:
            proxy.stall(direction)

    def heal(self) -> None:
        """Forward everything again, buffered bytes first."""
        for proxy in self.proxies:
            proxy.heal()


class RegistryProxy(FaultProxy):
    """
    A proxy to a ZooKeeper server. In answers it replaces the brokers' registered ports by the ports of their proxies.

    Without this, a member that cannot reach the brokers' proxies would read the brokers' own addresses in ZooKeeper and
    bypass the proxies. A port is replaced only by a port with the same number of digits.
    """

    def __init__(self, upstream: str, ports: dict[int, int]) -> None:
        super().__init__(upstream)
        # A replacement must not change the length of the answer. Ports that the system chooses have five digits.
        self._ports = {
            b'"port":%d' % own: b'"port":%d' % other for own, other in ports.items() if len(str(own)) == len(str(other))
        }

    async def _pass_on(self, direction: Direction, chunk: bytes, sink: asyncio.StreamWriter) -> None:
        if direction is Direction.RESPONSES and b'"port":' in chunk:
            for own, other in self._ports.items():
                chunk = chunk.replace(own, other)
        await super()._pass_on(direction, chunk, sink)
