"""What a worker has on one ZooKeeper session: its stores, its claims and its reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from kiel_groups.errors import ClaimLostError, CoordinationError, SessionLostError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, chunks
from kiel_groups.group.znodes.worker_contents import WorkerInfo
from kiel_groups.workers.execution.work_claims import WorkClaims
from kiel_groups.workers.plugins.interfaces import JsonObject
from kiel_groups.workers.runners.runner_interface import SourceOffsets
from kiel_groups.workers.stores.config_reader import owner_path
from kiel_groups.workers.stores.config_store import ConfigStore
from kiel_groups.workers.stores.source_offset_store import SourceOffsetStore
from kiel_groups.workers.stores.status_store import StatusStore
from kiel_groups.workers.values import ConnectorId, TaskId, Work, WorkStatus
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import TaskSet

__all__ = [
    "StatusReports",
    "ProvenSession",
    "SessionParts",
]

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


#: The most source offsets that the release of a claim stores in its own transaction.
_MOST_WITH_RELEASE = MOST_OPERATIONS // 4


class ProvenSession(Protocol):
    """A worker on one open session; ``WorkerRole`` is one."""

    session: Session
    writer: FencedWriter
    worker_id: str
    layout: WorkerLayout

    async def workers(self) -> list[WorkerInfo]:
        """Return what the znodes of the group's workers have."""


class SessionParts:
    """
    The stores, claims and reports of one session. It is what runners read and write; see ``RunnerStores``.

    Args:
        role: The worker on the session.
        runtime: The clock.
        on_gone: Called with work whose claim has disappeared without a release.
        on_error: Called with an error of a background task.
    """

    def __init__(
        self,
        role: ProvenSession,
        runtime: Runtime,
        on_gone: Callable[[Work], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        session, writer, layout = role.session, role.writer, role.layout
        self._layout = layout
        self._tasks = TaskSet(on_error)
        self._is_over = False
        self.role = role
        self.session = session
        self.config = ConfigStore(session, writer, layout, role.worker_id, runtime)
        self.statuses = StatusStore(session, writer, layout)
        self.offsets = SourceOffsetStore(session, writer, layout)
        self.claims = WorkClaims(session, writer, layout, role.worker_id, on_gone)
        self.reports = StatusReports(layout.group, self.statuses, self._refused)

    def begin(self) -> None:
        """Begin to claim and to report."""
        self.start(self.claims.run)
        self.start(self.reports.run)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function in the background until the session ends."""
        self._tasks.start(work())

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, and all claims with it."""
        return self._is_over or self.session.ended is not None

    def end(self) -> None:
        """End all at once, because the session is over or the worker ends."""
        self._is_over = True
        self.claims.end()
        self._tasks.cancel()

    def _refused(self, work: Work) -> None:
        """Look at a claim whose status was refused; its connector may have been deleted instead."""
        self.claims.check(work)

    # ------------------------------------------------------------------ for runners

    async def read_offset(self, connector: str, partition: JsonObject) -> JsonObject | None:
        return (await self.offsets.read(connector, [partition]))[0]

    async def write_offsets(self, task: TaskId, offsets: SourceOffsets) -> None:
        try:
            await self.offsets.write(task, offsets)
        except ClaimLostError:
            self.claims.check(task)
            raise

    async def write_tasks(self, connector: str, tasks: Sequence[Mapping[str, str]]) -> None:
        claim = owner_path(self._layout, ConnectorId(connector))
        try:
            await self.config.put_task_configs(connector, tasks, claim=claim)
        except ClaimLostError:
            self.claims.check(ConnectorId(connector))
            raise

    # ------------------------------------------------------------------ the release

    async def release(self, work: Work, offsets: SourceOffsets = ()) -> None:
        """
        Release a claim, and store the last source offsets of a task in the same transaction if they fit.

        Raises:
            ClaimLostError: The claim is gone.
            ConfigError: A source partition and its offset do not fit into a znode. The claim is still there.
            CoordinationError: ZooKeeper refuses a write because rights are missing. The claim is still there.
            SessionLostError: The session is over.
        """
        self.reports.drop(work)
        if isinstance(work, TaskId) and offsets:
            writes = await self.offsets.operations(work, offsets) if len(offsets) <= _MOST_WITH_RELEASE else ()
            if len(list(chunks(writes))) == 1 and await self.claims.release(work, writes):
                return
            # Too many, too large, or refused because an operator has created or deleted znodes of offsets meanwhile.
            await self.write_offsets(work, offsets)
        await self.claims.release(work)
