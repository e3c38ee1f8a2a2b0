"""Read the configuration of a worker group: its znodes as values, consistent snapshots, and the history of changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.layout import WorkerLayout, connector_of, history_offset_of
from kiel_groups.group.znodes.worker_contents import ConfigChange, StoredConnector, StoredStatus, parse_config_offset
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, TargetState, TaskId, Work, WorkState, WorkStatus
from kiel_groups.zookeeper.session import Node, Session, Watcher

__all__ = [
    "Written",
    "entry_of",
    "owner_path",
    "status_data",
    "status_of",
    "status_path",
    "ConfigReader",
]

log = logging.getLogger(__name__)


#: The command that replaces all settings of a connector.
_REPLACE = "'kiel-groups connectors config NAME --file FILE'"


class Written(NamedTuple):
    """The data of a znode, and the zxid of the transaction that wrote it."""

    data: bytes
    mzxid: int


def _task_of(work: Work) -> int | None:
    return work.task if isinstance(work, TaskId) else None


def owner_path(layout: WorkerLayout, work: Work) -> str:
    """Return the path of the znode by which a worker claims a connector or a task."""
    return layout.owner(work.connector, _task_of(work))


def status_path(layout: WorkerLayout, work: Work) -> str:
    """Return the path of the status of a connector or a task."""
    return layout.status(work.connector, _task_of(work))


def entry_of(name: str, path: str, data: bytes, czxid: int) -> ConnectorEntry:
    """Return a connector's configuration; if its znode has garbage, an entry without settings that says what to do."""
    try:
        stored = StoredConnector.parse(name, data, path)
    except ProtocolError as error:
        problem = f"{error}; replace its settings ({_REPLACE}), or delete it"
        return ConnectorEntry(config={}, problem=problem, created=czxid)
    return ConnectorEntry(stored.config, TargetState(stored.target), stored.tasks, created=czxid)


def status_data(status: WorkStatus) -> bytes:
    """Return the data of a status znode. A long trace is cut."""
    return StoredStatus(
        state=status.state,
        worker=status.worker,
        trace=status.trace,
        generation=status.generation,
        problem=status.problem,
    ).encode()


def status_of(path: str, written: Written | None, claimed_zxid: int | None, created_zxid: int | None) -> WorkStatus:
    """
    Return the status that a status znode shows now.

    A status counts only while the claim exists under which it was written. It is UNASSIGNED if the claim is gone, if
    another worker has claimed the work since, or if the connector was created again since.

    Args:
        path: The path of the status znode.
        written: The znode, or None if it does not exist.
        claimed_zxid: The zxid that created the owner znode, or None if there is none.
        created_zxid: The zxid that created the connector's znode, or None if there is none.
    """
    if written is None or not written.data:
        return WorkStatus(WorkState.UNASSIGNED, worker="")
    try:
        stored = StoredStatus.parse(written.data, path)
    except ProtocolError as error:
        log.error("%s; treating the work as unassigned", error)
        return WorkStatus(WorkState.UNASSIGNED, worker="", trace=str(error))
    if claimed_zxid is None or created_zxid is None or written.mzxid < max(claimed_zxid, created_zxid):
        return WorkStatus(WorkState.UNASSIGNED, stored.worker, generation=stored.generation)
    return WorkStatus(WorkState(stored.state), stored.worker, stored.trace, stored.generation, stored.problem)


