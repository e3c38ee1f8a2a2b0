"""
Report how far a program has read: one line of JSON at the first delivery, and one at the end.

It needs only the standard library, because programs of other clients run in environments without kiel-groups.
"""

from __future__ import annotations

import json
import sys
import time

__all__ = ["Progress"]

#: A loop over single records looks at the clock after as many of them.
STEP = 500


class Progress:
    """
    Counts what was read, and says when to stop: after ``count`` records, or ``limit_s`` seconds after the first.

    The caller touches the values by adding up their lengths. At the end, the program waits until its standard input
    ends, so that the process that started it can read the clocks first.
    """

    def __init__(self, count: int, limit_s: float) -> None:
        self.done = False
        self._count = count
        self._limit_s = limit_s
        self._began_s = 0.0
        self._records = 0
        self._bytes = 0

    @property
    def left(self) -> int:
        """How many records are still wanted."""
        return self._count - self._records

    def add(self, records: int, size: int) -> int:
        """Add records with values of ``size`` bytes in all. Return how many to read before the next call, 0 to end."""
        if not records:
            return STEP
        self._bytes += size
        now_s = time.perf_counter()
        first, self._records = not self._records, self._records + records
        if first:
            self._began_s = now_s
            self._print()
        if self._records >= self._count or now_s > self._began_s + self._limit_s:
            self.done = True
            self._print()
            sys.stdin.read()
            return 0
        return min(STEP, self.left)

    def _print(self) -> None:
        print(json.dumps({"records": self._records, "bytes": self._bytes}), flush=True)  # noqa: T201
