"""The registry's recent observations, and the metrics that are named as kafka-python's."""

from __future__ import annotations

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.metrics import KAFKA_GROUP, KAFKA_METRICS, Latency, Metrics, kafka_metrics

pytestmark = pytest.mark.unit

#: The metrics of kafka-python's GroupCoordinatorMetrics and ConsumerCoordinatorMetrics.
THEIRS = {
    "heartbeat-response-time-max",
    "heartbeat-rate",
    "last-heartbeat-seconds-ago",
    "join-time-avg",
    "join-time-max",
    "join-rate",
    "sync-time-avg",
    "sync-time-max",
    "sync-rate",
    "commit-latency-avg",
    "commit-latency-max",
    "commit-rate",
    "assigned-partitions",
}


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_names_are_kafka_pythons() -> None:
    """The table has each of them once."""
    assert sorted(metric.name for metric in KAFKA_METRICS) == sorted(THEIRS)


def test_recent_observations_are_those_of_two_windows() -> None:
    """The present window and the one before count; a rate is never divided by less than a window."""
    clock = Clock()
    registry = Metrics(clock)
    registry.observe("join", 0.5)
    recent = registry.recent("join")
    assert (recent.latency, recent.rate, recent.mean_s, recent.max_s) == (Latency(1, 0.5, 0.5), 1 / 30, 0.5, 0.5)
    clock.now_s += 40
    registry.observe("join", 0.25)
    assert registry.recent("join").latency == Latency(2, 0.75, 0.5)
    assert registry.recent("join").rate == 2 / 40
    clock.now_s += 25
    assert registry.recent("join").latency == Latency(1, 0.25, 0.25), "the first window is over"
    clock.now_s += 6
    registry.observe("join", 0.375)
    assert registry.recent("join").latency == Latency(2, 0.625, 0.375), "a third window replaces the first"
    assert registry.latency("join") == Latency(3, 1.125, 0.5), "all observations"
    assert {"join_count", "join_seconds_sum"} <= {name for name, _, _ in registry.samples()}


def test_nothing_recent_is_none() -> None:
    """Without an observation in a minute there is no mean and no maximum, and the rate is 0."""
    clock = Clock()
    registry = Metrics(clock)
    assert registry.recent("commit").sent_s_ago is None
    registry.observe("commit", 2.0)
    clock.now_s += 60
    recent = registry.recent("commit")
    assert (recent.rate, recent.mean_s, recent.max_s, recent.sent_s_ago) == (0.0, None, None, 62.0)


def test_each_metric_is_read_from_the_registry() -> None:
    """Times are in milliseconds; ``join-time-max`` is a maximum."""
    clock = Clock()
    registry = Metrics(clock)
    for name, durations in {
        "heartbeat": (0.01, 0.02),
        "join": (1, 3),
        "sync": (0.2,),
        "commit": (0.004, 0.008),
    }.items():
        for seconds in durations:
            registry.observe(name, seconds)
    clock.now_s += 1
    found = kafka_metrics(registry, 4)[KAFKA_GROUP]
    assert {name: pytest.approx(value) for name, value in found.items()} == {
        "heartbeat-response-time-max": 20,
        "heartbeat-rate": 2 / 30,
        "last-heartbeat-seconds-ago": 1.02,
        "join-time-avg": 2_000,
        "join-time-max": 3_000,
        "join-rate": 2 / 30,
        "sync-time-avg": 200,
        "sync-time-max": 200,
        "sync-rate": 1 / 30,
        "commit-latency-avg": 6,
        "commit-latency-max": 8,
        "commit-rate": 2 / 30,
        "assigned-partitions": 4,
    }


def test_a_consumer_that_has_not_connected_has_them() -> None:
    """Rates are 0, and times are not known."""
    consumer = GroupedConsumer("127.0.0.1", "g", "127.0.0.1")
    found = consumer.kafka_metrics()[KAFKA_GROUP]
    rates = {name: value for name, value in found.items() if name.endswith("-rate") or name == "assigned-partitions"}
    assert set(rates.values()) == {0.0}
    assert {found[name] for name in found.keys() - rates.keys()} == {None}
