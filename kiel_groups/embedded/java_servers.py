"""
Configure ZooKeeper and Kafka servers, and create the commands that run them.

The embedded servers use these settings. The example files of this repository are generated from the same settings.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NamedTuple, TypeAlias

from kiel_groups.embedded.class_archives import archive_options
from kiel_groups.embedded.jars import jar_folder, java_class_path
from kiel_groups.embedded.releases import ClassPath, KafkaRelease
from kiel_groups.errors import ServerError

Settings: TypeAlias = Mapping[str, object]

LOOPBACK = "127.0.0.1"
#: The names of the listeners of a server in KRaft mode: for clients and brokers, in plain text or, on a secured server,
#: with TLS and SASL; and for the controller's requests.
CLIENTS, SASL_SSL, CONTROLLER = "PLAINTEXT", "SASL_SSL", "CONTROLLER"

#: All servers but ZooKeeper 3.9 and Kafka 4 log through log4j 1. Like the others, they log to standard output.
LOG4J = """\
log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1}: %m%n
"""


class Peer(NamedTuple):
    """The host and ports at which the other servers of an ensemble reach a ZooKeeper server."""

    host: str
    quorum_port: int
    election_port: int


def as_properties(settings: Settings) -> str:
    """Format settings as lines of Java properties or of ``zoo.cfg``."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def zookeeper_settings(data: PurePath, port: int, *, tick_time_ms: int = 500) -> dict[str, object]:
    """Return the ``zoo.cfg`` settings of a stand-alone ZooKeeper server on the loopback interface."""
    return {
        "dataDir": data,
        "clientPort": port,
        "tickTime": tick_time_ms,
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }


def ensemble_settings(peers: Mapping[int, Peer]) -> dict[str, object]:
    """Return the ``zoo.cfg`` settings of an ensemble. ``peers`` has the addresses of all servers by server number."""
    servers = {f"server.{number}": f"{host}:{quorum}:{election}" for number, (host, quorum, election) in peers.items()}
    # In ticks: how long a server may take to catch up with the leader at its start, and how long it may lag later.
    return {"initLimit": 20, "syncLimit": 4, **servers}


def broker_settings(
    release: KafkaRelease, data: PurePath, port: int, zk_connect: str, *, broker_id: int = 0
) -> dict[str, object]:
    """Return the ``server.properties`` of a small broker on the loopback interface that uses ZooKeeper."""
    listening = (
        {"listeners": f"{CLIENTS}://{LOOPBACK}:{port}"}
        if release.has_listeners
        else {"host.name": LOOPBACK, "port": port}
    )
    return {
        "broker.id": broker_id,
        **listening,
        "log.dirs": data,
        "zookeeper.connect": zk_connect,
        "zookeeper.session.timeout.ms": 3000,
        "auto.create.topics.enable": "false",
        # Index files are preallocated. By default, each has 10 MiB.
        "log.index.size.max.bytes": 1048576,
        # With controlled shutdown, stopping a whole cluster takes 17 to 45 s.
        "controlled.shutdown.enable": "false",
        "num.io.threads": 2,
        "num.network.threads": 2,
        **release.settings,
    }


def kraft_settings(
    release: KafkaRelease, data: PurePath, node: int, listeners: Mapping[str, int], voters: Mapping[int, int]
) -> dict[str, object]:
    """
    Return the ``server.properties`` of a small server on the loopback interface in KRaft mode.

    Args:
        release: The server's release.
        data: The folder of the server's logs.
        node: The server's node id in the cluster.
        listeners: The server's ports by listener name. A server with the listener CONTROLLER is a controller, and a
            server with any other listener is a broker. A server may be a controller and a broker.
        voters: The ports of all controllers by node id.
    """
    roles = ["broker"] * (listeners.keys() != {CONTROLLER}) + ["controller"] * (CONTROLLER in listeners)
    return {
        "node.id": node,
        "process.roles": ",".join(roles),
        "controller.quorum.voters": ",".join(f"{number}@{LOOPBACK}:{port}" for number, port in voters.items()),
        "controller.listener.names": CONTROLLER,
        "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items()),
        "listener.security.protocol.map": ",".join(
            f"{name}:{name if name == SASL_SSL else 'PLAINTEXT'}"
            for name in dict.fromkeys((CLIENTS, CONTROLLER, *listeners))
        ),
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "log.index.size.max.bytes": 1048576,
        "num.io.threads": 2,
        "num.network.threads": 2,
        **release.settings,
    }


def java_command(
    classes: ClassPath,
    folder: Path,
    main: str,
    *arguments: object,
    heap_mb: int,
    properties: Settings | None = None,
) -> list[str]:
    """
    Return the command that runs the main class of a server or of a tool. Write a log4j configuration for the program.

    Args:
        classes: The server's jars. Jars that are not in the cache are fetched.
        folder: The server's own folder, for the log4j configuration and temporary files.
        main: The class with the main method.
        arguments: The arguments of the main method, such as a configuration file.
        heap_mb: The largest heap, in MiB.
        properties: Further properties of Java.

    Raises:
        ServerError: Java is not installed, or the jars cannot be fetched.
    """
    logging = folder / "log4j.properties"
    logging.write_text(LOG4J, encoding="utf-8")
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    java = java_path()
    return [
        java,
        *archive_options(java, jar_folder(classes), main),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Djava.net.preferIPv4Stack=true",
        # Without these, a killed server leaves performance data, native code and crash reports in other folders.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        f"-XX:ErrorFile={folder}/crash.log",
        # ZooKeeper 3.9 logs through slf4j-simple.
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
        f"-Dlog4j.configuration=file:{logging}",
        # Kafka 4 logs through log4j 2, whose default configuration logs to standard output, but errors only.
        "-Dorg.apache.logging.log4j.level=INFO",
        *(f"-D{name}={value}" for name, value in (properties or {}).items()),
        "-cp",
        java_class_path(classes),
        main,
        *map(str, arguments),
    ]


def java_path() -> str:
    """Return the path of the command ``java``. Raise ServerError if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if java is None:
        raise ServerError(
            "Java is needed to run ZooKeeper and Kafka, and there is no 'java' here; install a runtime, version 17 or "
            "later (Debian: apt install default-jre-headless)"
        )
    return java
