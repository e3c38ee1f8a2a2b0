"""
A clock for tests with short timeouts, and for tests that assert how little time a call takes.

The computer, or this process alone, may stand still for seconds in the middle of a call. The call is not slow then, so
this clock stands still with the process. A time that another process takes counts in full.
"""

from __future__ import annotations

import asyncio
import threading
from time import monotonic, sleep  # a test may replace those of the module

__all__ = ["RunningTimeLoop", "running_s"]

_TICK_S = 0.02
#: What counts of a stall: timers of the same time would fire in any order.
_SHARE = 0.001

#: The time of the last tick on the monotonic clock, and for how long the process stood still before it, in seconds.
_last: tuple[float, float] = (monotonic(), 0.0)


def running_s() -> float:
    """Return for how many seconds this process has run, since any moment before the tests."""
    now_s = monotonic()
    return now_s - _stalled_until(now_s)


class RunningTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers stand still with the process. Its time is not that of ``time.monotonic()``."""

    def time(self) -> float:
        return running_s()


def _stalled_until(now_s: float) -> float:
    # A caller may be the first thread that runs after a stall, before the thread of the ticks.
    tick_s, stalled_s = _last
    return stalled_s + (1 - _SHARE) * max(0.0, now_s - tick_s - 2 * _TICK_S)


def _tick() -> None:
    global _last
    while True:
        sleep(_TICK_S)
        now_s = monotonic()
        _last = (now_s, _stalled_until(now_s))


# At the import, so that no test takes this thread for one that it has left.
threading.Thread(target=_tick, name="running time of tests", daemon=True).start()
