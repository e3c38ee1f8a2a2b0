"""
Run Kafka's servers: brokers of 0.8 to 2.8 with their metadata in ZooKeeper, and servers of 3.9 and 4.1 in KRaft mode.

In KRaft mode, a controller keeps the metadata in a log. A single broker is its own controller. Several brokers use a
controller in a separate process, so that each broker can be stopped. The cluster's id is written to the data folder of
a server before its first start.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kiel_groups.embedded.java_servers import (
    CLIENTS,
    CONTROLLER,
    SASL_SSL,
    as_properties,
    broker_settings,
    java_command,
    kraft_settings,
)
from kiel_groups.embedded.processes import ChildProcess, Server, log_tail
from kiel_groups.embedded.releases import DEFAULT_KAFKA, KafkaRelease, kafka_release
from kiel_groups.embedded.security import ClusterSecurity, write_secret
from kiel_groups.errors import CoordinationError, ServerError
from kiel_groups.ops import zookeeper_client

#: The class with the main method of all releases.
MAIN = "kafka.Kafka"
_HEAP_MB = 256
#: The log line about the start: of brokers up to 0.10, of brokers from 0.11 on, and of servers in KRaft mode.
_STARTED = re.compile(rb"\[Kafka Server \d+\], [Ss]tarted|\[KafkaServer id=\d+\] started|Kafka Server started")
_OLD_SESSION_LIMIT_S = 20.0
_CONTROLLER_LIMIT_S = 5.0
_POLL_S = 0.02


def stop_brokers(brokers: Sequence[KafkaBroker]) -> None:
    """
    Stop the brokers of one cluster with SIGTERM, the controller last. In KRaft mode, stop all brokers at once.

    A broker of 0.8.1.1 hangs if it becomes the controller while it stops: its new thread for topic deletions waits for
    the lock that the shutdown holds. After 15 s, the broker would be killed. Later releases free the lock.
    """
    last = _controller_id(brokers[0].zk_connect) if len(brokers) > 1 and brokers[0].zk_connect else None
    with ThreadPoolExecutor(max_workers=max(1, len(brokers))) as pool:
        for together in (
            [broker for broker in brokers if broker.broker_id != last],
            [broker for broker in brokers if broker.broker_id == last],
        ):
            list(pool.map(KafkaBroker._stop, together))


def _controller_id(zk_connect: str) -> int | None:
    try:
        with zookeeper_client.zookeeper(zk_connect, timeout_s=_CONTROLLER_LIMIT_S) as client:
            return zookeeper_client.controller_id(client)
    except CoordinationError:
        return None  # Without ZooKeeper, no broker can become the controller.


class KafkaBroker(Server):
    """
    Runs a Kafka broker that uses ZooKeeper, on a loopback port.

    The broker is ready when ``/brokers/ids/<id>`` exists (its port opens earlier) and its log has the line about the
    start. The line is required because 0.8.0 registers before its controller runs. Partitions that are added to a topic
    in between would never get leaders.

    Args:
        zk_connect: ZooKeeper's hosts and the chroot, ``host:port/chroot``. The chroot must exist.
        broker_id: The broker's number in the cluster.
        version: ``"0.8.0"``, ``"0.8.1.1"``, ``"0.8.2.2"``, ``"0.9.0.1"``, ``"0.10.2.2"``, ``"1.1.1"`` or ``"2.8.2"``.
        port: The broker's port. 0 lets the system choose a port.
        overrides: Settings that are added to ``server.properties``, or replace settings there.
    """

    def __init__(
        self,
        zk_connect: str,
        broker_id: int = 0,
        *,
        version: str = DEFAULT_KAFKA,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        # Without ZooKeeper, the broker may be a controller, which has a port of its own.
        super().__init__(f"kafka-{broker_id}", port, further_ports=int(not zk_connect))
        self.version = version
        self.broker_id = broker_id
        self.zk_connect = zk_connect
        self._release = kafka_release(version)
        self._overrides = overrides or {}

    def _command(self) -> list[str]:
        data = self.folder / "data"
        settings = broker_settings(self._release, data, self.port, self.zk_connect, broker_id=self.broker_id)
        return _command(self, self._release, {**settings, **self._overrides})

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        with zookeeper_client.zookeeper(self.zk_connect) as client:
            self._await_end_of_old_session(client)
            yield lambda: zookeeper_client.is_registered(client, self.broker_id) and _has_started(self)

    def _await_end_of_old_session(self, client: zookeeper_client.Client) -> None:
        """
        Wait until ZooKeeper has deleted the registration of this broker's former process.

        After kill -9, a broker's ephemeral znodes stay until its session times out. If a broker of 0.8 starts before
        the timeout, the broker waits until it can register its id. But the broker takes its own old ``/controller``
        znode for the znode of a live broker, and fails when the znode is deleted. Then the cluster never gets a
        controller.

        Raises:
            ServerError: The registration still exists after 20 s.
        """
        deadline = time.monotonic() + _OLD_SESSION_LIMIT_S
        while zookeeper_client.is_registered(client, self.broker_id):
            if time.monotonic() > deadline:
                raise ServerError(
                    f"a broker with the id {self.broker_id} is registered at {self.zk_connect}; choose another id"
                )
            time.sleep(_POLL_S)


_FORMAT = "kafka.tools.StorageTool"
_FORMAT_LIMIT_S = 60.0
#: The controller's number. The brokers have 0, 1, ...
CONTROLLER_NODE = 1_000


def cluster_id(data: Path | None = None) -> str:
    """
    Return a cluster id, a UUID in base64. For a folder of kept data, the id is always the same. For None, the id is
    random.
    """
    first, *rest = (uuid.uuid4() if data is None else uuid.uuid5(uuid.NAMESPACE_URL, data.resolve().as_uri())).bytes
    # A first bit of 0 avoids ids that begin with a hyphen, which the tool that gets them takes for an option.
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


class KRaftController(Server):
    """
    Runs a controller in KRaft mode as a separate process, on a loopback port.

    Args:
        cluster: The cluster's id.
        version: ``"3.9.1"`` or ``"4.1.0"``.
        overrides: Settings that are added to ``server.properties``, or replace settings there.
        security: The users of a secured cluster, or None.
    """

    def __init__(
        self,
        cluster: str,
        version: str,
        *,
        overrides: Mapping[str, object] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        super().__init__("kafka-controller")
        self.version = version
        self._cluster = cluster
        self._release = kafka_release(version)
        self._overrides = overrides or {}
        self._security = security

    @property
    def voters(self) -> dict[int, int]:
        """The port of each controller by its node id. There is one controller."""
        return {CONTROLLER_NODE: self.port}

    def _command(self) -> list[str]:
        data = self.folder / "data"
        settings = kraft_settings(self._release, data, CONTROLLER_NODE, {CONTROLLER: self.port}, self.voters)
        return _command(self, self._release, {**settings, **self._overrides}, self._cluster, self._security)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        yield lambda: _has_started(self)


class KRaftBroker(KafkaBroker):
    """
    Runs a Kafka broker in KRaft mode, on a loopback port. The attribute ``zk_connect`` is empty.

    The broker is ready when its log has the line about the start. Before that line, the controller has accepted the
    broker.

    Args:
        cluster: The cluster's id.
        broker_id: The broker's number in the cluster.
        controller: The cluster's controller, already running. None makes this broker the controller, too.
        version: ``"3.9.1"`` or ``"4.1.0"``.
        port: The broker's port. 0 lets the system choose a port.
        overrides: Settings that are added to ``server.properties``, or replace settings there.
        security: The certificates and the users of a secured cluster, or None.
    """

    def __init__(
        self,
        cluster: str,
        broker_id: int = 0,
        *,
        controller: KRaftController | None = None,
        version: str,
        port: int = 0,
        overrides: Mapping[str, object] | None = None,
        security: ClusterSecurity | None = None,
    ) -> None:
        super().__init__("", broker_id, version=version, port=port, overrides=overrides)
        self._cluster = cluster
        self._controller = controller
        self._security = security

    def _command(self) -> list[str]:
        listeners = {CLIENTS if self._security is None else SASL_SSL: self.port}
        if self._controller is not None:
            voters = self._controller.voters
        else:
            listeners[CONTROLLER] = self._port_number(1)
            voters = {self.broker_id: listeners[CONTROLLER]}
        settings = kraft_settings(self._release, self.folder / "data", self.broker_id, listeners, voters)
        if self._security is not None:
            settings |= self._security.broker_settings()
        return _command(self, self._release, {**settings, **self._overrides}, self._cluster, self._security)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        yield lambda: _has_started(self)


def _has_started(server: Server) -> bool:
    return _STARTED.search(server._logged()) is not None


def _command(
    server: Server,
    release: KafkaRelease,
    settings: Mapping[str, object],
    cluster: str = "",
    security: ClusterSecurity | None = None,
) -> list[str]:
    """
    Write a server's configuration, and return the command that runs the server.

    In KRaft mode, ``cluster`` is the cluster's id. A data folder that was never formatted is formatted with this id,
    and the user of ``security``.

    Raises:
        ServerError: Java is not installed, the jars cannot be fetched, or the data folder cannot be formatted.
    """
    folder = server.folder
    configuration = folder / "server.properties"
    write_secret(configuration, as_properties(settings))
    if cluster and not (folder / "data" / "meta.properties").exists():
        arguments = ["format", "-g", "-t", cluster, "-c", configuration]
        if security is not None:
            # A command line would show the password. The tool reads arguments from a file.
            write_secret(folder / "scram", f"--add-scram\n{security.scram_user}\n")
            arguments.append(f"@{folder / 'scram'}")
        _format(server, release, arguments)
    return java_command(release.classes, folder, MAIN, configuration, heap_mb=_HEAP_MB)


def _format(server: Server, release: KafkaRelease, arguments: Sequence[object]) -> None:
    folder, log = server.folder, server.folder / "format.log"
    command = java_command(release.classes, folder, _FORMAT, *arguments, heap_mb=64)
    # A kill of the server also ends this process.
    server._process = process = ChildProcess(command, log=log, folder=folder)
    if not process.wait(_FORMAT_LIMIT_S):
        process.kill()
    if process.status != 0:
        raise ServerError(f"{folder.name}: its data folder could not be prepared; the log ends:\n{log_tail(log)}")
