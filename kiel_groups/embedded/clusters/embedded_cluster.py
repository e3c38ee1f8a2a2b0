"""A whole Kafka cluster: ZooKeeper or a controller, brokers and their topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol, Unpack

from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA, kafka_release
from kiel_groups.embedded.processes.file_lock import try_lock
from kiel_groups.embedded.processes.server_process import Server, Startable, in_thread
from kiel_groups.embedded.servers.broker_links import BrokerLinks
from kiel_groups.embedded.servers.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.servers.kafka_broker import BrokerSettings, KafkaBroker, stop_brokers
from kiel_groups.embedded.servers.kraft_servers import KRaftBroker, KRaftController, cluster_id
from kiel_groups.embedded.servers.zookeeper_server import DEFAULT_ZOOKEEPER, ZooKeeperServer
from kiel_groups.errors import ConfigError, ServerError
from kiel_groups.ops.actions.broker_topics import BrokerTopics
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.ops.zookeeper_client import create_chroot

__all__ = [
    "lock_data",
    "ZooKeeperMode",
    "KRaftMode",
    "Cluster",
]


_LOCK = "lock"
_KIND = "cluster.json"


def lock_data(folder: Path, kind: Mapping[str, object]) -> IO[str]:
    """
    Lock a data folder for one cluster. Create the folder if it is missing.

    Args:
        folder: The folder in which the servers keep their files.
        kind: The versions and numbers of servers. Existing data must be of the same kind.

    Returns:
        The open lock file. Closing it releases the lock.

    Raises:
        ConfigError: The folder cannot be written, has other files, or has the data of another kind of cluster.
        ServerError: A running cluster uses the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / _KIND).exists():
            raise ConfigError(f"data: {folder} has files of another program; expected an empty folder or a cluster's")
        lock = try_lock(folder / _LOCK)
        if lock is None:
            raise ServerError(f"the data in {folder} is used by a cluster that runs; end it, or choose another folder")
        _check_kind(folder / _KIND, kind)
    except OSError as error:
        raise ConfigError(f"data: {folder} cannot be used: {error.strerror}") from error
    return lock


def _check_kind(path: Path, kind: Mapping[str, object]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        path.write_text(json.dumps(kind) + "\n", encoding="utf-8")
        return
    except ValueError:
        found = None
    if found != kind:
        raise ConfigError(f"data: {path.parent} is of {_text(found)}, not of {_text(kind)}; choose another folder")


def _text(kind: object) -> str:
    return ", ".join(f"{key} {value}" for key, value in kind.items()) if isinstance(kind, Mapping) else "no known kind"


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
        create_chroot(self.hosts)

    def close(self, *, gracefully: bool) -> None:
        self.ensemble._close()

    def broker(self, number: int, **settings: Unpack[BrokerSettings]) -> KafkaBroker:
        hosts = self.hosts if self._links is None else f"{self._links.zookeepers(number)}{self._chroot}"
        return KafkaBroker(hosts, number, **settings)

    def topics(self, brokers: Sequence[str]) -> ZooKeeperTopics:
        return ZooKeeperTopics(self.hosts)


def _address_of(server: Server) -> Callable[[], str]:
    return lambda: server.address


#: How long brokers may take for an answer, and to know each other after a start, in seconds.
_LIMIT_S = 30.0


class KRaftMode:
    """
    The controller of a cluster, and the work on its topics.

    Args:
        brokers: The number of brokers. A single broker is its own controller.
        version: Kafka's version.
        data: The folder of kept data, or None.
    """

    kind: dict[str, object]

    def __init__(self, brokers: int, version: str, data: Path | None) -> None:
        self._cluster_id = cluster_id(data)
        self._controller = KRaftController(self._cluster_id, version) if brokers > 1 else None
        self.kind = {}

    @property
    def servers(self) -> Sequence[KRaftController]:
        return [self._controller] if self._controller is not None else []

    def links(self, brokers: Sequence[Callable[[], str]]) -> BrokerLinks:
        controller = self._controller
        if controller is None:
            raise ConfigError(
                "cuttable_brokers given for a broker that is its own controller; expected 2 brokers or more"
            )
        controller.links = BrokerLinks(brokers, controller=lambda: controller.address)
        return controller.links

    def start(self) -> None:
        for server in self.servers:
            server._start()

    def close(self, *, gracefully: bool) -> None:
        for server in self.servers:
            if not gracefully:
                server._kill()
            server._close()

    def broker(self, number: int, **settings: Unpack[BrokerSettings]) -> KafkaBroker:
        return KRaftBroker(self._cluster_id, number, controller=self._controller, **settings)

    def topics(self, brokers: Sequence[str]) -> BrokerTopics:
        if not brokers:
            raise ServerError("no broker of the cluster runs; start one")
        # A change is complete when each broker knows it, so all have to know each other before.
        return BrokerTopics(",".join(brokers), timeout_s=_LIMIT_S, count=len(brokers))


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

    def topics(self, brokers: Sequence[str]) -> ZooKeeperTopics | BrokerTopics:
        """Return what changes topics; ``brokers`` are the addresses of those that run."""


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

        Errors are those of ``ZooKeeperTopics`` or, in KRaft mode, of ``BrokerTopics``.
        """
        await in_thread(lambda: self._topics().create(topic, partitions, replication))

    async def grow_topic(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions to ``partitions``, and return when each partition has a leader."""
        await in_thread(lambda: self._topics().grow(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, and return when it is gone. Raise ConfigError on Kafka 0.8.0, which cannot delete topics."""
        if not self._release.deletes_topics:
            raise ConfigError(f"Kafka {self._release.version} cannot delete topics; use one of another name instead")
        await in_thread(lambda: self._topics().delete(topic))

    def _topics(self) -> ZooKeeperTopics | BrokerTopics:
        return self._mode.topics(self._running())

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
