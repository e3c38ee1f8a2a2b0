"""
Read and write the statuses of connectors and tasks.

Only the owner of a claim writes the status of its work. A status is not deleted when the claim is gone: readers
compare the two, and see then that the work is unassigned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Check, Create, Failure, Operation, Put
from kiel_groups.workers.stores.config_reader import Written, owner_path, status_data, status_of, status_path
from kiel_groups.workers.values import TaskId, Work, WorkStatus
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session

__all__ = ["StatusStore"]

#: Refusals after which the znodes are looked up and written again: others create and delete statuses, too.
_OUTDATED = (Failure.NODE_EXISTS, Failure.NO_NODE)


class StatusStore:
    """
    The statuses of one worker group, on a worker's session.

    ``writer`` writes on that session with the worker's proof.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout
        #: The newest statuses that are being written. An older one must not follow them after a lost answer.
        self._newest: dict[Work, WorkStatus] = {}
        #: The work whose status this worker has written: its znode exists, unless an operator has deleted it.
        self._written: set[Work] = set()

    async def put(self, work: Work, status: WorkStatus) -> bool:
        """
        Store the status of a connector or a task that this worker has claimed; cut its trace to 8 KiB.

        Returns:
            Whether it is stored, or a later call has replaced it. False means that the claim is gone, or that the
            connector does not exist any more.

        Raises:
            SessionLostError: The session is over.
        """
        return work in await self.put_many({work: status})

    def withdraw(self, work: Work) -> None:
        """Drop statuses of this work that were not sent yet. After its release, only its next owner may write one."""
        self._newest.pop(work, None)

    async def put_many(self, statuses: Mapping[Work, WorkStatus]) -> set[Work]:
        """Store several statuses, each as ``put`` does, and return the work whose status is stored or replaced."""
        self._newest.update(statuses)
        rejected: set[Work] = set()
        waiting = dict(statuses)
        try:
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
        """Write statuses, and return those to write again. Add to ``rejected`` the work whose status is refused."""
        again: set[Work] = set()

        def on_refused(work: Work, operation: Operation, failure: Failure) -> None:
            if isinstance(operation, Check):
                rejected.add(work)
            elif failure in _OUTDATED:
                self._written.discard(work)
                again.add(work)
            else:
                raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")

        def renew(work: Work, operations: tuple[Operation, ...]) -> tuple[Operation, ...] | None:
            return operations if self._newest.get(work) is statuses[work] else None

        outcome = await self._writer.write(items, on_refused, renew=renew)
        self._written.update(outcome.done)
        return {work: statuses[work] for work in again | outcome.unknown}

    async def _items(self, statuses: Mapping[Work, WorkStatus]) -> dict[Work, tuple[Operation, ...]]:
        """Return the writes of statuses by the work. Work of connectors that do not exist is left out."""
        layout = self._layout
        items: dict[Work, tuple[Operation, ...]] = {
            work: (*self._checks(work), Put(status_path(layout, work), status_data(status)))
            for work, status in statuses.items()
            if work in self._written
        }
        if works := [work for work in statuses if work not in items]:
            items |= await self._items_of_unread(works, statuses)
        return items

    def _checks(self, work: Work) -> tuple[Operation, ...]:
        """Return the conditions of a write: the claim, and the connector, which may have been deleted."""
        return Check(owner_path(self._layout, work)), Check(self._layout.connector(work.connector))

    async def _items_of_unread(
        self, works: Sequence[Work], statuses: Mapping[Work, WorkStatus]
    ) -> dict[Work, tuple[Operation, ...]]:
        layout = self._layout
        names = sorted({work.connector for work in works})
        stored, found = await asyncio.gather(
            self._session.exists_many([status_path(layout, work) for work in works]),
            self._session.exists_many([layout.connector(name) for name in names]),
        )
        present = {name for name, node in zip(names, found, strict=True) if node is not None}
        items: dict[Work, tuple[Operation, ...]] = {}
        folders: set[str] = set()
        for work, node in zip(works, stored, strict=True):
            path, data = status_path(layout, work), status_data(statuses[work])
            if work.connector not in present:
                continue
            if node is not None:
                items[work] = (*self._checks(work), Put(path, data))
            else:
                items[work] = (*self._checks(work), Create(path, data))
                folders.add(layout.status(work.connector) if isinstance(work, TaskId) else layout.statuses)
        if folders:
            await self._session.ensure(folders)
        return items

    async def read(self, works: Collection[Work]) -> dict[Work, WorkStatus]:
        """
        Read the present statuses of connectors and tasks, in one round trip.

        Work is UNASSIGNED if it has no owner, or its owner has not written a status yet; ``worker`` is then the worker
        that wrote the last status, or "". A status that is unreadable is UNASSIGNED with a trace that says so.
        """
        layout, works = self._layout, list(works)
        names = sorted({work.connector for work in works})
        # The owners are read first: a status that is read after its owner is not older than the owner's claim.
        owners, statuses, connectors = await asyncio.gather(
            self._session.exists_many([owner_path(layout, work) for work in works]),
            self._session.get_many([status_path(layout, work) for work in works]),
            self._session.exists_many([layout.connector(name) for name in names]),
        )
        created = {name: node and node.czxid for name, node in zip(names, connectors, strict=True)}
        return {
            work: status_of(
                status_path(layout, work),
                status and Written(status.data, status.mzxid),
                owner and owner.czxid,
                created[work.connector],
            )
            for work, owner, status in zip(works, owners, statuses, strict=True)
        }
