"""
An in-process registry of metrics: counters, gauges and latencies, each with labels.

It has no exporter. The event loop and kazoo's threads both update it, so every change takes a lock (about 0.2 µs
uncontended); hot paths count locally and add once per batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Metrics", "Latency"]

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """The number, sum and maximum of the observations of one duration, in seconds."""

    count: int = 0
    total_s: float = 0.0
    max_s: float = 0.0


class Metrics:
    """A registry that the parts of one client share; names are ``snake_case`` and include the unit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._latencies: dict[tuple[str, Labels], Latency] = {}

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
            seen = self._latencies.get(key, Latency())
            self._latencies[key] = Latency(seen.count + 1, seen.total_s + seconds, max(seen.max_s, seconds))

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
            return self._latencies.get((name, tuple(sorted(labels.items()))), Latency())

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Return all metrics as ``(name, labels, value)``; a latency gives two, ``_count`` and ``_seconds_sum``."""
        with self._lock:
            rows = [(name, labels, float(value)) for (name, labels), value in self._counters.items()]
            rows += [(name, labels, value) for (name, labels), value in self._gauges.items()]
            for (name, labels), latency in self._latencies.items():
                rows.append((f"{name}_count", labels, float(latency.count)))
                rows.append((f"{name}_seconds_sum", labels, latency.total_s))
        return iter(sorted(rows))
