"""How much processor time processes have used, and so how many cores they kept busy."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import suppress

__all__ = ["CpuTime"]

#: Linux's number for the processor time of all threads of another process: (~pid << 3) | CPUCLOCK_SCHED.
_CPUCLOCK_SCHED = 2


class CpuTime:
    """
    The processor time of some processes together, sampled as time goes on.

    One call of the system for each process and sample: looking does not disturb what is looked at.
    """

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._moments_ms: list[float] = []
        self._totals_s: list[float] = []

    def add(self, pid: int) -> None:
        """Count this process, too, from now on."""
        self._used_s[pid] = 0.0

    def sample(self) -> None:
        """Look at all of them; one that has ended keeps what it had at the last look."""
        for pid in self._used_s:
            with suppress(OSError):
                self._used_s[pid] = time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
        self._moments_ms.append(time.time_ns() / 1e6)
        self._totals_s.append(sum(self._used_s.values()))

    def cores(self, begun_ms: float, ended_ms: float) -> float:
        """How many cores were busy on average between two moments, in milliseconds since 1970."""
        if ended_ms <= begun_ms:
            return 0.0
        return 1000 * (self._total_s(ended_ms) - self._total_s(begun_ms)) / (ended_ms - begun_ms)

    def _total_s(self, moment_ms: float) -> float:
        """Between two samples, on the line that joins them."""
        after = min(max(1, bisect_left(self._moments_ms, moment_ms)), len(self._moments_ms) - 1)
        (first_ms, last_ms), (first_s, last_s) = (
            values[after - 1 : after + 1] for values in (self._moments_ms, self._totals_s)
        )
        share = min(max(0.0, (moment_ms - first_ms) / (last_ms - first_ms)), 1.0)
        return first_s + share * (last_s - first_s)