class ConfigReader:
    """The configuration of one worker group, as a session reads it."""

    def __init__(self, session: Session, layout: WorkerLayout) -> None:
        self._session = session
        self._layout = layout
        #: The paths of the znodes of the connectors that were read last, by the connectors' names.
        self._expected: dict[str, str] = {}
        #: The last snapshot, and what identifies the state of the offset's znode at that time.
        self._last: tuple[tuple[int, int], ConfigSnapshot] | None = None
        #: The znodes beside those of connectors that were logged.
        self._foreign: set[str] = set()

    async def snapshot(self) -> ConfigSnapshot:
        """
        Read all connectors at one configuration offset.

        The offset is read before and after the connectors, until it has not moved. If it has not moved since the last
        snapshot, that one is returned: each change moves it. A server that lags behind answers with an older
        configuration, which is consistent, too.

        Raises:
            ProtocolError: The znode of the configuration offset has garbage. Garbage in a connector's znode is the
                ``problem`` of that connector.
            SessionLostError: The session is over.
        """
        before = await self._session.get(self._layout.config)
        if self._last is not None and self._last[0] == _identity(before):
            return self._last[1]
        while True:
            connectors = await self._connectors()
            # An offset that an operator has emptied must not move back: workers that know a larger one would rejoin
            # without end. Changes continue after the history, too.
            offset = 0 if before is None else parse_config_offset(before.data, self._layout.config)
            offset = offset or await self._newest_in_history()
            after = await self._session.get(self._layout.config)
            identity = _identity(after)
            if _identity(before) == identity:
                snapshot = ConfigSnapshot(offset, connectors)
                self._last = None if identity is None else (identity, snapshot)
                return snapshot
            before = after

    async def _newest_in_history(self) -> int:
        """Return the offset of the newest entry of the history; 0 if there is none."""
        names = await self._session.children(self._layout.history) or ()
        return max((offset for offset in map(history_offset_of, names) if offset is not None), default=0)

    async def _connectors(self) -> dict[str, ConnectorEntry]:
        """Read all connectors: those of the last snapshot together with the list of names, to save a round trip."""
        expected = self._expected
        names, found = await asyncio.gather(
            self._session.children(self._layout.connectors), self._session.get_many(list(expected.values()))
        )
        nodes = dict(zip(expected, found, strict=True))
        paths = self._paths(names or ())
        new = [name for name in paths if name not in nodes]
        nodes |= zip(new, await self._session.get_many([paths[name] for name in new]), strict=True)
        self._expected = paths
        read = {name: nodes[name] for name in paths}
        return {
            name: entry_of(name, paths[name], node.data, node.czxid) for name, node in read.items() if node is not None
        }

    def _paths(self, znodes: Iterable[str]) -> dict[str, str]:
        """Return the paths of the connectors' znodes by their names, sorted. Log other znodes, once each."""
        paths: dict[str, str] = {}
        for znode in znodes:
            if (name := connector_of(znode)) is not None:
                paths[name] = f"{self._layout.connectors}/{znode}"
            elif znode not in self._foreign:
                self._foreign.add(znode)
                log.warning("%s/%s is not the znode of a connector; ignoring it", self._layout.connectors, znode)
        return dict(sorted(paths.items()))

    async def follow(self, on_snapshot: Callable[[ConfigSnapshot], None]) -> None:
        """
        Call a function with a snapshot now, and with a newer one after each change, until the caller cancels this.

        Changes that follow each other closely may be in one snapshot. While the znode of the configuration offset has
        garbage, no snapshot is passed.

        Raises:
            SessionLostError: The session is over.
        """
        changed = asyncio.Event()
        known: ConfigSnapshot | None = None
        try:
            while True:
                changed.clear()
                await self._watch(changed.set)
                try:
                    snapshot = await self.snapshot()
                except ProtocolError as error:
                    log.error("group %s: %s; keeping the known configuration", self._layout.group, error)
                else:
                    # The watch also fires when the connection breaks.
                    if snapshot != known:
                        known = snapshot
                        on_snapshot(snapshot)
                await changed.wait()
        finally:
            self._session.forget(changed.set)

    async def _watch(self, watcher: Watcher) -> None:
        # Unlike ``get``, ``exists`` also sets a watch on a znode that does not exist yet.
        await self._session.exists(self._layout.config, watcher)

    async def history(self) -> list[ConfigChange]:
        """Return the latest changes, in ascending order. Unreadable entries are left out."""
        names = await self._session.children(self._layout.history) or ()
        offsets = sorted(offset for offset in map(history_offset_of, names) if offset is not None)
        paths = [self._layout.history_entry(offset) for offset in offsets]
        changes = []
        for path, node in zip(paths, await self._session.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                changes.append(ConfigChange.parse(node.data, path))
            except ProtocolError as error:
                log.error("group %s: %s; leaving this entry out", self._layout.group, error)
        return changes


def _identity(node: Node | None) -> tuple[int, int] | None:
    """Return what identifies the present state of a znode among all that it has had, or None if it does not exist."""
    return None if node is None else (node.czxid, node.mzxid)
