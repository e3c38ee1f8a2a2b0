"""Compute the delays between the tries of an action, and between log lines about its failures."""

from __future__ import annotations

from collections.abc import Callable, Hashable

#: 2 ** 40 times the first delay exceeds every longest delay.
_MOST_DOUBLINGS = 40


def shortening(random: Callable[[], float], share: float = 0.3) -> Callable[[], float]:
    """
    Return a ``jitter`` for ``Backoff`` that shortens each delay by a random part, at most by ``share`` of the delay.

    Args:
        random: Returns numbers uniform in [0, 1), such as ``random.Random(seed).random``.
        share: A fraction, from 0 to 1.
    """
    return lambda: 1 - share * random()


def _unchanged() -> float:
    return 1.0


class Backoff:
    """
    Computes exponential backoff: the delay doubles with every failure in a row, up to the longest delay.

    A caller that retries one action in a loop calls ``next_s`` after each failure, and ``reset`` after a success. A
    caller that counts failures itself, for example for each partition, calls ``delay_s``. ``delay_s`` changes nothing,
    so one object may serve many counts.

    Args:
        first_s: The delay after the first failure, in seconds.
        longest_s: The longest delay, in seconds. If ``longest_s`` is shorter than ``first_s``, every delay has the
            length ``longest_s``.
        jitter: Called once for each delay that is not 0; returns the factor by which that delay is multiplied, so that
            clients that failed together do not retry together. A factor above 1 exceeds ``longest_s``. By default,
            delays are not changed.
    """

    __slots__ = ("_failures", "_first_s", "_jitter", "_longest_s")

    def __init__(self, first_s: float, longest_s: float, jitter: Callable[[], float] = _unchanged) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._failures = 0

    def next_s(self) -> float:
        """Count a failure, and return the seconds to wait before the next try."""
        self._failures += 1
        return self.delay_s(self._failures)

    def reset(self) -> None:
        """Forget the failures that ``next_s`` has counted: the next delay is ``first_s`` again."""
        self._failures = 0

    def delay_s(self, failures: int) -> float:
        """
        Return the seconds to wait after this number of failures in a row. Return 0 for no failure. Change no count.
        """
        if failures <= 0:
            return 0.0
        return min(self._first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self._longest_s) * self._jitter()


#: The pause before a log repeats the cause of continued failures, in seconds; it doubles each time.
REPEAT_S, LONGEST_REPEAT_S = 60.0, 600.0


class RepeatedFailures:
    """
    Counts the failures of an action since its last success, and decides which of them are logged.

    The first failure with a cause is logged, and then one at growing intervals, as long as the cause stays the same.
    """

    __slots__ = ("_cause", "_count", "_first_s", "_logged_s", "_repeat_s")

    def __init__(self) -> None:
        self._cause: Hashable = None
        self._count = 0
        self._first_s = self._logged_s = self._repeat_s = 0.0

    def note(self, cause: Hashable, now_s: float) -> str | None:
        """
        Count a failure. Return None if it is not to be logged.

        Otherwise, return how often the action has failed for this cause, such as ``, 61 times in 60 s``, or "" for the
        first failure. ``now_s`` is the time in seconds on a monotonic clock.
        """
        if not self._count or cause != self._cause:
            self._cause, self._count, self._first_s, self._logged_s = cause, 1, now_s, now_s
            self._repeat_s = REPEAT_S
            return ""
        self._count += 1
        if now_s - self._logged_s < self._repeat_s:
            return None
        self._logged_s, self._repeat_s = now_s, min(2 * self._repeat_s, LONGEST_REPEAT_S)
        return f", {self._count:,} times in {now_s - self._first_s:.0f} s"

    def forget(self) -> bool:
        """Forget the failures, because the action has succeeded. Return whether there were any."""
        had_failed, self._count = self._count > 0, 0
        return had_failed
