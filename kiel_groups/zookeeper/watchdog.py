"""
Close the session of a process that makes no progress, so that other members take over its partitions or leadership.

Heartbeats have a thread of their own, so a member with a blocked event loop, or an application that hangs, keeps its
lease. The watchdog's thread checks for progress: does the loop still run callbacks, and is the application busy with
the same work as before? At half of the time limit the application is notified. At the limit the gate is shut and the
session closed. The watchdog's thread does both, because the loop may never run again. Before that, this thread does
nothing that may block: it neither calls the application's hook nor writes a log line, because the blocked loop may hold
the log's lock.

While the process is stopped or the computer is suspended, the lease may end, but the application does not stall. So the
watchdog does not count the time during which its own thread did not run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from kiel_groups.config import GroupConfig
from kiel_groups.listeners import Stall
from kiel_groups.members.partition_handler import Work
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)


#: Shares of a time limit: the time after which the application is notified of a stall, and the interval of the checks.
HURRY_SHARE = 0.5
LOOK_SHARE = 0.1


#: The pause between checks whether the application has resumed, in seconds.
CATCH_UP_S = 0.05


async def caught_up(in_progress: Callable[[], Collection[Work]], stalled: Collection[Work]) -> None:
    """
    Wait until the application makes progress, after the watchdog has ended a member session.

    If the member joined earlier, the new partitions would stall like those that the member has just lost.

    Args:
        in_progress: Returns the application's work in progress.
        stalled: The work in progress when the member session ended.
    """
    while any(now.token is then.token for now in in_progress() for then in stalled):  # noqa: ASYNC110
        await asyncio.sleep(CATCH_UP_S)


@dataclass(slots=True)
class _Watched:
    """A piece of work, how long it has taken in seconds, and whether the application was notified of its stall."""

    work: Work
    elapsed_s: float = 0.0
    notified: bool = False


class Watchdog:
    """
    Watches one event loop, and the work of the application on it.

    Args:
        config: ``max_poll_interval_ms`` for the application, ``loop_stall_ms`` for the event loop. 0 means no limit.
        in_progress: Returns the application's work in progress. The watchdog's thread calls it.
        hurry: Called with a stall at half of the stall's time limit. Each call has a thread of its own, which it may
            block.
        on_stalled: Called once with the reason, on the watchdog's thread, when a time limit is reached.
        metrics: Counts ``stalls`` and ``watchdog_exits``, by kind.
        runtime: Clock and threads.
    """

    def __init__(
        self,
        config: GroupConfig,
        in_progress: Callable[[], Collection[Work]],
        hurry: Callable[[Stall], None],
        on_stalled: Callable[[str], None],
        metrics: Metrics,
        runtime: Runtime,
    ) -> None:
        self._work_limit_s = config.max_poll_interval_ms / 1000
        self._loop_limit_s = config.loop_stall_ms / 1000
        limits = [limit_s for limit_s in (self._work_limit_s, self._loop_limit_s) if limit_s]
        self._pause_s = LOOK_SHARE * min(limits, default=0.0)
        self._in_progress = in_progress
        self._hurry = hurry
        self._on_stalled = on_stalled
        self._metrics = metrics
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._loop_probe: _Watched | None = None
        self._watched: list[_Watched] = []
        self._last_s = 0.0
        self._ticker = runtime.ticker(self._tick, "watchdog")

    def start(self) -> None:
        """Start the thread if at least one time limit is set."""
        if self._pause_s:
            self._last_s = self._runtime.boot_time_s()
            self._ticker.start()

    def stop(self) -> None:
        """Tell the thread to end, and do not wait for its end."""
        self._stopped = True
        self._ticker.wake()

    def _tick(self) -> float | None:
        if self._stopped or self._loop.is_closed():
            # The heartbeat ends the session of a closed loop.
            return None
        now_s = self._runtime.boot_time_s()
        # If this thread slept longer than the pause, so did the whole process or the computer: that is no stall.
        passed_s, self._last_s = min(now_s - self._last_s, self._pause_s), now_s
        try:
            stalled = self._check_loop(passed_s) or self._check_work(passed_s)
        except BaseException:
            # The application's own objects may raise anything, SystemExit included. The thread must survive that: its
            # end would go unnoticed.
            log.exception("the watchdog could not check for progress; it tries again in %.1f s", self._pause_s)
            return self._pause_s
        if stalled is None:
            return self._pause_s
        self._metrics.count("watchdog_exits", kind=stalled.kind)
        self._on_stalled(f"watchdog: {stalled}")
        log.error("%s: this member's session is closed", stalled)
        return None

    def _check_loop(self, passed_s: float) -> Stall | None:
        """Schedule a callback on the loop, and add up the time until it runs. At the limit, return the stall."""
        if not self._loop_limit_s:
            return None
        if self._loop_probe is None:
            self._loop_probe = _Watched(Work(self, "loop", frozenset()))
            self._loop.call_soon_threadsafe(self._loop_ran)
            return None
        return self._add_time(self._loop_probe, passed_s, self._loop_limit_s)

    def _loop_ran(self) -> None:
        self._loop_probe = None

    def _check_work(self, passed_s: float) -> Stall | None:
        if not self._work_limit_s:
            return None
        before = {id(watched.work.token): watched for watched in self._watched}
        # Keeping the watched work keeps its tokens alive, so no new token can have the id of an old one.
        fresh = [before.get(id(work.token)) or _Watched(work, -passed_s) for work in self._in_progress()]
        self._watched = fresh
        stalls = [self._add_time(watched, passed_s, self._work_limit_s) for watched in fresh]
        return next((stall for stall in stalls if stall is not None), None)

    def _add_time(self, watched: _Watched, passed_s: float, limit_s: float) -> Stall | None:
        """Add time to one piece of work. At half of the limit, start ``_notify``. At the limit, return the stall."""
        watched.elapsed_s += passed_s
        stall = Stall(watched.work.kind, watched.work.partitions, watched.elapsed_s, limit_s)
        if stall.elapsed_s >= limit_s:
            return stall
        if stall.elapsed_s >= limit_s * HURRY_SHARE and not watched.notified:
            watched.notified = True
            self._metrics.count("stalls", kind=stall.kind)
            self._runtime.ticker(partial(self._notify, stall), "hurry").start()
        return None

    def _notify(self, stall: Stall) -> None:
        """Log a stall and call ``hurry``. This method runs on a thread of its own."""
        log.warning("%s", stall)
        self._hurry(stall)
