"""Compute the delay before the next try. The computation is pure: the caller passes in the random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Backoff"]

#: 2 ** 40 times the base delay exceeds every ``max_ms``.
_MOST_DOUBLINGS = 40


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Exponential backoff with jitter: ``base_ms``, doubled with every failure in a row up to ``max_ms``.

    A random part of the delay, at most the fraction ``jitter``, is subtracted, so that clients that failed together do
    not retry together.
    """

    base_ms: int
    max_ms: int
    jitter: float = 0.3

    def delay_s(self, failures: int, random: Callable[[], float]) -> float:
        """
        Return the seconds to wait after ``failures`` in a row: 0 without a failure, ``base_ms`` less jitter after one.

        Args:
            failures: How many tries in a row have failed.
            random: Returns numbers uniform in [0, 1), such as ``random.Random(seed).random``.
        """
        if failures <= 0:
            return 0.0
        full_ms = min(self.base_ms << min(failures - 1, _MOST_DOUBLINGS), self.max_ms)
        return full_ms * (1 - self.jitter * random()) / 1000
