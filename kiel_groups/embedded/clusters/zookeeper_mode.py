"""What a cluster in ZooKeeper mode has beside its brokers: the ensemble, a chroot, and topics that are znodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from kiel_groups.admin import cluster_admin
from kiel_groups.embedded.processes.server_process import Server
from kiel_groups.embedded.servers.broker_links import BrokerLinks
from kiel_groups.embedded.servers.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.servers.kafka_broker import BrokerSettings, KafkaBroker

__all__ = ["ZooKeeperMode"]


class ZooKeeperMode:
    """
    The ZooKeeper servers of a cluster, and the work on its topics.

    Args:
        ensemble: The servers, which are not started yet.
        chroot: The path of the cluster in ZooKeeper, or ``""``. It is created when the servers have started.
    """

    def __init__(self, ensemble: ZooKeeperEnsemble, chroot: str) -> None:
        self.ensemble = ensemble
        self._chroot = chroot
        self._links: BrokerLinks | None = None

    @property
    def servers(self) -> Sequence[Server]:
        return self.ensemble.servers

    @property
    def hosts(self) -> str:
        """ZooKeeper's connection string with the chroot."""
        return f"{self.ensemble.hosts}{self._chroot}"

    @property
    def kind(self) -> dict[str, object]:
        return {"zookeeper": self.ensemble.version, "zookeepers": len(self.ensemble.servers)}

    def links(self, brokers: Sequence[Callable[[], str]]) -> BrokerLinks:
        self._links = BrokerLinks(brokers, zookeepers=[_address_of(server) for server in self.servers])
        return self._links

    def start(self) -> None:
        self.ensemble._start()
        cluster_admin.create_chroot(self.hosts)

    def close(self, *, gracefully: bool) -> None:
        self.ensemble._close()

    def broker(self, number: int, **settings: Unpack[BrokerSettings]) -> KafkaBroker:
        hosts = self.hosts if self._links is None else f"{self._links.zookeepers(number)}{self._chroot}"
        return KafkaBroker(hosts, number, **settings)

    def create_topic(self, brokers: Sequence[str], topic: str, partitions: int, replication: int) -> None:
        cluster_admin.create_topic(self.hosts, topic, partitions, replication)

    def grow_topic(self, brokers: Sequence[str], topic: str, partitions: int) -> None:
        cluster_admin.grow_topic(self.hosts, topic, partitions)

    def delete_topic(self, brokers: Sequence[str], topic: str) -> None:
        cluster_admin.delete_topic(self.hosts, topic)


def _address_of(server: Server) -> Callable[[], str]:
    return lambda: server.address
