"""A whole Kafka cluster: ZooKeeper, brokers and their topics."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from kiel_groups.admin import cluster_admin
from kiel_groups.embedded.clusters.kept_data import lock_data
from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA, kafka_release
from kiel_groups.embedded.processes.server_process import Server, Startable, in_thread
from kiel_groups.embedded.servers.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.servers.kafka_broker import KafkaBroker, stop_brokers
from kiel_groups.embedded.servers.zookeeper_server import ZooKeeperServer
from kiel_groups.errors import ConfigError

__all__ = ["Cluster"]


class Cluster(Startable):
    """
    Runs ZooKeeper and brokers during a ``with`` or ``async with`` block.

    Args:
        brokers: The number of brokers. Their ids are 0, 1, …
        zookeeper: ZooKeeper's version, ``"3.9.5"`` or ``"3.4.6"``.
        zookeepers: The number of ZooKeeper servers: 1, 3, 5, …
        kafka: The brokers' version, ``"0.8.0"``, ``"0.8.1.1"``, ``"0.8.2.2"`` or ``"0.9.0.1"``.
        chroot: The path of the cluster in ZooKeeper, ``"/path"``. The cluster creates it before the brokers start.
        broker_overrides: Lines of every broker's ``server.properties``.
        zookeeper_overrides: Lines of every ZooKeeper server's ``zoo.cfg``.
        max_session_timeout_ms: The longest session timeout that ZooKeeper grants, by default 10,000.
        cuttable: Whether ``ensemble.cut`` and ``ensemble.delay`` work.
        zookeeper_port: The port of the first ZooKeeper server. All others get the next ports. 0 lets the system choose.
        broker_port: The port of the first broker. All others get the next ports. 0 lets the system choose.
        data: A folder in which the files of all servers are kept. A later cluster of the same versions and numbers of
            servers can use the folder again. Without a folder, all files are removed at the end.

    Raises:
        ConfigError: The chroot, a version or the number of ZooKeeper servers is invalid.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        zookeeper: str = "3.9.5",
        zookeepers: int = 1,
        kafka: str = DEFAULT_KAFKA,
        chroot: str = "",
        broker_overrides: Mapping[str, object] | None = None,
        zookeeper_overrides: Mapping[str, object] | None = None,
        max_session_timeout_ms: int | None = None,
        cuttable: bool = False,
        zookeeper_port: int = 0,
        broker_port: int = 0,
        data: Path | None = None,
    ) -> None:
        if chroot and (not chroot.startswith("/") or chroot.endswith("/")):
            raise ConfigError(f"chroot: {chroot!r} given; expected '/path', or '' for none")
        self.ensemble = ZooKeeperEnsemble(
            zookeepers,
            zookeeper,
            max_session_timeout_ms=max_session_timeout_ms,
            port=zookeeper_port,
            overrides=zookeeper_overrides,
            cuttable=cuttable,
        )
        self.kafka: list[KafkaBroker] = []
        self._count = brokers
        self._release = kafka_release(kafka)
        self._broker_port = broker_port
        self._overrides = broker_overrides
        self._chroot = chroot
        self._data = data
        self._data_lock: IO[str] | None = None

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The first ZooKeeper server. ``ensemble.servers`` lists all ZooKeeper servers."""
        return self.ensemble.servers[0]

    @property
    def servers(self) -> list[Server]:
        """All servers, ZooKeeper first."""
        return [*self.ensemble.servers, *self.kafka]

    @property
    def zk_hosts(self) -> str:
        """ZooKeeper's connection string with the chroot."""
        return f"{self.ensemble.hosts}{self._chroot}"

    @property
    def brokers(self) -> list[str]:
        """The brokers' addresses, ``["127.0.0.1:port"]``."""
        return [broker.address for broker in self.kafka]

    async def create_topic(self, topic: str, partitions: int, replication: int = 1) -> None:
        """Create a topic, and return when every partition has a leader. Errors are those of ``admin.cluster_admin``."""
        await in_thread(cluster_admin.create_topic, self.zk_hosts, topic, partitions, replication)

    async def grow_topic(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions to ``partitions``, and return when each partition has a leader."""
        await in_thread(cluster_admin.grow_topic, self.zk_hosts, topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, and return when it is gone. Raise ConfigError on Kafka 0.8.0, which cannot delete topics."""
        if not self._release.deletes_topics:
            raise ConfigError(f"Kafka {self._release.version} cannot delete topics; use one of another name instead")
        await in_thread(cluster_admin.delete_topic, self.zk_hosts, topic)

    async def stop_brokers(self) -> None:
        """Stop every broker with SIGTERM, the controller last, so that no stopping broker becomes the controller."""
        await in_thread(stop_brokers, self.kafka)

    def _start(self) -> None:
        if self._data is not None:
            self._data_lock = lock_data(self._data, self._kind())
            for server in self.ensemble.servers:
                server.keep_in(self._data / server.name)
        self.ensemble._start()
        cluster_admin.create_chroot(self.zk_hosts)
        self.kafka = [
            KafkaBroker(
                self.zk_hosts,
                number,
                version=self._release.version,
                port=self._broker_port and self._broker_port + number,
                overrides=self._overrides,
            )
            for number in range(self._count)
        ]
        if self._data is not None:
            for broker in self.kafka:
                broker.keep_in(self._data / broker.name)
        with ThreadPoolExecutor(max_workers=max(1, self._count)) as pool:
            list(pool.map(KafkaBroker._start, self.kafka))

    def _kind(self) -> dict[str, object]:
        """Return the properties that another cluster must share to use this cluster's data."""
        return {
            "kafka": self._release.version,
            "brokers": self._count,
            "zookeeper": self.ensemble.version,
            "zookeepers": len(self.ensemble.servers),
        }

    def _close(self) -> None:
        if self._data is not None:
            stop_brokers(self.kafka)
        for broker in self.kafka:
            # Brokers with kept data have been stopped above. For other brokers, a stop with SIGTERM is useless, and
            # would hang if ZooKeeper is gone. So they are killed.
            broker._kill()
            broker._close()
        self.ensemble._close()
        if self._data_lock is not None:
            self._data_lock.close()
            self._data_lock = None
