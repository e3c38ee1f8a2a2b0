"""Measure the CPU time of processes, and from it the average number of cores that they kept busy."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import suppress

__all__ = ["CpuTime", "cpu_time_s"]

#: Linux's number for the processor time of all threads of another process: (~pid << 3) | CPUCLOCK_SCHED.
_CPUCLOCK_SCHED = 2


def cpu_time_s(pid: int) -> float:
    """Return the processor time that all threads of a process have used. Raise OSError if it has ended."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


class CpuTime:
    """
    The total processor time of some processes, sampled over time.

    A sample costs one system call for each process, so it does not disturb the measured processes.
    """

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._moments_ms: list[float] = []
        self._totals_s: list[float] = []

    def add(self, pid: int) -> None:
        """Include this process from now on."""
        self._used_s[pid] = 0.0

    def sample(self) -> None:
        """Take a sample. A process that has ended keeps the time of its last sample."""
        for pid in self._used_s:
            with suppress(OSError):
                self._used_s[pid] = cpu_time_s(pid)
        self._moments_ms.append(time.time_ns() / 1e6)
        self._totals_s.append(sum(self._used_s.values()))

    def cores(self, began_ms: float, ended_ms: float) -> float:
        """Return the average number of busy cores between two times, given in milliseconds since 1970."""
        if ended_ms <= began_ms:
            return 0.0
        return 1000 * self.used_s(began_ms, ended_ms) / (ended_ms - began_ms)

    def used_s(self, began_ms: float, ended_ms: float) -> float:
        """Return the processor time that was used between two times, given in milliseconds since 1970."""
        return self._total_s(ended_ms) - self._total_s(began_ms)

    def _total_s(self, moment_ms: float) -> float:
        """Return the total CPU time at a moment, interpolated between two samples."""
        after = min(max(1, bisect_left(self._moments_ms, moment_ms)), len(self._moments_ms) - 1)
        (first_ms, last_ms), (first_s, last_s) = (
            values[after - 1 : after + 1] for values in (self._moments_ms, self._totals_s)
        )
        share = min(max(0.0, (moment_ms - first_ms) / (last_ms - first_ms)), 1.0)
        return first_s + share * (last_s - first_s)
