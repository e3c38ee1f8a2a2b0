"""Warnings about a step that takes long: the log says what is waited for before the step ends or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

__all__ = ["SlowStep"]

#: When the first warning comes. Each later one comes when the step has taken twice as long, but after a minute at most.
FIRST_S, LONGEST_SILENCE_S = 5.0, 60.0


class SlowStep:
    """
    Calls ``warn`` while the block of a ``with`` statement runs: after 5, 10, 20, 40, 80, 140 seconds, and so on.

    Args:
        warn: Logs what is waited for; its argument is how long the block has run, in seconds.
    """

    def __init__(self, warn: Callable[[float], None]) -> None:
        self._warn = warn
        self._began_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self._warn_at(FIRST_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _warn_at(self, age_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._began_s + age_s, self._due, age_s)

    def _due(self, age_s: float) -> None:
        self._warn_at(age_s + min(age_s, LONGEST_SILENCE_S))
        self._warn(age_s)
