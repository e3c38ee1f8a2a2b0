"""Metrics of clients and members: counters, gauges and latencies, and the names of Kafka's clients for some metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

# An in-process registry of metrics: counters, gauges and latencies, each with labels.
#
# ``kiel_groups.rest.metrics_text`` exports it. The event loop and kazoo's threads both update it, so every change takes
# a lock (0.6 µs with one label: ``benchmarks.counters``); hot paths count locally and add once per batch.


Labels: TypeAlias = tuple[tuple[str, str], ...]

#: The length of a window of recent observations, in seconds: the present window and the one before it count, as with
#: the clients of Kafka.
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Latency:
    """The number, sum and maximum of the observations of one duration, in seconds."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    def plus(self, seconds: float) -> Latency:
        """Return these observations together with another observation."""
        return Latency(self.count + 1, self.total_s + seconds, max(self.max_s, seconds))


class Recent(NamedTuple):
    """
    The observations of one duration in the last 30 to 60 seconds.

    ``span_s`` is the exact length of the time, at least 30 seconds. ``sent_s_ago`` is how long ago the newest of all
    observations began; None if nothing was observed yet.
    """

    latency: Latency
    span_s: float
    sent_s_ago: float | None

    @property
    def rate(self) -> float:
        """The number of observations a second."""
        return self.latency.count / self.span_s

    @property
    def mean_s(self) -> float | None:
        """The mean duration in seconds; None without an observation."""
        return self.latency.total_s / self.latency.count if self.latency.count else None

    @property
    def max_s(self) -> float | None:
        """The longest duration in seconds; None without an observation."""
        return self.latency.max_s if self.latency.count else None


@dataclass(slots=True)
class _Observed:
    """The observations of one duration: the sum of all observations, and the two newest windows with their starts."""

    all: Latency = Latency()
    windows: list[tuple[float, Latency]] = field(default_factory=list)
    began_s: float = 0.0

    def add(self, seconds: float, now_s: float) -> None:
        self.all, self.began_s = self.all.plus(seconds), now_s - seconds
        if self.windows and now_s - self.windows[-1][0] < WINDOW_S:
            self.windows[-1] = (self.windows[-1][0], self.windows[-1][1].plus(seconds))
        else:
            self.windows = [*self.windows[-1:], (now_s, Latency().plus(seconds))]

    def recent(self, now_s: float) -> Recent:
        windows = [(start_s, seen) for start_s, seen in self.windows if now_s - start_s < 2 * WINDOW_S]
        parts = [seen for _, seen in windows]
        latency = Latency(
            sum(part.count for part in parts),
            sum(part.total_s for part in parts),
            max((part.max_s for part in parts), default=0.0),
        )
        span_s = max(WINDOW_S, now_s - windows[0][0]) if windows else WINDOW_S
        return Recent(latency, span_s, now_s - self.began_s)


class Metrics:
    """
    A registry of metrics that the parts of one client share. Any thread may use the registry.

    Names of metrics are ``snake_case`` and include the unit. ``clock`` returns a time in seconds, which decides which
    observations are recent.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._latencies: dict[tuple[str, Labels], _Observed] = {}
        self._parts: dict[Metrics, Labels] = {}

    def part(self, **labels: str) -> Metrics:
        """Return another registry. This registry shows its metrics, with further labels, until ``remove`` is called."""
        part = Metrics(self._clock)
        with self._lock:
            self._parts[part] = tuple(labels.items())
        return part

    def remove(self, part: Metrics) -> None:
        """Stop showing the metrics of a part."""
        with self._lock:
            self._parts.pop(part, None)

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add ``amount`` (0 or more) to a counter."""
        key = (name, tuple(sorted(labels.items())) if labels else ())
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set the value of a gauge, in place of its earlier value."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._gauges[key] = value

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """Record one duration in seconds."""
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._latencies.setdefault(key, _Observed()).add(seconds, self._clock())

    def counter(self, name: str, **labels: str) -> int:
        """Return the value of a counter; 0 if it was never incremented."""
        with self._lock:
            return self._counters.get((name, tuple(sorted(labels.items()))), 0)

    def total(self, name: str) -> int:
        """Return the sum of a counter over all its labels."""
        with self._lock:
            return sum(value for (counter, _), value in self._counters.items() if counter == name)

    def latency(self, name: str, **labels: str) -> Latency:
        """Return the observations of a duration so far."""
        with self._lock:
            return self._latencies.get((name, tuple(sorted(labels.items()))), _Observed()).all

    def recent(self, name: str, **labels: str) -> Recent:
        """Return the observations of a duration in the last 30 to 60 seconds."""
        with self._lock:
            observed = self._latencies.get((name, tuple(sorted(labels.items()))))
            if observed is None:
                return Recent(Latency(), WINDOW_S, None)
            return observed.recent(self._clock())

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """
        Return all metrics as ``(name, labels, value)``, sorted.

        A latency becomes two entries, with the suffixes ``_count`` and ``_seconds_sum``.
        """
        rows: list[tuple[str, Labels, float]] = []
        for name, labels, value in self.read():
            if isinstance(value, Latency):
                rows.append((f"{name}_count", labels, float(value.count)))
                rows.append((f"{name}_seconds_sum", labels, value.total_s))
            else:
                rows.append((name, labels, float(value)))
        return iter(sorted(rows))

    def read(self) -> list[tuple[str, Labels, int | float | Latency]]:
        """Return all metrics and those of parts as ``(name, labels, value)``. An int is a counter, a float a gauge."""
        with self._lock:
            rows: list[tuple[str, Labels, int | float | Latency]] = [
                (*key, value) for key, value in self._counters.items()
            ]
            rows += [(*key, float(value)) for key, value in self._gauges.items()]
            rows += [(*key, observed.all) for key, observed in self._latencies.items()]
            parts = list(self._parts.items())
        for part, labels in parts:
            rows += [(name, tuple(sorted((*own, *labels))), value) for name, own, value in part.read()]
        return rows


# The metrics of a group's member by the names that kafka-python and the Java client give them: one table.
#
# Each is read from the registry of a consumer. What the registry observes is the same whether ZooKeeper or brokers
# coordinate the group.


#: The name under which the clients of Kafka group these metrics.
KAFKA_GROUP = "consumer-coordinator-metrics"


class KafkaMetric(NamedTuple):
    """
    A metric with its name, its meaning, and the function that reads the metric.

    ``read`` gets the registry, and the number of the consumer's partitions. For a duration without observations,
    ``read`` returns None.
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
        assigned: The number of the consumer's partitions.
    """
    return {KAFKA_GROUP: {metric.name: metric.read(registry, assigned) for metric in KAFKA_METRICS}}


#: The metrics that members without partitions have, too.
MEMBER_METRICS = tuple(
    metric for metric in KAFKA_METRICS if metric.name.split("-")[0] in {"heartbeat", "last", "join", "sync"}
)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
