"""
Real servers that can be cut off from each other: proxies carry the traffic between them, which a test stalls or delays.

A ZooKeeper server connects to the other servers' addresses in its own configuration, so each configuration has proxies
that no other server uses. On 3.4.6, a cut is complete. On 3.9.5, a cut is complete only between followers and leader:
in an election, the servers also exchange their real addresses, and may bypass the proxies.

Brokers advertise their proxies, so that clients and other brokers connect to them. In ZooKeeper mode, each broker has
proxies of its own to the ZooKeeper servers. In KRaft mode, all reach the controller through one proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from typing import Any, NamedTuple

from kiel_groups.config import HostPort, parse_hosts
from kiel_groups.embedded import Cluster, KafkaBroker, ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.embedded.java_servers import CLIENTS, CONTROLLER, LOOPBACK, Peer
from kiel_groups.embedded.kafka import CONTROLLER_NODE
from kiel_groups.embedded.processes import Server, Startable
from kiel_groups.embedded.releases import KafkaRelease
from tests.proxies.fault_proxy import FaultProxy
from tests.proxies.sender_proxy import SenderProxy

__all__ = ["ClusterOfCuttableBrokers", "ClusterOnCuttableEnsemble", "CuttableEnsemble", "advertised_settings"]

Address = Callable[[], str]

#: How long a proxy waits for the server behind it. A server that was just elected listens a moment later. A follower
#: that is refused until then retries for 5 s. If a proxy accepted the follower's connection and then reset it, the
#: follower would vote again instead of retrying, and its leader would wait for it until ``initLimit``.
_NEW_LEADER_WAIT_S = 5.0
# In ZooKeeper mode, the controller waits for the answer to its last request to a broker before it elects other leaders,
# and a new leader for that to its last fetch from the former one, both by default for 30 s. A broker that is cut off
# does not answer, and its connections stay open.
_IMPATIENT_PEERS = {"controller.socket.timeout.ms": 2_000, "replica.socket.timeout.ms": 2_000}


class _PeerProxies(NamedTuple):
    """The proxies through which one ZooKeeper server reaches another one."""

    quorum: FaultProxy
    election: FaultProxy


class CuttableEnsemble(ZooKeeperEnsemble):
    """ZooKeeper servers of which each pair can be cut off from each other. The arguments are those of the class."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        #: By the numbers of the server that connects and of the one that it reaches.
        self._proxies: dict[tuple[int, int], _PeerProxies] = {}
        self._running = ExitStack()

    def cut(self, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """Stall all traffic between ``server`` and each of ``others``. Their connections stay open."""
        for proxy in self._between(server, others):
            proxy.stall()

    def delay(self, seconds: float, server: ZooKeeperServer, *others: ZooKeeperServer) -> None:
        """Delay all traffic between ``server`` and each of ``others``, in both directions."""
        for proxy in self._between(server, others):
            proxy.delay(seconds)

    def heal(self) -> None:
        """End all cuts and delays, and deliver the stalled traffic."""
        for pair in self._proxies.values():
            for proxy in pair:
                proxy.heal()

    def _between(self, server: ZooKeeperServer, others: Sequence[ZooKeeperServer]) -> Iterator[FaultProxy]:
        one = 1 + self.servers.index(server)
        for other in (1 + self.servers.index(each) for each in others):
            yield from self._proxies[one, other]
            yield from self._proxies[other, one]

    def _reserve_ports(self) -> None:
        super()._reserve_ports()
        for one, other in permutations(self._ports, 2):
            _, quorum_port, election_port = super()._peers_of(one)[other]
            proxies = _PeerProxies(
                FaultProxy(f"{LOOPBACK}:{quorum_port}", upstream_wait_s=_NEW_LEADER_WAIT_S),
                FaultProxy(f"{LOOPBACK}:{election_port}"),
            )
            self._proxies[one, other] = proxies
            for proxy in proxies:
                self._running.enter_context(proxy)

    def _peers_of(self, number: int) -> Mapping[int, Peer]:
        """Return the real address of the server ``number`` itself, and the proxies to all others."""
        real = super()._peers_of(number)
        proxies = {other: pair for (one, other), pair in self._proxies.items() if one == number}
        return {**real, **{other: Peer(LOOPBACK, pair[0].port, pair[1].port) for other, pair in proxies.items()}}

    def _close(self) -> None:
        super()._close()
        self._running.close()
        self._proxies.clear()


class ClusterOnCuttableEnsemble(Cluster):
    """A cluster whose ``ensemble`` has the methods of CuttableEnsemble. The arguments are those of the class."""

    ENSEMBLE = CuttableEnsemble


class BrokerLinks(Startable):
    """
    Runs the proxies of a cluster's brokers during a ``with`` block.

    Args:
        brokers: For each broker, by its number, a function that returns its own address.
        zookeepers: For each ZooKeeper server, a function that returns its address. None in KRaft mode.
        controller: A function that returns the address of the controller in KRaft mode, or None.
    """

    def __init__(self, brokers: Sequence[Address], zookeepers: Sequence[Address], controller: Address | None) -> None:
        self.brokers = [SenderProxy(address) for address in brokers]
        """The proxies of the brokers. A test may set the ``answer`` of each."""
        self._zookeepers = [[FaultProxy(address) for address in zookeepers] for _ in brokers]
        self.controller = SenderProxy(controller) if controller is not None else None
        """The proxy through which brokers reach the controller, or None in ZooKeeper mode."""
        self._running = ExitStack()

    @property
    def advertised(self) -> list[str]:
        """The addresses that the brokers advertise."""
        return [proxy.address for proxy in self.brokers]

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
        if self.controller is not None:
            self.controller.stall_brokers([cut])
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
        if self.controller is not None:
            yield self.controller

    def _start(self) -> None:
        for proxy in self._all():
            self._running.enter_context(proxy)

    def _close(self) -> None:
        self._running.close()


class ClusterOfCuttableBrokers(Cluster):
    """
    A cluster whose brokers ``links`` cuts off from each other, and from ZooKeeper or the controller.

    The arguments are those of the class. In KRaft mode there must be two brokers or more: a single one is its own
    controller.
    """

    def __init__(self, brokers: int, **settings: Any) -> None:
        super().__init__(brokers, **settings)
        controller = self._controller
        self.links = BrokerLinks(
            [self._address_of(number) for number in range(brokers)],
            [_address_of(server) for server in self._first_servers] if self.uses_zookeeper else [],
            None if controller is None else _address_of(controller),
        )

    def _address_of(self, number: int) -> Address:
        return lambda: self.kafka[number].address

    def _overrides_of(self, number: int) -> dict[str, object]:
        overrides = advertised_settings(self._release, parse_hosts(self.links.advertised[number], 0, "advertised")[0])
        if self.uses_zookeeper:
            overrides |= _IMPATIENT_PEERS
            overrides["zookeeper.connect"] = f"{self.links.zookeepers(number)}{self._chroot}"
        return {**overrides, **self._quorum(), **super()._overrides_of(number)}

    def _quorum(self) -> dict[str, object]:
        """Return the setting with the controller's address, which the controller and its brokers share."""
        proxy = self.links.controller
        return {} if proxy is None else {"controller.quorum.voters": f"{CONTROLLER_NODE}@{proxy.address}"}

    def _start(self) -> None:
        self.links._start()
        if self._controller is not None and self.links.controller is not None:
            # Brokers learn this address from the answers of the controller, beside that in their configuration.
            advertised = {"advertised.listeners": f"{CONTROLLER}://{self.links.controller.address}"}
            self._controller._overrides = {**self._quorum(), **advertised}
        super()._start()

    def _close(self) -> None:
        super()._close()
        self.links._close()


def _address_of(server: Server) -> Address:
    return lambda: server.address


def advertised_settings(release: KafkaRelease, address: HostPort) -> dict[str, object]:
    """Return the settings of a broker that clients and other brokers are to reach at another address than its own."""
    if release.has_listeners:
        return {"advertised.listeners": f"{CLIENTS}://{address}"}
    return {"advertised.host.name": address.host, "advertised.port": address.port}
