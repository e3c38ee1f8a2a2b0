"""
Read and write the statuses of connectors and tasks.

Work means connectors and tasks. Only the owner of a claim writes the status of its work. A status is not deleted when
the claim is gone. Readers compare the status with the claim, and so know that the work is unassigned.

Reported statuses are written a tenth of a second after the first report. Then the many statuses after a rebalance share
transactions, and do not delay claims and starts. If several statuses of the same work are reported, only the newest
status is written. A status that only confirms an earlier status is written a second later. A problem of running work is
written a second later, too, because the problem may be over by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from kiel_groups.errors import AuthorizationError, CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Check, Create, Failure, Operation, Put
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.workers.values import TaskId, Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter, give_up
from kiel_groups.zookeeper.session import Node, Session

log = logging.getLogger(__name__)

#: Refusals after which the znodes are read and written again: other processes create and delete statuses, too.
_OUTDATED = (Failure.NODE_EXISTS, Failure.NO_NODE)

#: How long a reported status waits for other statuses, and how long a confirming status waits, in seconds.
_REPORTED_AFTER_S, _CONFIRMED_AFTER_S = 0.1, 1.0

#: A znode as a worker or a tool has read it, or None if it does not exist.
_Znode: TypeAlias = Node | Znode | None


def status_of(path: str, status: _Znode, owner: _Znode, connector: _Znode) -> WorkStatus:
    """
    Return the present status of a connector or a task, from its znodes.

    A stored status is valid only while the claim exists under which it was written. The work is UNASSIGNED if the claim
    is gone, if the work was claimed again since, or if the connector was deleted or created again since. The work is
    also UNASSIGNED if the status is missing or unreadable.

    Args:
        path: The path of the status znode.
        status: The status znode, or None.
        owner: The owner znode, or None.
        connector: The connector's znode, or None.
    """
    if status is None or not status.data:
        return WorkStatus(WorkState.UNASSIGNED, worker="")
    try:
        stored = WorkStatus.parse(status.data, path)
    except ProtocolError as error:
        log.error("%s; treating the work as unassigned", error)
        return WorkStatus(WorkState.UNASSIGNED, worker="", trace=str(error))
    if owner is None or connector is None or status.mzxid < max(owner.czxid, connector.czxid):
        return WorkStatus(WorkState.UNASSIGNED, stored.worker, generation=stored.generation)
    return stored


class StatusStore:
    """
    Reads and writes the statuses of one worker group on a worker's session.

    ``writer`` writes on the session. Each write checks that the worker's znode exists.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout
        #: The statuses to write soon, and those to write a second later.
        self._waiting: dict[Work, WorkStatus] = {}
        self._confirmed: dict[Work, WorkStatus] = {}
        self._wake = asyncio.Event()
        #: The newest statuses that are being written. An older one must not follow them after a lost answer.
        self._newest: dict[Work, WorkStatus] = {}
        #: The work whose status this worker has written: its znode exists, unless an operator has deleted it.
        self._written: set[Work] = set()

    def report(self, work: Work, status: WorkStatus) -> None:
        """Queue a status, to be written soon. The status replaces an unwritten status of the same work."""
        self._confirmed.pop(work, None)
        if not self._waiting:
            asyncio.get_running_loop().call_later(_REPORTED_AFTER_S, self._wake.set)
        self._waiting[work] = status

    def confirm(self, work: Work, status: WorkStatus) -> None:
        """
        Queue a status, to be written a second later. The status may differ from the last status in its generation or
        its problem.
        """
        if not self._confirmed:
            asyncio.get_running_loop().call_later(_CONFIRMED_AFTER_S, self._report_confirmed)
        self._confirmed[work] = status

    def _report_confirmed(self) -> None:
        confirmed, self._confirmed = self._confirmed, {}
        self._waiting = confirmed | self._waiting
        self._wake.set()

    def drop(self, work: Work) -> None:
        """
        Write no further status of this work. After the release of the claim, only the next owner may write a status.
        """
        for statuses in (self._waiting, self._confirmed, self._newest):
            statuses.pop(work, None)

    async def run(self, on_gone: Callable[[Work], None]) -> None:
        """
        Write reported statuses until the session is over, or the task is cancelled.

        If ZooKeeper refuses statuses for another reason than an ACL, log an error, and do not write these statuses.

        Args:
            on_gone: Called with work whose status was refused because its claim, or its connector, is gone.

        Raises:
            AuthorizationError: ZooKeeper refused a status because of an ACL.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, {}
            if not waiting:
                continue
            try:
                stored = await self.put_many(waiting)
            except SessionLostError:
                return
            except AuthorizationError:
                raise
            except CoordinationError as error:
                log.error("group %s: statuses are not written: %s", self._layout.group, error)
                continue
            for work in waiting:
                if work not in stored:
                    on_gone(work)

    async def put(self, work: Work, status: WorkStatus) -> bool:
        """
        Store the status of a connector or a task that this worker has claimed. Cut the trace of the status to 8 KiB.

        Returns:
            True if the status is stored, or a later call has replaced it; False if the claim is gone, or the connector
            no longer exists.

        Raises:
            AuthorizationError: ZooKeeper refuses a write because of an ACL.
            SessionLostError: The session is over.
        """
        return work in await self.put_many({work: status})

    async def put_many(self, statuses: Mapping[Work, WorkStatus]) -> set[Work]:
        """Store several statuses, each as ``put`` does, and return the work whose status is stored or replaced."""
        self._newest.update(statuses)
        rejected: set[Work] = set()
        try:
            # Most work has had a status before. If one has none, a read says which others have none either.
            waiting = await self._write(
                {work: self._put(work, statuses[work]) for work in statuses}, statuses, rejected
            )
            while waiting:
                items = await self._items(waiting)
                rejected |= waiting.keys() - items.keys()
                waiting = await self._write(items, waiting, rejected)
        finally:
            for work, status in statuses.items():
                if self._newest.get(work) is status:
                    del self._newest[work]
        return statuses.keys() - rejected

    async def _write(
        self, items: Mapping[Work, tuple[Operation, ...]], statuses: Mapping[Work, WorkStatus], rejected: set[Work]
    ) -> dict[Work, WorkStatus]:
        """
        Write statuses, and return the statuses that must be written again.

        Work whose claim or connector is gone is added to ``rejected``.
        """

        def on_refused(work: Work, operation: Operation, failure: Failure) -> None:
            if isinstance(operation, Check):
                rejected.add(work)
            elif failure in _OUTDATED:
                self._written.difference_update(items)
                give_up(work, operation, failure)
            else:
                raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")

        def renew(work: Work, operations: tuple[Operation, ...]) -> tuple[Operation, ...] | None:
            return operations if self._newest.get(work) is statuses[work] else None

        outcome = await self._writer.write(items, on_refused, renew=renew)
        self._written.update(outcome.done)
        left = [work for work in items if work not in outcome.done and work not in rejected]
        return {work: statuses[work] for work in left if self._newest.get(work) is statuses[work]}

    async def _items(self, statuses: Mapping[Work, WorkStatus]) -> dict[Work, tuple[Operation, ...]]:
        """Return the operations that store the statuses, by work. Omit work whose connector does not exist."""
        items = {work: self._put(work, status) for work, status in statuses.items() if work in self._written}
        works = [work for work in statuses if work not in items]
        layout = self._layout
        names = sorted({work.connector for work in works})
        stored, found = await asyncio.gather(
            self._session.exists_many([layout.status(*work) for work in works]),
            self._session.exists_many([layout.connector(name) for name in names]),
        )
        present = {name for name, node in zip(names, found, strict=True) if node is not None}
        folders: set[str] = set()
        for work, node in zip(works, stored, strict=True):
            if work.connector not in present:
                continue
            if node is not None:
                items[work] = self._put(work, statuses[work])
            else:
                items[work] = (*self._checks(work), Create(layout.status(*work), statuses[work].encode()))
                folders.add(layout.status(work.connector) if isinstance(work, TaskId) else layout.statuses)
        if folders:
            await self._session.ensure(folders)
        return items

    def _put(self, work: Work, status: WorkStatus) -> tuple[Operation, ...]:
        """Return the operations that store a status whose znode exists."""
        return (*self._checks(work), Put(self._layout.status(*work), status.encode()))

    def _checks(self, work: Work) -> tuple[Operation, ...]:
        """Return the checks of a write: the work is claimed, and the connector exists."""
        return Check(self._layout.owner(*work)), Check(self._layout.connector(work.connector))

    async def read(self, works: Collection[Work]) -> dict[Work, WorkStatus]:
        """
        Read the present statuses of connectors and tasks, in one round trip.

        Work is UNASSIGNED if it has no owner, or its owner has not written a status yet. Then ``worker`` is the worker
        that wrote the last status, or "". Work with an unreadable status is UNASSIGNED, with a trace that names the
        fault.
        """
        layout, works = self._layout, list(works)
        names = sorted({work.connector for work in works})
        # The owners are read first: a status that is read after its owner is not older than the owner's claim.
        owners, statuses, connectors = await asyncio.gather(
            self._session.exists_many([layout.owner(*work) for work in works]),
            self._session.get_many([layout.status(*work) for work in works]),
            self._session.exists_many([layout.connector(name) for name in names]),
        )
        found = dict(zip(names, connectors, strict=True))
        return {
            work: status_of(layout.status(*work), status, owner, found[work.connector])
            for work, owner, status in zip(works, owners, statuses, strict=True)
        }
