"""Write the statuses of many pieces of work in few transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kiel_groups.errors import CoordinationError, SessionLostError
from kiel_groups.workers.stores.status_store import StatusStore
from kiel_groups.workers.values.work_ids import Work
from kiel_groups.workers.values.work_status import WorkStatus

__all__ = ["StatusReports"]

log = logging.getLogger(__name__)

#: How long a status that confirms a former one waits, in seconds.
_CONFIRMED_AFTER_S = 1.0


class StatusReports:
    """
    The statuses that one worker reports on one session.

    Of several statuses of the same work, the newest one is written. Statuses are written after the calls that report
    them; a status that ZooKeeper refuses because of missing rights is logged. Statuses that only confirm former ones
    are written a second later: after a rebalance there are many, and claims and starts must not wait for them. So are
    problems of work that runs, which may be over by then.

    Args:
        group: The group's name, for logs.
        store: The store of statuses.
        on_gone: Called with work whose status was refused because its claim, or its connector, is gone.
    """

    def __init__(self, group: str, store: StatusStore, on_gone: Callable[[Work], None]) -> None:
        self._group = group
        self._store = store
        self._on_gone = on_gone
        self._waiting: dict[Work, WorkStatus] = {}
        self._confirmed: dict[Work, WorkStatus] = {}
        self._wake = asyncio.Event()

    def report(self, work: Work, status: WorkStatus) -> None:
        """Have a status written soon."""
        self._confirmed.pop(work, None)
        self._waiting[work] = status
        self._wake.set()

    def confirm(self, work: Work, status: WorkStatus) -> None:
        """Have a status written that differs from the last one only in its generation or its problem."""
        if not self._confirmed:
            asyncio.get_running_loop().call_later(_CONFIRMED_AFTER_S, self._report_confirmed)
        self._confirmed[work] = status

    def _report_confirmed(self) -> None:
        confirmed, self._confirmed = self._confirmed, {}
        self._waiting = confirmed | self._waiting
        self._wake.set()

    def drop(self, work: Work) -> None:
        """Write no status of this work any more, because its claim is about to be released."""
        self._waiting.pop(work, None)
        self._confirmed.pop(work, None)
        self._store.withdraw(work)

    async def run(self) -> None:
        """Write statuses until the session is over, or the caller cancels this."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, {}
            if not waiting:
                continue
            try:
                stored = await self._store.put_many(waiting)
            except SessionLostError:
                return
            except CoordinationError as error:
                log.error("group %s: statuses are not written: %s", self._group, error)
                continue
            for work in waiting.keys() - stored:
                self._on_gone(work)
