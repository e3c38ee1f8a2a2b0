"""A limit on log lines that would repeat: one for each key and interval, with a count of what it stands for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["LogLimit", "Repeats"]

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Repeats(Generic[E]):
    """What one log line stands for: ``count`` events, the first of them; ``is_first_line``: the first of its key."""

    first: E
    count: int = 1
    is_first_line: bool = False


@dataclass(slots=True)
class _Window(Generic[E]):
    """The time until which one key logs nothing, and what was held back since its last line."""

    until_s: float
    first: E | None = None
    count: int = 0


class LogLimit(Generic[K, E]):
    """
    Logs the first event of each key at once, and later ones together, at most once in ``interval_s`` seconds.

    It keeps no clock: every method is told the time, in seconds on a clock that only goes forward.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._windows: dict[K, _Window[E]] = {}

    def add(self, key: K, event: E, now_s: float) -> Repeats[E] | None:
        """Return what to log now; None where the event is held back, to be returned by ``due`` or ``rest``."""
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(now_s + self._interval_s)
            return Repeats(event, is_first_line=True)
        if not window.count:
            window.first = event
        window.count += 1
        return self._flushed(window, now_s) if now_s >= window.until_s else None

    def due(self, now_s: float) -> list[tuple[K, Repeats[E]]]:
        """Return what was held back by key where the interval has passed, to be logged now."""
        due = [(key, window) for key, window in self._windows.items() if window.count and now_s >= window.until_s]
        return [(key, self._flushed(window, now_s)) for key, window in due]

    def rest(self, now_s: float) -> list[tuple[K, Repeats[E]]]:
        """Return all that was held back by key, for the end: no count is lost."""
        return [(key, self._flushed(window, now_s)) for key, window in self._windows.items() if window.count]

    @property
    def due_s(self) -> float | None:
        """When ``due`` has something to return; None where nothing is held back."""
        return min((window.until_s for window in self._windows.values() if window.count), default=None)

    def _flushed(self, window: _Window[E], now_s: float) -> Repeats[E]:
        assert window.first is not None
        repeats = Repeats(window.first, window.count)
        window.first, window.count, window.until_s = None, 0, now_s + self._interval_s
        return repeats
