"""
Collect the times from produce to delivery, of values that start with the time at which they were produced.

It needs only the standard library, because programs of other clients run in environments without kiel-groups. The times
are of the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import json
import sys
import time

__all__ = ["TICK_S", "Latencies", "stamped"]

STAMP_DIGITS = 20
#: The pause of a producer between messages.
TICK_S = 0.001
WARM_UP_NS = 2_000_000_000


def stamped(size: int) -> bytes:
    """Return a value of so many bytes that starts with the present time."""
    return (b"%0*d" % (STAMP_DIGITS, time.monotonic_ns())).ljust(size, b".")


class Latencies:
    """Collects latencies for ``duration_s`` seconds, after two seconds of warm-up, and reports them."""

    def __init__(self, duration_s: float) -> None:
        self._duration_ns = round(duration_s * 1e9)
        self._starts_ns = 0
        self._found_ns: list[int] = []
        self._bytes = 0

    def add(self, value: bytes) -> bool:
        """Add the value of a message that has just been delivered. Return whether more are wanted."""
        now_ns = time.monotonic_ns()
        if not self._starts_ns:
            self._starts_ns = now_ns + WARM_UP_NS
        if now_ns < self._starts_ns:
            return True
        if not self._found_ns:
            self._report({})
        self._found_ns.append(now_ns - int(value[:STAMP_DIGITS]))
        self._bytes += len(value)
        if now_ns < self._starts_ns + self._duration_ns:
            return True
        found = sorted(self._found_ns)
        self._report({f"p{share}_ms": found[len(found) * share // 100] / 1e6 for share in (50, 99)})
        sys.stdin.read()
        return False

    def _report(self, figures: dict[str, float]) -> None:
        print(json.dumps({"records": len(self._found_ns), "bytes": self._bytes, **figures}), flush=True)  # noqa: T201
