"""
The metrics of a group's member by the names that kafka-python and the Java client give them: one table.

Each is read from the registry of a consumer (``metrics.py``). What the registry observes is the same whether ZooKeeper
or brokers coordinate the group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kiel_groups.metrics import Metrics

__all__ = ["KAFKA_GROUP", "KAFKA_METRICS", "KafkaMetric", "kafka_metrics"]

#: The name under which the clients of Kafka group these metrics.
KAFKA_GROUP = "consumer-coordinator-metrics"


class KafkaMetric(NamedTuple):
    """
    A metric: its name, what it means, and how it is read.

    ``read`` gets the registry, and how many partitions the consumer has. It returns None for a time of which nothing
    was observed.
    """

    name: str
    meaning: str
    read: Callable[[Metrics, int], float | None]


#: Rates, means and maxima are of the last 30 to 60 seconds, times in milliseconds, as with the clients of Kafka.
KAFKA_METRICS = (
    KafkaMetric(
        "heartbeat-response-time-max",
        "the longest time from a heartbeat to its answer",
        lambda registry, _: _ms(registry.recent("heartbeat").max_s),
    ),
    KafkaMetric(
        "heartbeat-rate", "answered heartbeats a second", lambda registry, _: registry.recent("heartbeat").rate
    ),
    KafkaMetric(
        "last-heartbeat-seconds-ago",
        "seconds since the newest answered heartbeat was sent",
        lambda registry, _: registry.recent("heartbeat").sent_s_ago,
    ),
    KafkaMetric(
        "join-time-avg",
        "the mean time of a join: from its decision to the arrival of the member's assignment",
        lambda registry, _: _ms(registry.recent("join").mean_s),
    ),
    KafkaMetric("join-time-max", "the longest join", lambda registry, _: _ms(registry.recent("join").max_s)),
    KafkaMetric("join-rate", "joins a second", lambda registry, _: registry.recent("join").rate),
    KafkaMetric(
        "sync-time-avg",
        "the mean time from the arrival of an assignment until the records of all its partitions can be delivered",
        lambda registry, _: _ms(registry.recent("sync").mean_s),
    ),
    KafkaMetric("sync-time-max", "the longest such time", lambda registry, _: _ms(registry.recent("sync").max_s)),
    KafkaMetric(
        "sync-rate", "assignments taken over completely, a second", lambda registry, _: registry.recent("sync").rate
    ),
    KafkaMetric(
        "commit-latency-avg",
        "the mean time of a commit, from its request to the answer",
        lambda registry, _: _ms(registry.recent("commit").mean_s),
    ),
    KafkaMetric("commit-latency-max", "the longest commit", lambda registry, _: _ms(registry.recent("commit").max_s)),
    KafkaMetric("commit-rate", "commits a second", lambda registry, _: registry.recent("commit").rate),
    KafkaMetric("assigned-partitions", "the partitions that the consumer has", lambda _, assigned: float(assigned)),
)


def kafka_metrics(registry: Metrics, assigned: int) -> dict[str, dict[str, float | None]]:
    """
    Return the metrics in the form of kafka-python's ``metrics()``: by group, then by name.

    Args:
        registry: The registry of a consumer.
        assigned: How many partitions the consumer has.
    """
    return {KAFKA_GROUP: {metric.name: metric.read(registry, assigned) for metric in KAFKA_METRICS}}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
