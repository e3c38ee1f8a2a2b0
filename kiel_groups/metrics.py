"""
An in-process registry of metrics: counters, gauges and latencies, each with labels.

It has no exporter. The event loop and kazoo's threads both update it, so every change takes a lock (about 0.2 µs
uncontended); hot paths count locally and add once per batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

__all__ = ["Latency", "Metrics", "Recent", "WINDOW_S"]

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
        """Return these observations and another one."""
        return Latency(self.count + 1, self.total_s + seconds, max(self.max_s, seconds))


class Recent(NamedTuple):
    """
    The observations of one duration in the last 30 to 60 seconds.

    ``span_s`` is the time that they are from, at least 30 seconds. ``sent_s_ago`` is how long ago the newest of all
    observations began; None if there is none yet.
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
    """The observations of one duration: all of them, and those of recent windows by the start of the window."""

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
    A registry that the parts of one client share; names are ``snake_case`` and include the unit.

    ``clock`` tells which observations are recent, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._latencies: dict[tuple[str, Labels], _Observed] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add ``amount`` (0 or more) to a counter."""
        key = (name, tuple(sorted(labels.items())) if labels else ())
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
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
        """Return all metrics as ``(name, labels, value)``; a latency gives two, ``_count`` and ``_seconds_sum``."""
        with self._lock:
            rows = [(name, labels, float(value)) for (name, labels), value in self._counters.items()]
            rows += [(name, labels, value) for (name, labels), value in self._gauges.items()]
            for (name, labels), observed in self._latencies.items():
                rows.append((f"{name}_count", labels, float(observed.all.count)))
                rows.append((f"{name}_seconds_sum", labels, observed.all.total_s))
        return iter(sorted(rows))
