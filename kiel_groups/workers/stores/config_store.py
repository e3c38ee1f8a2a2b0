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
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from kiel_groups.errors import (
    ClaimLostError,
    ConfigError,
    ConnectorExistsError,
    CoordinationError,
    ProtocolError,
    SessionLostError,
    UnknownConnectorError,
)
from kiel_groups.group.znodes.layout import WorkerLayout, history_offset_of
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
    changed_keys,
    check_texts,
    encode_config_offset,
    parse_config_offset,
)
from kiel_groups.workers.stores.config_reader import ConfigReader
from kiel_groups.workers.values import ConfigSnapshot, TargetState
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session

__all__ = [
    "DeletedConnectors",
    "MOST_KEPT",
    "ConfigStore",
]

log = logging.getLogger(__name__)


class DeletedConnectors:
    """
    The deleted connectors of one worker group, on a worker's session.

    ``writer`` writes on that session with the worker's proof. Source offsets of deleted connectors stay.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout

    async def clean_up(self) -> None:
        """
        Delete the statuses of connectors that do not exist, and their empty folders of owner znodes.

        Any worker may call this at any time, also after an earlier call was interrupted. Each deletion requires that
        the configuration has not changed since it was read, so a connector that is created again keeps its statuses.

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
        Return the transactions that delete what deleted connectors have left.

        The key of each one is the folder that it deletes or empties, and the number of deletions in that folder before.
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
                # Owner znodes are their owners' to delete. A folder with one is refused as not empty.
                deletions: list[Operation] = [Delete(path)]
            else:
                deletions = [*(Delete(f"{path}/{name}") for name in children or ()), Delete(path)]
            for start in range(0, len(deletions), MOST_OPERATIONS // 2):
                items[path, start] = (unchanged, *deletions[start : start + MOST_OPERATIONS // 2])
        return items


#: The changes that the history keeps.
MOST_KEPT = 100

#: The most entries of the history that one change deletes. Usually it is one.
_MOST_PRUNED = 50

#: Refusals after which a change is decided again, on what ZooKeeper has by then.
_OUTDATED = (Failure.BAD_VERSION, Failure.NODE_EXISTS, Failure.NO_NODE)


class _Base(NamedTuple):
    """
    What a change is based on.

    ``next_offset`` is the offset that the change produces. ``connector_version`` is None if the connector does not
    exist. ``stored`` is None if it does not exist, or has garbage, which ``problem`` describes.
    """

    offset: int
    next_offset: int
    version: int
    kept: list[int]
    connector_version: int | None
    stored: StoredConnector | None
    problem: str


class _Edit(NamedTuple):
    """The write of one connector, and what the history says about it."""

    operation: Operation
    what: str
    keys: tuple[str, ...] = ()


_Decide = Callable[[_Base], _Edit | None]

#: Raises an error if the settings that are about to be replaced are not those that the caller expects.
CheckStored: TypeAlias = Callable[[Mapping[str, str] | None], None]


class ConfigStore:
    """
    The configuration of one worker group, on a worker's session.

    Args:
        session: The worker's session.
        writer: Writes on that session with the worker's proof.
        layout: The paths of the group's workers.
        worker_id: The id of this worker, for the history.
        runtime: The clock and the unique names of history entries.
    """

    def __init__(
        self, session: Session, writer: FencedWriter, layout: WorkerLayout, worker_id: str, runtime: Runtime
    ) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout
        self._worker_id = worker_id
        self._runtime = runtime
        self._reader = ConfigReader(session, layout)
        self._deleted = DeletedConnectors(session, writer, layout)

    # Reads

    async def prepare(self) -> None:
        """Create the folders of all stores where they are missing; to be called before anything is stored."""
        await self._session.ensure(self._layout.folders)

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read all connectors at one configuration offset; see ``ConfigReader.snapshot``.

        With ``current``, the snapshot has all changes that any worker has completed before this call. That takes one
        write through the quorum.
        """
        if current:
            await self._writer.prove()
        return await self._reader.snapshot()

    async def follow(self, on_snapshot: Callable[[ConfigSnapshot], None]) -> None:
        """
        Call a function with a snapshot now, and with a newer one after each change, until the caller cancels this.

        ``ConfigReader.follow`` says more.
        """
        await self._reader.follow(on_snapshot)

    async def history(self) -> list[ConfigChange]:
        """Return the latest changes, at most ``MOST_KEPT``, in ascending order."""
        return await self._reader.history()

    # Changes

    async def put_connector(
        self, name: str, config: Mapping[str, str], *, is_new: bool = False, check: CheckStored = lambda stored: None
    ) -> int:
        """
        Create a connector, or replace its settings. Its tasks and its target state stay as they are.

        A connector whose znode has garbage is replaced by one without tasks.

        Args:
            name: The connector.
            config: Its settings.
            is_new: Whether the connector must not exist yet.
            check: Called with the settings that the write replaces, None if there is no connector. The write is refused
                if others are stored by then, and this is called again. What it raises ends the change.

        Returns:
            The configuration offset of the change.

        Raises:
            ConnectorExistsError: ``is_new``, and the connector exists.
            ConfigError: The name is not legal, a setting is no text, or the connector is too large for a znode.
            SessionLostError: The session is over.
        """
        settings = check_texts(config, f"connector {name!r:.80}")
        path = self._layout.connector(name)

        def decide(base: _Base) -> _Edit:
            if base.connector_version is not None and is_new:
                raise ConnectorExistsError(
                    f"connector {name!r} already exists; change its settings, or delete it first"
                )
            old = base.stored or StoredConnector(name=name, config={})
            check(None if base.connector_version is None else old.config)
            data = _encoded(
                StoredConnector(name=name, config=settings, target=old.target, tasks=old.tasks, offset=base.next_offset)
            )
            keys = changed_keys(old.config, settings)
            if base.connector_version is None:
                return _Edit(Create(path, data), "created", keys)
            return _Edit(Put(path, data, base.connector_version), "configured", keys)

        return await self._change(name, decide)

    async def put_task_configs(
        self, connector: str, tasks: Sequence[Mapping[str, str]], *, claim: str | None = None
    ) -> int:
        """
        Replace the tasks of a connector. If they are equal to the stored ones, write nothing.

        Args:
            connector: The connector.
            tasks: The settings of each task, by its number.
            claim: The path of an owner znode, usually the connector's, that has to exist. Together with the worker's
                proof it fences a worker that has lost the connector.

        Returns:
            The configuration offset of the change, or the present one if nothing was written.

        Raises:
            UnknownConnectorError: The connector does not exist.
            ClaimLostError: The owner znode does not exist.
            ConfigError: The connector's znode has garbage, a setting is no text, or the connector is too large.
            SessionLostError: The session is over.
        """
        listed = tuple(check_texts(task, f"tasks of connector {connector!r:.80}") for task in tasks)

        def decide(base: _Base) -> _Edit | None:
            old = _existing(connector, base)
            if old.tasks == listed:
                return None
            changed = StoredConnector(
                name=connector, config=old.config, target=old.target, tasks=listed, offset=base.next_offset
            )
            return self._rewrite(changed, base, "tasks", _changed_task_keys(old.tasks or (), listed))

        return await self._change(connector, decide, claim)

    async def set_target_state(self, connector: str, target: TargetState) -> int:
        """
        Have the work of a connector run or pause. If that is its target already, write nothing.

        Returns:
            The configuration offset of the change, or the present one if nothing was written.

        Raises:
            UnknownConnectorError: The connector does not exist.
            ConfigError: The connector's znode has garbage.
            SessionLostError: The session is over.
        """

        def decide(base: _Base) -> _Edit | None:
            old = _existing(connector, base)
            if old.target == target:
                return None
            changed = StoredConnector(
                name=connector, config=old.config, target=target, tasks=old.tasks, offset=base.next_offset
            )
            return self._rewrite(changed, base, target.lower())

        return await self._change(connector, decide)

    async def delete_connector(self, name: str) -> int:
        """
        Delete a connector and its tasks, then their statuses.

        Its source offsets stay, as in Kafka Connect: a connector that is created again under this name resumes where
        this one ended. If the session ends before the statuses are deleted, ``clean_up`` deletes them later.

        Returns:
            The configuration offset of the change.

        Raises:
            UnknownConnectorError: The connector does not exist.
            SessionLostError: The session is over, and the connector may or may not be deleted.
        """
        path = self._layout.connector(name)

        def decide(base: _Base) -> _Edit:
            if base.connector_version is None:
                raise UnknownConnectorError(f"connector {name!r} does not exist")
            return _Edit(Delete(path, base.connector_version), "deleted")

        offset = await self._change(name, decide)
        with suppress(SessionLostError):
            await self.clean_up()
        return offset

    async def clean_up(self) -> None:
        """Delete the statuses that deleted connectors have left; see ``DeletedConnectors.clean_up``."""
        await self._deleted.clean_up()

    def _rewrite(self, changed: StoredConnector, base: _Base, what: str, keys: tuple[str, ...] = ()) -> _Edit:
        version = -1 if base.connector_version is None else base.connector_version
        return _Edit(Put(self._layout.connector(changed.name), _encoded(changed), version), what, keys)

    async def _change(self, connector: str, decide: _Decide, claim: str | None = None) -> int:
        """Decide a change and write it; decide again if another change came first. Return the resulting offset."""
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
        """Read what a change is based on, first the offset: if another change follows, the write is refused."""
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
        version = None if node is None else node.version
        return _Base(offset, next_offset, config.version, kept, version, stored, problem)

    def _operations(self, base: _Base, edit: _Edit, entry: ConfigChange) -> Iterable[Operation]:
        yield Put(self._layout.config, encode_config_offset(entry.offset), base.version)
        yield edit.operation
        yield Create(self._layout.history_entry(entry.offset), entry.encode())
        for offset in base.kept[: -(MOST_KEPT - 1)][:_MOST_PRUNED]:
            yield Delete(self._layout.history_entry(offset))

    async def _write(self, operations: tuple[Operation, ...], guards: tuple[Check, ...], entry: ConfigChange) -> bool:
        """Write a change, and return whether that is done. If not, the change has to be decided again."""
        refused: list[tuple[Operation, Failure]] = []

        def on_refused(_: str, operation: Operation, failure: Failure) -> None:
            refused.append((operation, failure))

        outcome = await self._writer.write({entry.connector: operations}, on_refused)
        if outcome.unknown:
            return await self._was_written(entry)
        for operation, failure in refused:
            if operation in guards:
                raise ClaimLostError(f"connector {entry.connector!r}: the claim {operation.path} is gone")
            if failure not in _OUTDATED:
                raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")
            if failure is Failure.NO_NODE:
                await self.prepare()
        return not refused

    async def _was_written(self, entry: ConfigChange) -> bool:
        """Return whether a change whose answer was lost has been written. The writer has proved the session since."""
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


def _encoded(connector: StoredConnector) -> bytes:
    data = connector.encode()
    if len(data) > LARGEST_BYTES:
        raise ConfigError(
            f"connector {connector.name!r}: its settings and those of its {len(connector.tasks or ())} tasks take"
            f" {len(data)} bytes; at most {LARGEST_BYTES} fit into a znode: use fewer tasks, or shorter settings"
        )
    return data


def _existing(connector: str, base: _Base) -> StoredConnector:
    """Return the stored connector, and raise ConfigError if there is none, or garbage."""
    if base.connector_version is None:
        raise UnknownConnectorError(f"connector {connector!r} does not exist")
    if base.stored is None:
        raise ConfigError(f"connector {connector!r} is unreadable: {base.problem}; replace its settings, or delete it")
    return base.stored


def _changed_task_keys(old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    none: Mapping[str, str] = {}
    pairs = zip_longest(old, new, fillvalue=none)
    return tuple(sorted({key for before, after in pairs for key in changed_keys(before, after)})[:MOST_KEYS])
