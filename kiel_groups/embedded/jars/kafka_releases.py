"""
What the releases of Kafka differ in, as far as running them goes: one table, an entry a release.

All of them run unmodified on Java 17 and register in ``/brokers/ids``, 0.8.x with version 1 of that znode, 0.9 with
version 2 and its endpoints. A broker of 0.8 only warns about a setting that it does not know; none is given to it all
the same, so that a warning in its log means something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.embedded.jars.classpaths import ClassPath, kafka_class_path

__all__ = ["KafkaRelease", "DEFAULT_KAFKA", "KAFKAS", "kafka_release"]

Settings: TypeAlias = dict[str, object]

#: What runs where nobody asks for another one.
DEFAULT_KAFKA = "0.8.2.2"


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """
    One release of Kafka.

    ``settings`` are lines of ``server.properties`` that it takes beside those that all releases know.
    """

    version: str
    classes: ClassPath
    settings: Mapping[str, object]
    deletes_topics: bool = True


# Otherwise the broker registers a name of the machine that may not resolve; 0.8.0 registers its host.name.
_ADVERTISED: Settings = {"advertised.host.name": "127.0.0.1"}
_DELETION: Settings = {"delete.topic.enable": "true"}
# One partition instead of fifty: a broker has just as many log files to make when somebody asks for a coordinator.
_OFFSETS_TOPIC: Settings = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1}
# 0.9 cleans compacted topics unless told otherwise, and takes 128 MiB of heap for that at its start.
_SMALL_CLEANER: Settings = {"log.cleaner.dedupe.buffer.size": 2 << 20}
# A replica that waits for a leader which is stopping too is waited for at the stop: for 30 s unless told otherwise.
# From 0.8.2 on the stop cuts its connection.
_IMPATIENT_REPLICAS: Settings = {"replica.socket.timeout.ms": 2_000}

KAFKAS: Mapping[str, KafkaRelease] = {
    release.version: release
    for release in (
        KafkaRelease("0.8.0", kafka_class_path("0.8.0"), _IMPATIENT_REPLICAS, deletes_topics=False),
        KafkaRelease("0.8.1.1", kafka_class_path("0.8.1.1"), _ADVERTISED | _DELETION | _IMPATIENT_REPLICAS),
        KafkaRelease("0.8.2.2", kafka_class_path("0.8.2.2"), _ADVERTISED | _DELETION | _OFFSETS_TOPIC),
        KafkaRelease("0.9.0.1", kafka_class_path("0.9.0.1"), _ADVERTISED | _DELETION | _OFFSETS_TOPIC | _SMALL_CLEANER),
    )
}


def kafka_release(version: str) -> KafkaRelease:
    """Look a release up; raises ConfigError that lists the known ones."""
    kafka_class_path(version)
    return KAFKAS[version]
