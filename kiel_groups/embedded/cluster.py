"""Run a whole Kafka cluster: brokers, their ZooKeeper servers or controller, and topics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, ClassVar

from kiel_groups.embedded.kafka import KafkaBroker, KRaftBroker, KRaftController, cluster_id, stop_brokers
from kiel_groups.embedded.processes import Server, Startable, in_thread, server_folder, try_lock
from kiel_groups.embedded.releases import DEFAULT_KAFKA, DEFAULT_ZOOKEEPER, EARLIER_ZOOKEEPER, kafka_release
from kiel_groups.embedded.security import ClusterSecurity
from kiel_groups.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.errors import ConfigError, ServerError
from kiel_groups.ops.actions.broker_topics import BrokerTopics
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.ops.zookeeper_client import create_chroot

_LOCK = "lock"
_KIND = "cluster.json"


def _lock_data(folder: Path, kind: Mapping[str, object]) -> IO[str]:
    """
    Lock a data folder for one cluster. Create the folder if it is missing.

    Args:
        folder: The folder in which the servers keep their files.
        kind: The versions and numbers of servers. Existing data must be from a cluster with the same values.

    Returns:
        The open lock file. Closing the file releases the lock.

    Raises:
        ConfigError: The folder cannot be used, has files of another program, or has data of another kind of cluster.
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


#: The time limit of requests to brokers, and of brokers to find each other after a start, in seconds.
_LIMIT_S = 30.0


