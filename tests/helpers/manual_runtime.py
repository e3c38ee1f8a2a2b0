"""A runtime whose clock the test advances, and whose tickers run on the test's thread."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.zookeeper.runtime import Runtime

__all__ = ["ManualRuntime", "ManualTicker"]


class ManualTicker:
    """Replaces a thread that ticks. It ticks on the test's thread when the manual clock reaches ``due_s``."""

    def __init__(self, tick: Callable[[], float | None], name: str) -> None:
        self._tick = tick
        self.name = name
        #: The time of the next tick, or None before the start and after the end.
        self.due_s: float | None = None
        self.ended = False

    def start(self) -> None:
        self.due_s = float("-inf")

    def wake(self) -> None:
        if self.due_s is not None:
            self.due_s = float("-inf")

    def run(self, now_s: float) -> None:
        pause_s = self._tick()
        self.due_s, self.ended = (None, True) if pause_s is None else (now_s + pause_s, False)


class ManualRuntime(Runtime):
    """The runtime of the parts that a test creates."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.tickers: list[ManualTicker] = []

    def boot_time_s(self) -> float:
        return self.now_s

    def ticker(self, tick: Callable[[], float | None], name: str) -> ManualTicker:
        self.tickers.append(ManualTicker(tick, name))
        return self.tickers[-1]

    def pass_s(self, seconds: float) -> None:
        """Advance the clock by ``seconds``. Each ticker ticks when it is due."""
        end_s = self.now_s + seconds
        while (due := [t for t in self.tickers if t.due_s is not None and t.due_s <= end_s]) != []:
            first = min(due, key=lambda ticker: ticker.due_s or 0.0)
            assert first.due_s is not None
            self.now_s = max(self.now_s, first.due_s)
            first.run(self.now_s)
        self.now_s = end_s

    def sleep_s(self, seconds: float) -> None:
        """
        Advance the clock by ``seconds`` without ticks, as if SIGSTOP had stopped the process. The tickers are late.
        """
        self.now_s += seconds
