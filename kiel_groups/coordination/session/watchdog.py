"""
The watchdog of one session: whoever is alive and does not get on must not keep partitions, or the lead, for ever.

Heartbeats have a thread of their own, so a blocked event loop, or an application that hangs, costs no lease: liveness
is not progress. This thread looks at progress: does the loop turn, and is the application still busy with the same? At
half of its time somebody is told to hurry; at the end of it the gate is shut and the session closed, all without the
loop, which may never run again. Until then nothing is done on this thread that may block: neither the application's
hook, nor a line for the log, whose lock the blocked loop may hold.

Time counts only while this thread runs, too: a process that was stopped, or a machine that was suspended, has lost its
lease, but it was not slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.zookeeper.runtime import boot_time_s, ticker
from kiel_groups.listeners import Stall
from kiel_groups.metrics import Metrics

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

#: The share of its time after which what does not get on is told to hurry, and how often it is looked at.
HURRY_SHARE = 0.5
LOOK_SHARE = 0.1


@dataclass(slots=True)
class _Watched:
    """A piece of work, how long it has taken in seconds, and whether somebody was told to hurry."""

    work: Work
    elapsed_s: float = 0.0
    told: bool = False


class Watchdog:
    """
    Watches one event loop, and what the application on it is busy with.

    Args:
        config: ``max_poll_interval_ms`` for the application, ``loop_stall_ms`` for the event loop; 0: for ever.
        in_progress: What the application is busy with at the moment; called on this thread.
        hurry: Told of what does not get on, at half of its time; called on a thread of its own, which it may block.
        on_stalled: Told, in words, that the time is up; called on this thread, once.
        metrics: Counts ``stalls`` and ``watchdog_exits``, by kind.
    """

    def __init__(
        self,
        config: GroupConfig,
        in_progress: Callable[[], Collection[Work]],
        hurry: Callable[[Stall], None],
        on_stalled: Callable[[str], None],
        metrics: Metrics,
    ) -> None:
        self._work_limit_s = config.max_poll_interval_ms / 1000
        self._loop_limit_s = config.loop_stall_ms / 1000
        limits = [limit_s for limit_s in (self._work_limit_s, self._loop_limit_s) if limit_s]
        self._pause_s = LOOK_SHARE * min(limits, default=0.0)
        self._in_progress = in_progress
        self._hurry = hurry
        self._on_stalled = on_stalled
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._turn: _Watched | None = None
        self._watched: list[_Watched] = []
        self._last_s = 0.0
        self._ticker = ticker(self._tick, "watchdog")

    def start(self) -> None:
        """Begin to watch; without any limit there is nothing to be watched."""
        if self._pause_s:
            self._last_s = boot_time_s()
            self._ticker.start()

    def stop(self) -> None:
        """End the thread soon; never blocks."""
        self._stopped = True
        self._ticker.wake()

    def _tick(self) -> float | None:
        if self._stopped:
            return None
        now_s = boot_time_s()
        # What was slept beyond the pause, the whole process has slept.
        passed_s, self._last_s = min(now_s - self._last_s, self._pause_s), now_s
        try:
            stalled = self._look_at_loop(passed_s) or self._look_at_work(passed_s)
        except BaseException:
            # An application's own object may be behind it, SystemExit included; nobody would miss a watchdog that is
            # gone.
            log.exception("the watchdog could not look; it looks again")
            return self._pause_s
        if stalled is None:
            return self._pause_s
        self._metrics.count("watchdog_exits", kind=stalled.kind)
        self._on_stalled(f"watchdog: {stalled}")
        log.error("%s: this member's session is closed", stalled)
        return None

    def _look_at_loop(self, passed_s: float) -> Stall | None:
        """The loop is asked to turn, and has until it does."""
        if not self._loop_limit_s:
            return None
        if self._turn is None:
            self._turn = _Watched(Work(self, "loop", frozenset()))
            self._loop.call_soon_threadsafe(self._turned)
            return None
        return self._judge(self._turn, passed_s, self._loop_limit_s)

    def _turned(self) -> None:
        self._turn = None

    def _look_at_work(self, passed_s: float) -> Stall | None:
        if not self._work_limit_s:
            return None
        before = {id(watched.work.token): watched for watched in self._watched}
        # Tokens are kept with what is watched, so that none is taken for another one of the same id.
        fresh = [before.get(id(work.token)) or _Watched(work, -passed_s) for work in self._in_progress()]
        self._watched = fresh
        judged = [self._judge(watched, passed_s, self._work_limit_s) for watched in fresh]
        return next((stall for stall in judged if stall is not None), None)

    def _judge(self, watched: _Watched, passed_s: float, limit_s: float) -> Stall | None:
        """Count the time of one piece of work; a stall whose time is up is returned."""
        watched.elapsed_s += passed_s
        stall = Stall(watched.work.kind, watched.work.partitions, watched.elapsed_s, limit_s)
        if stall.elapsed_s >= limit_s:
            return stall
        if stall.elapsed_s >= limit_s * HURRY_SHARE and not watched.told:
            watched.told = True
            self._metrics.count("stalls", kind=stall.kind)
            ticker(partial(self._tell, stall), "hurry").start()
        return None

    def _tell(self, stall: Stall) -> None:
        """On a thread of its own."""
        log.warning("%s", stall)
        self._hurry(stall)