class Cluster(Startable):
    """
    Runs ZooKeeper and brokers during a ``with`` or ``async with`` block.

    Brokers of 3.9.1 and 4.1.0 run in KRaft mode, without ZooKeeper: one broker alone, or several brokers with a
    controller. In KRaft mode, arguments about ZooKeeper are refused, and attributes about ZooKeeper raise ConfigError.

    Args:
        brokers: The number of brokers. The ids of the brokers are 0, 1, …
        zookeeper: ZooKeeper's version, ``"3.9.5"`` (the default) or ``"3.4.6"``.
        zookeepers: The number of ZooKeeper servers: 1, 3, 5, …
        kafka: The brokers' version, ``"0.8.0"``, ``"0.8.1.1"``, ``"0.8.2.2"``, ``"0.9.0.1"``, ``"0.10.2.2"``,
            ``"1.1.1"``, ``"2.8.2"``, ``"3.9.1"`` or ``"4.1.0"``.
        chroot: The path of the cluster in ZooKeeper, ``"/path"``. The cluster creates the path before the brokers
            start.
        broker_overrides: Settings that are added to every broker's ``server.properties``, or replace settings there.
        zookeeper_overrides: Settings that are added to every ZooKeeper server's ``zoo.cfg``, or replace settings there.
        max_session_timeout_ms: The longest session timeout that ZooKeeper grants, in milliseconds, by default 10,000.
        zookeeper_port: The port of the first ZooKeeper server. All others get the next ports. 0 lets the system choose.
        broker_port: The port of the first broker. All others get the next ports. 0 lets the system choose.
        data: A folder in which the files of all servers are kept. A later cluster with the same versions and numbers of
            servers can use the folder again. With None, all files are removed at the end.
        secure: True for servers that ask clients who they are. ZooKeeper servers then also offer SASL, and TLS with
            client certificates at ports of their own. Their plain ports stay open, because brokers of 0.8 need them.
            Brokers in KRaft mode offer SASL_SSL only. ``security`` has the certificates and the users.

    Raises:
        ConfigError: The chroot, a version or the number of ZooKeeper servers is invalid, or does not fit KRaft mode, or
            ZooKeeper 3.4.6 is to be secured, which has no TLS.
    """

    #: The class of the ZooKeeper servers.
    ENSEMBLE: ClassVar[type[ZooKeeperEnsemble]] = ZooKeeperEnsemble

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
        zookeeper_port: int = 0,
        broker_port: int = 0,
        data: Path | None = None,
        secure: bool = False,
    ) -> None:
        if chroot and (not chroot.startswith("/") or chroot.endswith("/")):
            raise ConfigError(f"chroot: {chroot!r} given; expected '/path', or '' for none")
        self._release = kafka_release(kafka)
        if secure and zookeeper == EARLIER_ZOOKEEPER:
            raise ConfigError(f"secure: ZooKeeper {zookeeper} knows no TLS; expected {DEFAULT_ZOOKEEPER}")
        self._security = ClusterSecurity(uses_zookeeper=self._release.uses_zookeeper) if secure else None
        settings: dict[str, Any] = {
            "max_session_timeout_ms": max_session_timeout_ms,
            "port": zookeeper_port,
            "overrides": zookeeper_overrides,
        }
        self._ensemble: ZooKeeperEnsemble | None = None
        self._controller: KRaftController | None = None
        if self._release.uses_zookeeper:
            self._ensemble = self.ENSEMBLE(
                zookeepers, zookeeper or DEFAULT_ZOOKEEPER, **settings, security=self._security
            )
        else:
            _refuse_zookeeper(
                kafka, {"zookeeper": zookeeper, "zookeepers": zookeepers - 1, "chroot": chroot, **settings}
            )
            self._cluster_id = cluster_id(data)
            if brokers > 1:
                self._controller = KRaftController(self._cluster_id, kafka, security=self._security)
        self.kafka: list[KafkaBroker] = []
        self._chroot = chroot
        self._count = brokers
        self._broker_port = broker_port
        replication = {name: min(3, brokers) for name in self._release.replicated}
        self._overrides: dict[str, object] = {**replication, **(broker_overrides or {})}
        self._data = data
        self._data_lock: IO[str] | None = None

    @property
    def uses_zookeeper(self) -> bool:
        """Whether the cluster has ZooKeeper servers."""
        return self._release.uses_zookeeper

    @property
    def ensemble(self) -> ZooKeeperEnsemble:
        """The ensemble of ZooKeeper servers. Raise ConfigError in KRaft mode."""
        if self._ensemble is None:
            raise ConfigError(f"Kafka {self._release.version} runs without ZooKeeper, so the cluster has none")
        return self._ensemble

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The first ZooKeeper server. ``ensemble.servers`` lists all servers. Raise ConfigError in KRaft mode."""
        return self.ensemble.servers[0]

    @property
    def servers(self) -> list[Server]:
        """All servers: the ZooKeeper servers (in KRaft mode, the separate controller, if any), then the brokers."""
        return [*self._first_servers, *self.kafka]

    @property
    def zk_hosts(self) -> str:
        """ZooKeeper's connection string with the chroot. Raise ConfigError in KRaft mode."""
        return f"{self.ensemble.hosts}{self._chroot}"

    @property
    def tls_hosts(self) -> str:
        """ZooKeeper's connection string for clients with TLS, if the cluster is secured."""
        return f"{self.ensemble.tls_hosts}{self._chroot}"

    @property
    def security(self) -> ClusterSecurity:
        """The certificates and the users. Raise ConfigError if the cluster is not secured."""
        if self._security is None:
            raise ConfigError("the cluster is not secured; expected Cluster(secure=True)")
        return self._security

    @property
    def brokers(self) -> list[str]:
        """The addresses of the brokers, each as ``127.0.0.1:port``."""
        return [broker.address for broker in self.kafka]

    async def create_topic(self, topic: str, partitions: int, replication: int = 1) -> None:
        """
        Create a topic, and return when every partition has a leader.

        This method raises the errors of ``ZooKeeperTopics.create`` or, in KRaft mode, of ``BrokerTopics.create``.
        """
        await in_thread(lambda: self._topics().create(topic, partitions, replication))

    async def grow_topic(self, topic: str, partitions: int) -> None:
        """Increase a topic's number of partitions to ``partitions``, and return when each partition has a leader."""
        await in_thread(lambda: self._topics().grow(topic, partitions))

    async def delete_topic(self, topic: str) -> None:
        """
        Delete a topic, and return when the brokers have deleted it.

        Raises:
            ConfigError: The brokers are of 0.8.0, which cannot delete topics.
        """
        if not self._release.deletes_topics:
            raise ConfigError(f"Kafka {self._release.version} cannot delete topics; use one of another name instead")
        await in_thread(lambda: self._topics().delete(topic))

    def _topics(self) -> ZooKeeperTopics | BrokerTopics:
        if self.uses_zookeeper:
            return ZooKeeperTopics(self.zk_hosts)
        running = [broker.address for broker in self.kafka if broker.is_running]
        if not running:
            raise ServerError("no broker of the cluster runs; start one")
        # A change is complete when each broker knows it, so all have to know each other before.
        security = self._security.file if self._security is not None else None
        return BrokerTopics(",".join(running), timeout_s=_LIMIT_S, count=len(running), security=security)

    async def stop_brokers(self) -> None:
        """
        Stop all brokers with SIGTERM, or with SIGKILL after 15 s.

        In ZooKeeper mode, stop the controller last, so that no stopping broker becomes the controller.
        """
        await in_thread(stop_brokers, self.kafka)

    @property
    def _first_servers(self) -> Sequence[Server]:
        """The servers that start before the brokers: the ZooKeeper servers, or the controller in KRaft mode."""
        if self._ensemble is not None:
            return self._ensemble.servers
        return [self._controller] if self._controller is not None else []

    def _start(self) -> None:
        if self._data is not None:
            self._data_lock = _lock_data(self._data, self._kind())
            for server in self._first_servers:
                server.keep_in(self._data / server.name)
        if self._security is not None:
            self._security.create(self._data / "security" if self._data is not None else server_folder("security"))
        if self._ensemble is not None:
            self._ensemble._start()
            create_chroot(self.zk_hosts)
        elif self._controller is not None:
            self._controller._start()
        self.kafka = [self._broker(number) for number in range(self._count)]
        if self._data is not None:
            for broker in self.kafka:
                broker.keep_in(self._data / broker.name)
        with ThreadPoolExecutor(max_workers=max(1, self._count)) as pool:
            list(pool.map(KafkaBroker._start, self.kafka))

    def _kill(self) -> None:
        for server in self.kafka or self._first_servers:
            server._kill()

    def _broker(self, number: int) -> KafkaBroker:
        settings: dict[str, Any] = {
            "version": self._release.version,
            "port": self._broker_port and self._broker_port + number,
            "overrides": self._overrides_of(number),
        }
        if self._release.uses_zookeeper:
            return KafkaBroker(self.zk_hosts, number, **settings)
        return KRaftBroker(self._cluster_id, number, controller=self._controller, security=self._security, **settings)

    def _overrides_of(self, number: int) -> dict[str, object]:
        """Return the settings that are added to a broker's ``server.properties``, or replace settings there."""
        return self._overrides

    def _kind(self) -> dict[str, object]:
        """
        Return the versions and numbers of servers. Another cluster can use the data only if its versions and numbers
        are the same.
        """
        kind: dict[str, object] = {"kafka": self._release.version, "brokers": self._count}
        if self._ensemble is not None:
            kind |= {"zookeeper": self._ensemble.version, "zookeepers": len(self._ensemble.servers)}
        if self._security is not None:
            kind["secured"] = True
        return kind

    def _close(self) -> None:
        if self._data is not None:
            stop_brokers(self.kafka)
        for broker in self.kafka:
            # Brokers with kept data have been stopped above. For other brokers, a stop with SIGTERM is useless, and
            # would hang if ZooKeeper is gone. So they are killed.
            broker._kill()
            broker._close()
        if self._ensemble is not None:
            self._ensemble._close()
        if self._controller is not None:
            if self._data is None:
                self._controller._kill()
            self._controller._close()
        if self._security is not None and self._data is None:
            self._security.remove()
        if self._data_lock is not None:
            self._data_lock.close()
            self._data_lock = None


def _refuse_zookeeper(kafka: str, arguments: Mapping[str, object]) -> None:
    """Raise ConfigError if any of these arguments about ZooKeeper is given."""
    if given := [name for name, value in arguments.items() if value]:
        raise ConfigError(f"{', '.join(given)} given, and Kafka {kafka} runs without ZooKeeper; expected none of these")
