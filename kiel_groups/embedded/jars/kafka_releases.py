"""
The Kafka releases, and the settings in which they differ: one table, with an entry for each release.

All releases run unmodified on Java 17 and register in ``/brokers/ids``: 0.8.x with version 1 of that znode, 0.9 with
version 2, which has endpoints. A broker of 0.8 only warns about an unknown setting. Each release gets only settings
that it knows, so that warnings in its log matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.embedded.jars.classpaths import ClassPath, kafka_class_path

__all__ = ["KafkaRelease", "DEFAULT_KAFKA", "KAFKAS", "kafka_release"]

Settings: TypeAlias = dict[str, object]

#: The release that runs by default.
DEFAULT_KAFKA = "0.8.2.2"


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """
    A release of Kafka, and how its brokers run.

    ``classes`` are its jars. ``settings`` are lines of ``server.properties`` in addition to the lines that all releases
    get. ``deletes_topics`` says whether its brokers can delete topics.
    """

    version: str
    classes: ClassPath
    settings: Mapping[str, object]
    deletes_topics: bool = True


# Without this, a broker registers the host's name, which may not resolve. 0.8.0 always registers its host.name.
_ADVERTISED: Settings = {"advertised.host.name": "127.0.0.1"}
_DELETION: Settings = {"delete.topic.enable": "true"}
# One partition instead of fifty: the broker creates the log files of all partitions at the first coordinator request.
_OFFSETS_TOPIC: Settings = {"offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1}
# 0.9 cleans compacted topics by default, and allocates 128 MiB of heap for the cleaner when it starts.
_SMALL_CLEANER: Settings = {"log.cleaner.dedupe.buffer.size": 2 << 20}
# A broker that stops waits for its replica fetchers. A fetcher whose leader stops too waits for an answer, by default
# for 30 s. From 0.8.2 on, the stopping broker closes the fetcher's connection.
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
    """Return a release by its version. Raise ConfigError with the known versions if the version is unknown."""
    kafka_class_path(version)
    return KAFKAS[version]
