"""Simulated time: what happens next, in one order, from one seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

__all__ = ["Timeline", "Stuck"]


class Stuck(AssertionError):  # noqa: N818 -- said of a run, not of a call
    """What was waited for did not come about within its time."""


class Timeline:
    """
    A clock that jumps from one appointment to the next.

    Appointments of one moment are kept in the order in which they were made. All chance in a run comes from ``random``,
    so that a seed tells the whole story.

    Args:
        seed: What chance starts from.
        now_s: What the clock shows at first, in seconds.
    """

    def __init__(self, seed: int = 0, now_s: float = 1_000.0) -> None:
        self.now_s = now_s
        self.random = Random(seed)
        #: Appointments kept so far.
        self.steps = 0
        #: Whether one is being kept at this moment.
        self.stepping = False
        #: Whose appointment it is, where that matters to somebody.
        self.running: object = None
        #: Errors of what nobody waits for.
        self.failures: list[BaseException] = []
        self._appointments: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = itertools.count()

    def at(self, when_s: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function at a moment; one that has passed means now."""
        if when_s < self.now_s:
            when_s = self.now_s
        heappush(self._appointments, (when_s, next(self._made), function, arguments))

    def after(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function when so many seconds have passed."""
        heappush(self._appointments, (self.now_s + delay_s, next(self._made), function, arguments))

    def step(self, until_s: float = math.inf) -> bool:
        """Keep the next appointment; False where there is none up to that moment."""
        appointments = self._appointments
        if not appointments or appointments[0][0] > until_s:
            return False
        self.now_s, _, function, arguments = heappop(appointments)
        self.steps += 1
        self.stepping = True
        try:
            function(*arguments)
        finally:
            self.stepping = False
        return True

    def run_for(self, duration_s: float) -> None:
        """Let so many seconds pass."""
        until_s = self.now_s + duration_s
        while self.step(until_s):
            pass
        self.now_s = until_s

    def run_until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        """
        Let time pass until a condition holds.

        Raises:
            Stuck: It does not within ``limit_s`` seconds, or nothing is left that could happen.
        """
        deadline_s = self.now_s + limit_s
        while not condition():
            if not self.step(deadline_s):
                raise Stuck(f"not within {limit_s:g} simulated seconds")
