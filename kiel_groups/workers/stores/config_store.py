"""
Read and change the configuration of a worker group.

Each change is one transaction that checks the worker's znode, increments the configuration offset, writes one
connector, and adds an entry to the history. The offset's znode has to have the version that the change is based on, so
changes of all workers form one sequence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from kiel_groups.errors import (
    AuthorizationError,
    ClaimLostError,
    ConfigError,
    ConnectorExistsError,
    CoordinationError,
    ProtocolError,
    SessionLostError,
    UnknownConnectorError,
)
from kiel_groups.group.znodes.layout import WorkerLayout, connector_of, history_offset_of
from kiel_groups.group.znodes.transactions import (
    LARGEST_BYTES,
    MOST_OPERATIONS,
    Check,
    Create,
    Delete,
    Failure,
    Operation,
    Put,
)
from kiel_groups.group.znodes.worker_contents import (
    MOST_KEYS,
    ConfigChange,
    StoredConnector,
    TargetState,
    changed_keys,
    check_texts,
    encode_config_offset,
    parse_config_offset,
)
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Node, Session

log = logging.getLogger(__name__)


#: The command that replaces all settings of a connector.
_REPLACE = "'kiel-groups connectors config NAME --file FILE'"

#: The changes that the history keeps.
MOST_KEPT = 100

#: The most entries of the history that one change deletes. Usually it is one.
_MOST_PRUNED = 50

#: Refusals after which a change is decided again, on the present state in ZooKeeper.
_OUTDATED = (Failure.BAD_VERSION, Failure.NODE_EXISTS, Failure.NO_NODE)


class _Base(NamedTuple):
    """
    The stored state on which a change is based.

    ``next_offset`` is the offset that the change produces. ``version`` is the version of the offset's znode. ``kept``
    has the offsets of the history's entries. ``connector_version`` is -1 if the connector does not exist. ``stored`` is
    None if the connector does not exist or its znode has garbage. Then ``problem`` describes the garbage.
    """

    offset: int
    next_offset: int
    version: int
    kept: list[int]
    connector_version: int
    stored: StoredConnector | None
    problem: str

    @property
    def exists(self) -> bool:
        """Whether the connector exists."""
        return self.connector_version >= 0


class _Edit(NamedTuple):
    """A decided change: the new content of a connector, or None to delete it, and the text and keys for the history."""

    connector: StoredConnector | None
    what: str
    keys: tuple[str, ...] = ()


_Decide = Callable[[_Base], _Edit | None]

#: Raises an error if the settings that are about to be replaced are not the settings that the caller expects.
CheckStored: TypeAlias = Callable[[Mapping[str, str] | None], None]


class ConfigStore:
    """
    Reads and changes the configuration of one worker group on a worker's session.

    Args:
        session: The worker's session.
        writer: Writes on the session. Each write checks that the worker's znode exists.
        layout: The paths of the group's workers.
        worker_id: The id of this worker, for the history.
        runtime: Gives the time and a unique name to each history entry.
    """

    def __init__(
        self, session: Session, writer: FencedWriter, layout: WorkerLayout, worker_id: str, runtime: Runtime
    ) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout
        self._worker_id = worker_id
        self._runtime = runtime
        #: The paths of the znodes of the connectors that were read last, by the connectors' names.
        self._expected: dict[str, str] = {}
        #: The last snapshot, and what identifies the state of the offset's znode at that time.
        self._last: tuple[tuple[int, int], ConfigSnapshot] | None = None
        #: The znodes that belong to no connector, and were logged.
        self._foreign: set[str] = set()

    # Reads

    async def prepare(self) -> None:
        """Create the missing parent znodes (folders) of all stores."""
        await self._session.ensure(self._layout.folders)

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read all connectors at one configuration offset.

        With ``current``, the snapshot has all changes that any worker has completed before this call, at the cost of
        one write through the quorum.

        Each change increments the offset. So the offset's znode is read before and after the connectors, and all is
        read again if the znode has changed in between. If it has not changed since the last snapshot, that snapshot is
        returned. A ZooKeeper server that lags behind answers with an older, but consistent configuration.

        Raises:
            ProtocolError: The znode of the configuration offset has garbage. Garbage in a connector's znode is the
                ``problem`` of that connector.
            SessionLostError: The session is over.
        """
        if current:
            await self._writer.prove()
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
        """Return the offset of the newest entry of the history, or 0 if the history is empty."""
        names = await self._session.children(self._layout.history) or ()
        return max((offset for offset in map(history_offset_of, names) if offset is not None), default=0)

    async def _connectors(self) -> dict[str, ConnectorEntry]:
        """
        Read all connectors.

        Connectors that the last read found are read together with the list of names, to save a round trip.
        """
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
        """Return the paths of the connectors' znodes, by name in sorted order. Log each znode of another name once."""
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
        Call a function with a snapshot now, and with a newer snapshot after each change, until the task is cancelled.

        Changes in quick succession may share a snapshot. While the znode of the configuration offset has garbage, the
        function is not called.

        Raises:
            SessionLostError: The session is over.
        """
        changed = asyncio.Event()
        known: ConfigSnapshot | None = None
        try:
            while True:
                changed.clear()
                # Unlike ``get``, ``exists`` also sets a watch on a znode that does not exist yet.
                await self._session.exists(self._layout.config, changed.set)
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

    # Changes

    async def put_connector(
        self, name: str, config: Mapping[str, str], *, is_new: bool = False, check: CheckStored = lambda stored: None
    ) -> int:
        """
        Create a connector, or replace its settings. The tasks and the target state of the connector stay as they are.

        A connector whose znode has garbage is replaced by a connector without tasks.

        Args:
            name: The connector.
            config: The settings of the connector.
            is_new: Whether the connector must not exist yet.
            check: Called with the settings that the write replaces: None if there is no connector, empty if its znode
                has garbage. If the stored settings change before the write, ``check`` is called again. An error that
                ``check`` raises ends the change.

        Returns:
            The configuration offset of the change.

        Raises:
            ConnectorExistsError: ``is_new`` is True, and the connector exists.
            ConfigError: The name is not legal, a setting is no text, or the connector is too large for a znode.
            CoordinationError: ZooKeeper refuses the write, or the outcome is not known.
            SessionLostError: The session is over.
        """
        settings = check_texts(config, f"connector {name!r:.80}")

        def decide(base: _Base) -> _Edit:
            if base.exists and is_new:
                raise ConnectorExistsError(
                    f"connector {name!r} already exists; change its settings, or delete it first"
                )
            old = base.stored or StoredConnector(name=name, config={})
            check(old.config if base.exists else None)
            what = "configured" if base.exists else "created"
            return _Edit(replace(old, config=settings), what, changed_keys(old.config, settings))

        return await self._change(name, decide)

    async def put_task_configs(
        self, connector: str, tasks: Sequence[Mapping[str, str]], *, claim: str | None = None
    ) -> int:
        """
        Replace the tasks of a connector. If the tasks equal the stored tasks, write nothing.

        Args:
            connector: The connector.
            tasks: The settings of each task, by its number.
            claim: The path of an owner znode that must exist, usually the owner znode of the connector. So the write is
                refused if this worker has lost the connector.

        Returns:
            The configuration offset of the change, or the present offset if nothing was written.

        Raises:
            UnknownConnectorError: The connector does not exist.
            ClaimLostError: The owner znode does not exist.
            ConfigError: The connector's znode has garbage, a setting is no text, or the connector is too large.
            CoordinationError: ZooKeeper refuses the write, or the outcome is not known.
            SessionLostError: The session is over.
        """
        listed = tuple(check_texts(task, f"tasks of connector {connector!r:.80}") for task in tasks)

        def decide(base: _Base) -> _Edit | None:
            old = _existing(connector, base)
            if old.tasks == listed:
                return None
            return _Edit(replace(old, tasks=listed), "tasks", _changed_task_keys(old.tasks or (), listed))

        return await self._change(connector, decide, claim)

    async def set_target_state(self, connector: str, target: TargetState) -> int:
        """
        Set whether a connector and its tasks run or pause. If the connector has this target state, write nothing.

        Returns:
            The configuration offset of the change, or the present offset if nothing was written.

        Raises:
            UnknownConnectorError: The connector does not exist.
            ConfigError: The connector's znode has garbage.
            CoordinationError: ZooKeeper refuses the write, or the outcome is not known.
            SessionLostError: The session is over.
        """

        def decide(base: _Base) -> _Edit | None:
            old = _existing(connector, base)
            return None if old.target == target else _Edit(replace(old, target=target), target.lower())

        return await self._change(connector, decide)

    async def delete_connector(self, name: str) -> int:
        """
        Delete a connector and its tasks, then their statuses.

        The source offsets stay, as in Kafka Connect: a connector that is created again under this name resumes where
        this connector ended. If the session ends before the statuses are deleted, or a right is missing, ``clean_up``
        deletes them later.

        Returns:
            The configuration offset of the change.

        Raises:
            UnknownConnectorError: The connector does not exist.
            CoordinationError: ZooKeeper refuses the deletion, or the outcome is not known.
            SessionLostError: The session is over, and the connector may or may not be deleted.
        """

        def decide(base: _Base) -> _Edit:
            if not base.exists:
                raise UnknownConnectorError(f"connector {name!r} does not exist")
            return _Edit(None, "deleted")

        offset = await self._change(name, decide)
        with suppress(SessionLostError, AuthorizationError):
            await self.clean_up()
        return offset

    async def clean_up(self) -> None:
        """
        Delete the statuses, and the empty folders of owner znodes, that deleted connectors have left.

        Any worker may call this method at any time, even after an earlier call was interrupted. Each deletion requires
        that the configuration has not changed since this method read it. So a connector that is created again keeps its
        statuses.

        Raises:
            SessionLostError: The session is over.
        """
        while True:
            items = await self._leftovers()
            outcome = await self._writer.write(items, lambda *_: None)
            if not outcome.unknown and Failure.BAD_VERSION not in outcome.dropped.values():
                break
        if outcome.dropped:
            log.debug("group %s: some znodes of deleted connectors stay for now", self._layout.group)

    async def _leftovers(self) -> dict[tuple[str, int], tuple[Operation, ...]]:
        """
        Return the transactions that delete the statuses and the folders of owner znodes of deleted connectors.

        The key of a transaction is the path of the folder, and the number of deletions that earlier transactions make
        in that folder.
        """
        layout = self._layout
        config = await self._session.get(layout.config)
        if config is None:
            return {}
        folders = [layout.statuses, layout.owners]
        connectors, *found = await self._session.children_many([layout.connectors, *folders])
        present = set(connectors or ())
        gone = [
            f"{folder}/{name}"
            for folder, names in zip(folders, found, strict=True)
            for name in sorted(names or ())
            if name not in present
        ]
        items: dict[tuple[str, int], tuple[Operation, ...]] = {}
        unchanged = Check(layout.config, config.version)
        for path, children in zip(gone, await self._session.children_many(gone), strict=True):
            if path.startswith(f"{layout.owners}/"):
                # Only owners delete owner znodes. ZooKeeper refuses to delete a folder that is not empty.
                deletions: list[Operation] = [Delete(path)]
            else:
                deletions = [*(Delete(f"{path}/{name}") for name in children or ()), Delete(path)]
            for start in range(0, len(deletions), MOST_OPERATIONS // 2):
                items[path, start] = (unchanged, *deletions[start : start + MOST_OPERATIONS // 2])
        return items

    async def _change(self, connector: str, decide: _Decide, claim: str | None = None) -> int:
        """
        Decide a change and write it; decide again if another change came first.

        Return the configuration offset of the change, or the present offset if ``decide`` returns None.
        """
        guards = () if claim is None else (Check(claim),)
        # A server that lags behind would have a change refused, or skipped, because of what other workers have changed.
        await self._writer.prove()
        while True:
            base = await self._read_base(connector)
            edit = decide(base)
            if edit is None:
                return base.offset
            entry = ConfigChange(
                offset=base.next_offset,
                what=edit.what,
                connector=connector,
                worker=self._worker_id,
                at_ms=self._runtime.wall_ms(),
                keys=edit.keys,
                uid=self._runtime.unique_name(),
            )
            if await self._write((*guards, *self._operations(base, edit, entry)), guards, entry):
                return entry.offset

    async def _read_base(self, connector: str) -> _Base:
        """Read the stored state for a change. The offset is read first, so a later change makes the write fail."""
        path = self._layout.connector(connector)
        config = await self._session.get(self._layout.config)
        while config is None:
            await self.prepare()
            config = await self._session.get(self._layout.config)
        names, node = await asyncio.gather(self._session.children(self._layout.history), self._session.get(path))
        kept = sorted(offset for offset in map(history_offset_of, names or ()) if offset is not None)
        stored, problem = None, ""
        if node is not None:
            try:
                stored = StoredConnector.parse(connector, node.data, path)
            except ProtocolError as error:
                problem = str(error)
        offset = parse_config_offset(config.data, self._layout.config)
        # If an operator has emptied the offset's znode, the sequence continues after the history.
        next_offset = max(offset, *kept[-1:], 0) + 1
        version = -1 if node is None else node.version
        return _Base(offset, next_offset, config.version, kept, version, stored, problem)

    def _operations(self, base: _Base, edit: _Edit, entry: ConfigChange) -> Iterable[Operation]:
        yield Put(self._layout.config, encode_config_offset(entry.offset), base.version)
        path = self._layout.connector(entry.connector)
        if edit.connector is None:
            yield Delete(path, base.connector_version)
        elif base.exists:
            yield Put(path, _encoded(edit.connector, entry.offset), base.connector_version)
        else:
            yield Create(path, _encoded(edit.connector, entry.offset))
        yield Create(self._layout.history_entry(entry.offset), entry.encode())
        for offset in base.kept[: -(MOST_KEPT - 1)][:_MOST_PRUNED]:
            yield Delete(self._layout.history_entry(offset))

    async def _write(self, operations: tuple[Operation, ...], guards: tuple[Check, ...], entry: ConfigChange) -> bool:
        """
        Write a change, and return whether the write succeeded. If not, the caller has to decide the change again.

        Raises:
            ClaimLostError: An owner znode in ``guards`` does not exist.
            CoordinationError: ZooKeeper refuses the write, or the outcome is not known.
        """

        def on_refused(_: str, operation: Operation, failure: Failure) -> None:
            if operation in guards:
                raise ClaimLostError(f"connector {entry.connector!r}: the claim {operation.path} is gone")
            if failure not in _OUTDATED:
                raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")

        outcome = await self._writer.write({entry.connector: operations}, on_refused)
        if outcome.unknown:
            return await self._was_written(entry)
        if Failure.NO_NODE in outcome.dropped.values():
            await self.prepare()
        return not outcome.dropped

    async def _was_written(self, entry: ConfigChange) -> bool:
        """
        Return whether a change was written although ZooKeeper's answer was lost.

        The result is final, because the writer has completed another transaction on the session after the write.

        Raises:
            CoordinationError: The outcome is not known, because the history has no entry of that time any more.
        """
        path = self._layout.history_entry(entry.offset)
        config, node = await asyncio.gather(self._session.get(self._layout.config), self._session.get(path))
        if node is not None:
            with suppress(ProtocolError):
                return ConfigChange.parse(node.data, path).uid == entry.uid
        elif config is not None and parse_config_offset(config.data, config_path := self._layout.config) >= (
            entry.offset + MOST_KEPT
        ):
            raise CoordinationError(
                f"the outcome of a change of connector {entry.connector!r} is not known: the history in {config_path}"
                " has no entry of that time any more"
            )
        return False


def _encoded(connector: StoredConnector, offset: int) -> bytes:
    data = replace(connector, offset=offset).encode()
    if len(data) > LARGEST_BYTES:
        raise ConfigError(
            f"connector {connector.name!r}: its settings and those of its {len(connector.tasks or ())} tasks take"
            f" {len(data)} bytes; at most {LARGEST_BYTES} fit into a znode: use fewer tasks, or shorter settings"
        )
    return data


def _existing(connector: str, base: _Base) -> StoredConnector:
    """Return the stored connector; raise an error if the connector does not exist or its znode has garbage."""
    if not base.exists:
        raise UnknownConnectorError(f"connector {connector!r} does not exist")
    if base.stored is None:
        raise ConfigError(f"connector {connector!r} is unreadable: {base.problem}; replace its settings, or delete it")
    return base.stored


def _changed_task_keys(old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    none: Mapping[str, str] = {}
    pairs = zip_longest(old, new, fillvalue=none)
    return tuple(sorted({key for before, after in pairs for key in changed_keys(before, after)})[:MOST_KEYS])


def entry_of(name: str, path: str, data: bytes, czxid: int) -> ConnectorEntry:
    """
    Return a connector's configuration from the data of its znode.

    For garbage, return an entry without settings, whose ``problem`` tells the user how to repair the connector.
    """
    try:
        stored = StoredConnector.parse(name, data, path)
    except ProtocolError as error:
        problem = f"{error}; replace its settings ({_REPLACE}), or delete it"
        return ConnectorEntry(config={}, problem=problem, created=czxid)
    return ConnectorEntry(stored.config, stored.target, stored.tasks, created=czxid)


def _identity(node: Node | None) -> tuple[int, int] | None:
    """Return the zxids that identify the present state of a znode, or None if the znode does not exist."""
    return None if node is None else (node.czxid, node.mzxid)
