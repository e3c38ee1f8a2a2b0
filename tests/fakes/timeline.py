"""Simulated time: scheduled calls run in one order, which a seed determines."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

__all__ = ["Timeline", "Stuck", "Livelock"]

#: A thousand members that start together take 4,300 steps in one instant. This many steps take one or two seconds.
MOST_STEPS = 100_000
#: How many steps of a livelock are recorded, and how many different steps the error names.
RECORDED_STEPS, NAMED_STEPS = 1_000, 5


class Stuck(AssertionError):  # noqa: N818 -- describes a run, not a call
    """Raised if the awaited condition was not met in time."""


class Livelock(AssertionError):  # noqa: N818 -- describes a run, not a call
    """Raised if simulated time does not advance, because each step schedules another one at the same instant."""


class Timeline:
    """
    A clock that jumps from one scheduled call to the next.

    Calls of the same instant run in the order in which they were scheduled. All randomness of a run comes from
    ``random``, so the seed determines the run.

    Args:
        seed: The seed of ``random``.
        now_s: The time at which the clock starts, in seconds.
        most_steps: The largest number of steps in one instant: scheduled calls, and the callbacks and timers of event
            loops. More steps are a livelock, and raise ``Livelock``.
    """

    def __init__(self, seed: int = 0, now_s: float = 1_000.0, most_steps: int = MOST_STEPS) -> None:
        self.seed = seed
        self.now_s = now_s
        self.most_steps = most_steps
        self.random = Random(seed)
        #: The number of steps in the current instant.
        self.steps_in_instant = 0
        self._recorded: Counter[str] = Counter()
        self._livelock: Livelock | None = None
        #: The number of scheduled calls made so far.
        self.steps = 0
        #: Whether a scheduled call is running.
        self.stepping = False
        #: The process whose code runs now, or None.
        self.running: object = None
        #: Errors of tasks and callbacks that no code waits for.
        self.failures: list[BaseException] = []
        #: A heap of calls, by time and order of scheduling.
        self._scheduled: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def at(self, when_s: float, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call at a time. A time that has passed means now."""
        if when_s < self.now_s:
            when_s = self.now_s
        heappush(self._scheduled, (when_s, next(self._order), function, arguments))

    def after(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call after a delay."""
        heappush(self._scheduled, (self.now_s + delay_s, next(self._order), function, arguments))

    def step(self, until_s: float = math.inf) -> bool:
        """Make the next scheduled call. Return False if no call is due by ``until_s``."""
        scheduled = self._scheduled
        if not scheduled or scheduled[0][0] > until_s:
            return False
        when_s, _, function, arguments = heappop(scheduled)
        self.steps += 1
        if when_s > self.now_s:
            self.now_s, self.steps_in_instant = when_s, 0
        self.steps_in_instant += 1
        if self.steps_in_instant > self.most_steps:
            self.record(f"{_name_of(function)} {' '.join(map(_name_of, arguments))}".rstrip())
        self.stepping = True
        try:
            function(*arguments)
        finally:
            self.stepping = False
        if self._livelock is not None:
            # ``record`` has already raised this error, but the code in between may have caught it.
            raise self._livelock
        return True

    def record(self, step: str) -> None:
        """
        Record a step of an instant that has too many steps.

        Raises:
            Livelock: Enough steps are recorded to name the ones that repeat.
        """
        self._recorded[step] += 1
        if self._livelock is not None:
            raise self._livelock
        if self._recorded.total() < RECORDED_STEPS:
            return
        frequent = "; ".join(f"{count} x {step}" for step, count in self._recorded.most_common(NAMED_STEPS))
        self._livelock = Livelock(
            f"seed {self.seed}, at {self.now_s:.6f} s of simulated time: more than {self.most_steps} steps in one"
            f" instant. The last {RECORDED_STEPS}: {frequent}"
        )
        raise self._livelock

    def run_for(self, duration_s: float) -> None:
        """Advance the time by ``duration_s`` seconds, and make the calls that are due."""
        until_s = self.now_s + duration_s
        while self.step(until_s):
            pass
        self.now_s = until_s

    def run_until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """
        Advance the time until a condition is true.

        Raises:
            Stuck: The condition does not become true within ``limit_s`` seconds of simulated time.
        """
        deadline_s = self.now_s + limit_s
        while not condition():
            if not self.step(deadline_s):
                raise Stuck(f"not within {limit_s:g} simulated seconds")


def _name_of(argument: Any) -> str:
    """Return the name of a function or a process. Unlike its ``repr``, the name is the same in every run."""
    name = getattr(argument, "__qualname__", None) or getattr(argument, "name", None)
    return name if isinstance(name, str) else type(argument).__name__
