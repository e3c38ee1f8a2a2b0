"""Limit repeated log lines to one for each key and interval. Each line has the number of events it stands for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["LogLimit", "Repeats"]

K = TypeVar("K", bound=Hashable)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Repeats(Generic[E]):
    """The events of one log line: the first event, and their number. ``is_first_line``: the key's first line."""

    first: E
    count: int = 1
    is_first_line: bool = False


@dataclass(slots=True)
class _Window(Generic[E]):
    """The time until which events of one key are suppressed, and the events suppressed since its last line."""

    until_s: float
    first: E | None = None
    count: int = 0


class LogLimit(Generic[K, E]):
    """
    Decides when to log: each key's first event at once, later events together, at most once in ``interval_s`` seconds.

    This object has no clock: the caller passes the time to each method, in seconds on a monotonic clock.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._windows: dict[K, _Window[E]] = {}

    def add(self, key: K, event: E, now_s: float) -> Repeats[E] | None:
        """Return the events to log now, or None if the event is suppressed until ``due`` or ``rest`` returns it."""
        window = self._windows.get(key)
        if window is None:
            self._windows[key] = _Window(now_s + self._interval_s)
            return Repeats(event, is_first_line=True)
        if not window.count:
            window.first = event
        window.count += 1
        return self._flushed(window, now_s) if now_s >= window.until_s else None

    def due(self, now_s: float) -> list[tuple[K, Repeats[E]]]:
        """Return the suppressed events of keys whose interval has passed, to be logged now."""
        due = [(key, window) for key, window in self._windows.items() if window.count and now_s >= window.until_s]
        return [(key, self._flushed(window, now_s)) for key, window in due]

    def rest(self, now_s: float) -> list[tuple[K, Repeats[E]]]:
        """Return all suppressed events by key, to be logged at the end, so that no count is lost."""
        return [(key, self._flushed(window, now_s)) for key, window in self._windows.items() if window.count]

    @property
    def due_s(self) -> float | None:
        """The time at which ``due`` has events to return, or None if no event is suppressed."""
        return min((window.until_s for window in self._windows.values() if window.count), default=None)

    def _flushed(self, window: _Window[E], now_s: float) -> Repeats[E]:
        assert window.first is not None
        repeats = Repeats(window.first, window.count)
        window.first, window.count, window.until_s = None, 0, now_s + self._interval_s
        return repeats
