"""Simulated time: what happens next, in one order, from one seed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

__all__ = ["Timeline", "Stuck", "Livelock"]

#: A thousand members that start at once take 4,300 steps in one instant; this many take a second or two of real time.
MOST_STEPS = 100_000
#: How many steps of a livelock are recorded, and how many different ones of them the error names.
RECORDED_STEPS, NAMED_STEPS = 1_000, 5


class Stuck(AssertionError):  # noqa: N818 -- said of a run, not of a call
    """What was waited for did not come about within its time."""


class Livelock(AssertionError):  # noqa: N818 -- said of a run, not of a call
    """Simulated time stands still: each step asks for another one at the same instant."""


class Timeline:
    """
    A clock that jumps from one appointment to the next.

    Appointments of one moment are kept in the order in which they were made. All chance in a run comes from ``random``,
    so that a seed tells the whole story.

    Args:
        seed: What chance starts from.
        now_s: What the clock shows at first, in seconds.
        most_steps: How many steps may be taken in one instant: appointments, and the callbacks and timers of event
            loops. More of them are a livelock, and raise ``Livelock``.
    """

    def __init__(self, seed: int = 0, now_s: float = 1_000.0, most_steps: int = MOST_STEPS) -> None:
        self.seed = seed
        self.now_s = now_s
        self.most_steps = most_steps
        self.random = Random(seed)
        #: Steps taken in the present instant.
        self.steps_in_instant = 0
        self._recorded: Counter[str] = Counter()
        self._livelock: Livelock | None = None
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
        when_s, _, function, arguments = heappop(appointments)
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
            # It was raised in the middle of something that may have caught it.
            raise self._livelock
        return True

    def record(self, step: str) -> None:
        """
        Record one step of an instant that has had too many.

        Raises:
            Livelock: Enough of them are recorded to say which steps repeat.
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


def _name_of(argument: Any) -> str:
    """The name of a function or of a process, without anything that differs from run to run."""
    name = getattr(argument, "__qualname__", None) or getattr(argument, "name", None)
    return name if isinstance(name, str) else type(argument).__name__
