"""One Kafka broker that keeps its metadata in ZooKeeper, of a release from 0.8 to 2.8."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from kiel_groups.config import parse_hosts
from kiel_groups.embedded.jars.classpaths import ClassPath
from kiel_groups.embedded.jars.jar_cache import java_class_path
from kiel_groups.embedded.jars.kafka_releases import DEFAULT_KAFKA, kafka_release
from kiel_groups.embedded.processes.server_process import Server
from kiel_groups.embedded.servers.server_files import LOG4J, advertised_settings, as_properties, broker_settings
from kiel_groups.errors import CoordinationError, ServerError
from kiel_groups.ops import zookeeper_client

__all__ = [
    "java_command",
    "BROKER_HEAP_MB",
    "MAIN",
    "STARTED",
    "BrokerSettings",
    "KafkaBroker",
    "stop_brokers",
]


def java_command(classes: ClassPath, folder: Path, main: str, *arguments: object, heap_mb: int) -> list[str]:
    """
    Return the command that runs the main class of a server, or of one of its tools.

    Args:
        classes: The server's jars, which are fetched if they are not in the cache.
        folder: The server's own folder.
        main: The class with the main method.
        arguments: The arguments of the main method, such as a configuration file.
        heap_mb: The largest heap, in MiB.

    Raises:
        ServerError: Java is not installed, or the jars cannot be fetched.
    """
    logging = folder / "log4j.properties"
    logging.write_text(LOG4J, encoding="utf-8")
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    return [
        _java(),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Djava.net.preferIPv4Stack=true",
        # Without these, a killed server leaves performance data, native code and crash reports in other folders.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        f"-XX:ErrorFile={folder}/crash.log",
        # ZooKeeper 3.9 logs through slf4j-simple. All other servers log through log4j.
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
        f"-Dlog4j.configuration=file:{logging}",
        "-cp",
        java_class_path(classes),
        main,
        *map(str, arguments),
    ]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if java is None:
        raise ServerError(
            "Java is needed to run ZooKeeper and Kafka, and there is no 'java' here; install a runtime, version 11 or "
            "later (Debian: apt install default-jre-headless)"
        )
    return java


MAIN = "kafka.Kafka"
BROKER_HEAP_MB = 256
#: Up to 0.10, from 0.11 on, and in KRaft mode.
STARTED = re.compile(rb"\[Kafka Server \d+\], [Ss]tarted|\[KafkaServer id=\d+\] started|Kafka Server started")
_OLD_SESSION_LIMIT_S = 20.0
_CONTROLLER_LIMIT_S = 5.0
_POLL_S = 0.02


def stop_brokers(brokers: Sequence[KafkaBroker]) -> None:
    """
    Stop the brokers of one cluster, the controller last, so that no stopping broker becomes the controller. In KRaft
    mode, stop all brokers at once.

    A broker of 0.8.1.1 that becomes the controller while it stops hangs: its new thread for topic deletions waits for
    the lock that the shutdown holds. Such a broker would be killed after 15 s. Later releases release the lock.
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


class BrokerSettings(TypedDict):
    """The arguments of a broker that do not depend on where the cluster's metadata is."""

    version: str
    port: int
    advertised: str | None
    overrides: Mapping[str, object]


class KafkaBroker(Server):
    """
    A real broker on a loopback port.

    The broker is ready when ``/brokers/ids/<id>`` exists (its port opens earlier) and its log says that it has started.
    Both are required: 0.8.0 registers before its controller runs, and partitions added to a topic in between would
    never get leaders.

    Args:
        zk_connect: ZooKeeper's hosts and the chroot, ``host:port/chroot``. The chroot must exist.
        broker_id: The broker's number in the cluster.
        version: ``"0.8.0"``, ``"0.8.1.1"``, ``"0.8.2.2"``, ``"0.9.0.1"``, ``"0.10.2.2"``, ``"1.1.1"`` or ``"2.8.2"``.
        port: The broker's port. 0 lets the system choose one.
        advertised: The address, ``host:port``, at which clients and other brokers are to reach this broker, such as a
            proxy's. None means the broker's own address.
        overrides: Lines that are added to ``server.properties`` or replace lines there.
    """

    def __init__(
        self,
        zk_connect: str,
        broker_id: int = 0,
        *,
        version: str = DEFAULT_KAFKA,
        port: int = 0,
        advertised: str | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"kafka-{broker_id}", port)
        self.version = version
        self.broker_id = broker_id
        self.zk_connect = zk_connect
        self._release = kafka_release(version)
        self._overrides = dict(overrides or {})
        if advertised is not None:
            address = parse_hosts(advertised, 0, "advertised")[0]
            self._overrides = advertised_settings(self._release, address) | self._overrides

    def _command(self) -> list[str]:
        return self._java(
            broker_settings(self._release, self.folder / "data", self.port, self.zk_connect, broker_id=self.broker_id)
        )

    def _java(self, settings: Mapping[str, object]) -> list[str]:
        """Write the broker's configuration, and return the command that runs the broker."""
        configuration = self.folder / "server.properties"
        configuration.write_text(as_properties({**settings, **self._overrides}), encoding="utf-8")
        return java_command(self._release.classes, self.folder, MAIN, configuration, heap_mb=BROKER_HEAP_MB)

    @contextmanager
    def _readiness(self) -> Iterator[Callable[[], bool]]:
        log_start = self.log.stat().st_size if self.log.exists() else 0
        with zookeeper_client.zookeeper(self.zk_connect) as client:
            self._await_end_of_old_session(client)
            yield lambda: zookeeper_client.is_registered(client, self.broker_id) and self._has_started(log_start)

    def _has_started(self, since_byte: int) -> bool:
        return STARTED.search(self._logged(since_byte)) is not None

    def _await_end_of_old_session(self, client: zookeeper_client.Client) -> None:
        """
        Wait until ZooKeeper has deleted this broker's registration.

        After kill -9, a broker's ephemeral znodes stay until its session times out. A broker of 0.8 that starts
        meanwhile waits until it can register its id. But it mistakes its own old ``/controller`` znode for that of a
        live broker, fails when the znode is deleted, and leaves the cluster without a controller permanently.

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
