"""
The Kafka releases, and the settings in which they differ: one table, with an entry for each release.

All releases run unmodified on Java 17. Up to 2.8 they register in ``/brokers/ids``: 0.8.x with version 1 of that znode,
0.9 with version 2, which has endpoints, and later ones with version 4. 3.9.1 runs in KRaft mode: a controller keeps the
metadata, and there is no ZooKeeper. Each release gets only settings that it knows, so that warnings in its log matter.
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
    get. ``replicated`` are the names of settings that say how many replicas the release's own topics have.
    ``deletes_topics`` says whether its brokers can delete topics, ``has_listeners`` whether their addresses are set by
    ``listeners`` and ``advertised.listeners``, and ``uses_zookeeper`` whether they need a ZooKeeper.
    """

    version: str
    classes: ClassPath
    settings: Mapping[str, object]
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
# The controller takes a broker for dead after the first time, by default 9 s: as long as a session on ZooKeeper here.
# A broker that was killed cannot register again before.
_QUICK_FENCING: Settings = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}

_FROM_0_9 = _DELETION | _GROUPS_TOPIC | _SMALL_CLEANER
_FROM_0_11 = _FROM_0_9 | _QUICK_FIRST_REBALANCE | _TRANSACTIONS_TOPIC


def _before_listeners(version: str, *settings: Settings, deletes_topics: bool = True) -> KafkaRelease:
    """Return a release of 0.8."""
    joined = {key: value for part in settings for key, value in part.items()}
    return KafkaRelease(version, kafka_class_path(version), joined, deletes_topics=deletes_topics, has_listeners=False)


KAFKAS: Mapping[str, KafkaRelease] = {
    release.version: release
    for release in (
        _before_listeners("0.8.0", _IMPATIENT_REPLICAS, deletes_topics=False),
        _before_listeners("0.8.1.1", _ADVERTISED, _DELETION, _IMPATIENT_REPLICAS),
        _before_listeners("0.8.2.2", _ADVERTISED, _DELETION, _OFFSETS_TOPIC),
        KafkaRelease("0.9.0.1", kafka_class_path("0.9.0.1"), _FROM_0_9, _REPLICATED_GROUPS),
        KafkaRelease("0.10.2.2", kafka_class_path("0.10.2.2"), _FROM_0_9, _REPLICATED_GROUPS),
        KafkaRelease("1.1.1", kafka_class_path("1.1.1"), _FROM_0_11, _REPLICATED_TRANSACTIONS),
        KafkaRelease("2.8.2", kafka_class_path("2.8.2"), _FROM_0_11, _REPLICATED_TRANSACTIONS),
        KafkaRelease(
            "3.9.1",
            kafka_class_path("3.9.1"),
            _FROM_0_11 | _QUICK_FENCING,
            _REPLICATED_TRANSACTIONS,
            uses_zookeeper=False,
        ),
    )
}


def kafka_release(version: str) -> KafkaRelease:
    """Return a release by its version. Raise ConfigError with the known versions if the version is unknown."""
    kafka_class_path(version)
    return KAFKAS[version]
