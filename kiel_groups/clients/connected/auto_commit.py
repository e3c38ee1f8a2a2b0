"""Commit finished records automatically: at regular intervals, and earlier on request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kiel_groups.config import GroupConfig
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics

__all__ = ["AutoCommit"]

log = logging.getLogger(__name__)

#: The least time between two commits on request, in seconds. A program that calls ``consume()`` some hundred times a
#: second would otherwise pay for a transaction of ZooKeeper with each call: 0.6 ms, as much as the values of a MiB.
PAUSE_S = 0.1


class AutoCommit:
    """Commits every ``auto_commit_interval_ms``. A call of ``commit`` must complete even if its caller is cancelled."""

    def __init__(
        self,
        config: GroupConfig,
        subscription: SubscriptionState,
        commit: Callable[[], Awaitable[object]],
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._commit = commit
        self._metrics = metrics
        self._due = asyncio.Event()
        #: Why the last commit failed, or None after a success.
        self._cause: str | None = None

    def commit_soon(self) -> None:
        """Start the next commit without waiting for the end of the interval, ``PAUSE_S`` after the last one at most."""
        self._due.set()

    async def run(self) -> None:
        """
        Commit until the task is cancelled.

        A failure is counted, and the next interval's commit retries. Its cause is logged once: again after a success,
        or when it changes.
        """
        interval_s = self._config.auto_commit_interval_ms / 1000
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._due.wait()
                    await asyncio.sleep(next_s - clock())
            self._due.clear()
            next_s = clock() + PAUSE_S
            try:
                if self._subscription.offsets.has_uncommitted():
                    await self._commit()
                    self._cause = None
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count a failed commit, and log its cause unless the last commit failed for the same one."""
        self._metrics.count("commits_failed")
        cause, self._cause = self._cause, f"{type(error).__name__}: {error}"
        if cause == self._cause:
            return
        group, interval_s = self._config.group, self._config.auto_commit_interval_ms / 1000
        if isinstance(error, SessionLostError):
            log.warning("group %s: nothing was committed: %s; trying again every %g s", group, error, interval_s)
        elif isinstance(error, KielGroupsError):
            log.error("an automatic commit failed in group %s: %s; trying again every %g s", group, error, interval_s)
        else:
            log.error(
                "an automatic commit failed in group %s; trying again every %g s", group, interval_s, exc_info=error
            )
