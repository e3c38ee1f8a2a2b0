"""A whole Kafka cluster: ZooKeeper or a controller, brokers and their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol, Unpack

from kiel_groups.embedded.clusters.kept_data import lock_data
from kiel_groups.embedded.clusters.kraft_mode import KRaftMode
from kiel_groups.embedded.clusters.zookeeper_mode import ZooKeeperMode
from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA, kafka_release
from kiel_groups.embedded.processes.server_process import Server, Startable, in_thread
from kiel_groups.embedded.servers.broker_links import BrokerLinks
from kiel_groups.embedded.servers.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.servers.kafka_broker import BrokerSettings, KafkaBroker, stop_brokers
from kiel_groups.embedded.servers.zookeeper_server import DEFAULT_ZOOKEEPER, ZooKeeperServer
from kiel_groups.errors import ConfigError, ServerError

__all__ = ["Cluster"]

# In ZooKeeper mode, the controller waits for the answer to its last request to a broker before it elects other leaders,
# and a new leader for that to its last fetch from the former one, both by default for 30 s. A broker that is cut off
# does not answer, and its connections stay open.
_IMPATIENT_PEERS = {"controller.socket.timeout.ms": 2_000, "replica.socket.timeout.ms": 2_000}


class Mode(Protocol):
    """What a cluster has beside its brokers, in ZooKeeper mode or in KRaft mode."""

    @property
    def servers(self) -> Sequence[Server]:
        """The servers that start before the brokers."""

    @property
    def kind(self) -> dict[str, object]:
        """The properties of these servers that another cluster must share to use their data."""

    def links(self, brokers: Sequence[Callable[[], str]]) -> BrokerLinks:
        """
        Create the proxies of the brokers with these addresses. The servers and brokers that start later use them.
        """

    def start(self) -> None:
        """Start the servers."""

    def close(self, *, gracefully: bool) -> None:
        """End the servers. ``gracefully`` says that their data is kept."""

    def broker(self, number: int, **settings: Unpack[BrokerSettings]) -> KafkaBroker:
        """Create a broker."""

    def create_topic(self, brokers: Sequence[str], topic: str, partitions: int, replication: int) -> None:
        """Create a topic, and wait for the leaders of its partitions."""

    def grow_topic(self, brokers: Sequence[str], topic: str, partitions: int) -> None:
        """Add partitions to a topic, and wait for their leaders."""

    def delete_topic(self, brokers: Sequence[str], topic: str) -> None:
        """Delete a topic, and wait until it is gone."""


class Cluster(Startable):
    """
    Runs ZooKeeper and brokers during a ``with`` or ``async with`` block.

    Brokers of 3.9.1 run in KRaft mode, without ZooKeeper: one broker alone, or several with a controller. Arguments
    about ZooKeeper are refused for them, and the attributes about it raise ConfigError.

    Args:
        brokers: The number of brokers. Their ids are 0, 1, …
        zookeeper: ZooKeeper's version, ``"3.9.5"`` (the default) or ``"3.4.6"``.
        zookeepers: The number of ZooKeeper servers: 1, 3, 5, …
        kafka: The brokers' version, ``"0.8.0"``, ``"0.8.1.1"``, ``"0.8.2.2"``, ``"0.9.0.1"``, ``"0.10.2.2"``,
            ``"1.1.1"``, ``"2.8.2"`` or ``"3.9.1"``.
        chroot: The path of the cluster in ZooKeeper, ``"/path"``. The cluster creates it before the brokers start.
        broker_overrides: Lines of every broker's ``server.properties``.
        zookeeper_overrides: Lines of every ZooKeeper server's ``zoo.cfg``.
        max_session_timeout_ms: The longest session timeout that ZooKeeper grants, by default 10,000.
        cuttable: Whether ``ensemble.cut`` and ``ensemble.delay`` work.
        cuttable_brokers: Connect clients and brokers to the brokers, and brokers to ZooKeeper or the controller,
            through the proxies in ``links``.
        zookeeper_port: The port of the first ZooKeeper server. All others get the next ports. 0 lets the system choose.
        broker_port: The port of the first broker. All others get the next ports. 0 lets the system choose.
        advertised: An address for each broker, ``host:port``, at which clients and the other brokers are to reach it,
            such as a proxy's. Without addresses, they are the brokers' own.
        data: A folder in which the files of all servers are kept. A later cluster of the same versions and numbers of
            servers can use the folder again. Without a folder, all files are removed at the end.

    Raises:
        ConfigError: The chroot, a version or the number of ZooKeeper servers is invalid, or does not fit KRaft mode.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        zookeeper: str | None = None,
        zookeepers: int = 1,
        kafka: str = DEFAULT_KAFKA,
        chroot: str = "",
        broker_overrides: Mapping[str, object] | None = None,
        zookeeper_overrides: Mapping[str, object] | None = None,
        max_session_timeout_ms: int | None = None,
        cuttable: bool = False,
        cuttable_brokers: bool = False,
        zookeeper_port: int = 0,
        broker_port: int = 0,
        advertised: Sequence[str] = (),
        data: Path | None = None,
    ) -> None:
        if chroot and (not chroot.startswith("/") or chroot.endswith("/")):
            raise ConfigError(f"chroot: {chroot!r} given; expected '/path', or '' for none")
        if advertised and len(advertised) != brokers:
            raise ConfigError(f"advertised: {len(advertised)} addresses given for {brokers} brokers; expected one each")
        if advertised and cuttable_brokers:
            raise ConfigError("advertised given, and the brokers of cuttable_brokers advertise proxies; expected one")
        self._release = kafka_release(kafka)
        ensemble: dict[str, Any] = {
            "max_session_timeout_ms": max_session_timeout_ms,
            "port": zookeeper_port,
            "overrides": zookeeper_overrides,
            "cuttable": cuttable,
        }
        if self._release.uses_zookeeper:
            version = zookeeper or DEFAULT_ZOOKEEPER
            self._mode: Mode = ZooKeeperMode(ZooKeeperEnsemble(zookeepers, version, **ensemble), chroot)
        else:
            _refuse_zookeeper(
                kafka, {"zookeeper": zookeeper, "zookeepers": zookeepers - 1, "chroot": chroot, **ensemble}
            )
            self._mode = KRaftMode(brokers, kafka, data)
        self.kafka: list[KafkaBroker] = []
        self._count = brokers
        self._broker_port = broker_port
        self._advertised = advertised
        self._links = (
            self._mode.links([self._address_of(number) for number in range(brokers)]) if cuttable_brokers else None
        )
        replication = {name: min(3, brokers) for name in self._release.replicated}
        impatience = _IMPATIENT_PEERS if cuttable_brokers and self._release.uses_zookeeper else {}
        self._overrides: dict[str, object] = {**replication, **impatience, **(broker_overrides or {})}
        self._data = data
        self._data_lock: IO[str] | None = None

    @property
    def uses_zookeeper(self) -> bool:
        """Whether the cluster has ZooKeeper servers."""
        return self._release.uses_zookeeper

    @property
    def ensemble(self) -> ZooKeeperEnsemble:
        """The ZooKeeper servers. Raise ConfigError in KRaft mode."""
        return self._zookeeper_mode.ensemble

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The first ZooKeeper server; ``ensemble.servers`` lists all. Raise ConfigError in KRaft mode."""
        return self.ensemble.servers[0]

    @property
    def links(self) -> BrokerLinks:
        """The proxies between the brokers. Raise ServerError unless ``cuttable_brokers`` was given."""
        if self._links is None:
            raise ServerError(
                "the brokers connect directly; those of a cluster that is cuttable_brokers=True can be cut"
            )
        return self._links

    @property
    def servers(self) -> list[Server]:
        """All servers: first those of ZooKeeper, or the controller of several brokers in KRaft mode."""
        return [*self._mode.servers, *self.kafka]

    @property
    def zk_hosts(self) -> str:
        """ZooKeeper's connection string with the chroot. Raise ConfigError in KRaft mode."""
        return self._zookeeper_mode.hosts

    @property
    def brokers(self) -> list[str]:
        """The brokers' addresses, ``["127.0.0.1:port"]``."""
        return [broker.address for broker in self.kafka]

    async def create_topic(self, topic: str, partitions: int, replication: int = 1) -> None:
        """
        Create a topic, and return when every partition has a leader.

        Errors are those of ``admin.cluster_admin`` or, in KRaft mode, of ``broker_admin.topic_admin``.
        """
        await in_thread(self._mode.create_topic, self._running(), topic, partitions, replication)

    async def grow_topic(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions to ``partitions``, and return when each partition has a leader."""
        await in_thread(self._mode.grow_topic, self._running(), topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, and return when it is gone. Raise ConfigError on Kafka 0.8.0, which cannot delete topics."""
        if not self._release.deletes_topics:
            raise ConfigError(f"Kafka {self._release.version} cannot delete topics; use one of another name instead")
        await in_thread(self._mode.delete_topic, self._running(), topic)

    async def stop_brokers(self) -> None:
        """Stop every broker with SIGTERM. In ZooKeeper mode, stop the controller last, so that no other takes over."""
        await in_thread(stop_brokers, self.kafka)

    def _start(self) -> None:
        if self._data is not None:
            self._data_lock = lock_data(self._data, self._kind())
            for server in self._mode.servers:
                server.keep_in(self._data / server.name)
        if self._links is not None:
            self._links._start()
            self._advertised = self._links.advertised
        self._mode.start()
        self.kafka = [
            self._mode.broker(
                number,
                version=self._release.version,
                port=self._broker_port and self._broker_port + number,
                advertised=self._advertised[number] if self._advertised else None,
                overrides=self._overrides,
            )
            for number in range(self._count)
        ]
        if self._data is not None:
            for broker in self.kafka:
                broker.keep_in(self._data / broker.name)
        with ThreadPoolExecutor(max_workers=max(1, self._count)) as pool:
            list(pool.map(KafkaBroker._start, self.kafka))

    def _address_of(self, number: int) -> Callable[[], str]:
        return lambda: self.kafka[number].address

    def _running(self) -> list[str]:
        return [broker.address for broker in self.kafka if broker.is_running]

    @property
    def _zookeeper_mode(self) -> ZooKeeperMode:
        if not isinstance(self._mode, ZooKeeperMode):
            raise ConfigError(f"Kafka {self._release.version} runs without ZooKeeper, so the cluster has none")
        return self._mode

    def _kind(self) -> dict[str, object]:
        """Return the properties that another cluster must share to use this cluster's data."""
        return {"kafka": self._release.version, "brokers": self._count, **self._mode.kind}

    def _close(self) -> None:
        if self._data is not None:
            stop_brokers(self.kafka)
        for broker in self.kafka:
            # Brokers with kept data have been stopped above. For other brokers, a stop with SIGTERM is useless, and
            # would hang if ZooKeeper is gone. So they are killed.
            broker._kill()
            broker._close()
        self._mode.close(gracefully=self._data is not None)
        if self._links is not None:
            self._links._close()
        if self._data_lock is not None:
            self._data_lock.close()
            self._data_lock = None


def _refuse_zookeeper(kafka: str, arguments: Mapping[str, object]) -> None:
    """Raise ConfigError if one of the arguments, which are about ZooKeeper, is given."""
    if given := [name for name, value in arguments.items() if value]:
        raise ConfigError(f"{', '.join(given)} given, and Kafka {kafka} runs without ZooKeeper; expected none of these")
