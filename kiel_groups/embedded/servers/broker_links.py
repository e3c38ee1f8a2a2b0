"""
The network between the brokers of one cluster, with a proxy in front of each broker and of what brokers depend on.

Brokers advertise their proxies, so that clients and other brokers connect to them. In ZooKeeper mode, each broker has
proxies of its own to the ZooKeeper servers. In KRaft mode, all reach the controller through one proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from kiel_groups.embedded.faults.fault_proxy import FaultProxy
from kiel_groups.embedded.faults.sender_proxy import SenderProxy
from kiel_groups.embedded.processes.server_process import Startable
from kiel_groups.embedded.servers.kafka_broker import KafkaBroker

__all__ = ["BrokerLinks"]

Address = Callable[[], str]


class BrokerLinks(Startable):
    """
    Runs the proxies of a cluster's brokers during a ``with`` block.

    Args:
        brokers: For each broker, by its number, a function that returns its own address.
        zookeepers: For each ZooKeeper server, a function that returns its address. None in KRaft mode.
        controller: A function that returns the address of the controller in KRaft mode, or None.
    """

    def __init__(
        self, brokers: Sequence[Address], *, zookeepers: Sequence[Address] = (), controller: Address | None = None
    ) -> None:
        self.brokers = [SenderProxy(address) for address in brokers]
        """The proxies of the brokers. A test may set the ``answer`` of each."""
        self._zookeepers = [[FaultProxy(address) for address in zookeepers] for _ in brokers]
        self._controller = SenderProxy(controller) if controller is not None else None
        self._running = ExitStack()

    @property
    def advertised(self) -> list[str]:
        """The addresses that the brokers advertise."""
        return [proxy.address for proxy in self.brokers]

    @property
    def controller(self) -> str | None:
        """The address at which brokers reach the controller, or None in ZooKeeper mode."""
        return self._controller.address if self._controller is not None else None

    def zookeepers(self, number: int) -> str:
        """Return the addresses, ``host:port,host:port``, at which a broker reaches ZooKeeper."""
        return ",".join(proxy.address for proxy in self._zookeepers[number])

    def cut(self, broker: KafkaBroker) -> None:
        """
        Stall all traffic of a broker except that with clients.

        The broker no longer reaches the other brokers, nor ZooKeeper or the controller, and they do not reach it.
        Connections stay open (see ``FaultProxy.stall``).
        """
        cut = broker.broker_id
        for number, proxy in enumerate(self.brokers):
            others = [other for other in range(len(self.brokers)) if other != cut]
            proxy.stall_brokers(others if number == cut else [cut])
        if self._controller is not None:
            self._controller.stall_brokers([cut])
        for proxy_to_zookeeper in self._zookeepers[cut]:
            proxy_to_zookeeper.stall()

    def heal(self) -> None:
        """End all cuts, and deliver the stalled traffic."""
        for proxy in self._all():
            proxy.heal()

    def _all(self) -> Iterator[FaultProxy]:
        yield from self.brokers
        for proxies in self._zookeepers:
            yield from proxies
        if self._controller is not None:
            yield self._controller

    def _start(self) -> None:
        for proxy in self._all():
            self._running.enter_context(proxy)

    def _close(self) -> None:
        self._running.close()
