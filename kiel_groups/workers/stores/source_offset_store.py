"""
Read and write how far source tasks have read their sources.

A write requires the proof of the worker and the owner znode of its task, so a former owner cannot move the offsets of
its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from kiel_groups.errors import ClaimLostError, ConfigError, CoordinationError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import LARGEST_BYTES, Check, Create, Failure, Operation, Put, chunks
from kiel_groups.group.znodes.worker_contents import JsonObject, SourceOffset, partition_digest
from kiel_groups.workers.stores.config_reader import owner_path
from kiel_groups.workers.values import TaskId
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session

__all__ = ["SourceOffsetStore"]

#: Refusals after which the znodes are looked up and written again: an operator has deleted or created some.
_OUTDATED = (Failure.NODE_EXISTS, Failure.NO_NODE)


class SourceOffsetStore:
    """
    The source offsets of one worker group, on a worker's session.

    ``writer`` writes on that session with the worker's proof.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout

    async def read(self, connector: str, partitions: Sequence[JsonObject]) -> list[JsonObject | None]:
        """
        Read the offsets of source partitions, in their order; None for a partition without an offset.

        Raises:
            ConfigError: A partition is no JSON object.
            ProtocolError: The znode of an offset has garbage.
            SessionLostError: The session is over.
        """
        paths = [self._layout.source_offset(connector, partition_digest(partition)) for partition in partitions]
        nodes = await self._session.get_many(paths)
        return [
            None if node is None else SourceOffset.parse(node.data, path).offset
            for path, node in zip(paths, nodes, strict=True)
        ]

    async def read_all(self, connector: str) -> list[SourceOffset]:
        """
        Read all offsets of a connector, ordered by the digests of their partitions.

        Raises:
            ProtocolError: The znode of an offset has garbage.
            SessionLostError: The session is over.
        """
        names = sorted(await self._session.children(self._layout.connector_offsets(connector)) or ())
        paths = [self._layout.source_offset(connector, name) for name in names]
        nodes = await self._session.get_many(paths)
        return [
            SourceOffset.parse(node.data, path) for path, node in zip(paths, nodes, strict=True) if node is not None
        ]

    async def write(self, task: TaskId, offsets: Iterable[tuple[JsonObject, JsonObject]]) -> None:
        """
        Store offsets of a task that this worker has claimed.

        Many offsets take several transactions, so some of them may be stored if the call fails. A task makes one call
        at a time: if an answer is lost, calls that overlap could be executed in another order.

        Args:
            task: The task.
            offsets: Pairs of a source partition and its offset. Of several for one partition, the last one is stored.

        Raises:
            ClaimLostError: The owner znode of the task does not exist.
            ConfigError: A partition or an offset is no JSON object, or they do not fit into a znode together.
            SessionLostError: The session is over.
        """
        waiting = _data_by_digest(task, offsets)
        claim = Check(owner_path(self._layout, task))
        while waiting:
            operations = await self._operations(task.connector, waiting)
            items = {number: (claim, *chunk) for number, chunk in enumerate(chunks(operations))}
            refused: list[tuple[Operation, Failure]] = []

            def on_refused(
                _: int, operation: Operation, failure: Failure, refused: list[tuple[Operation, Failure]] = refused
            ) -> None:
                refused.append((operation, failure))

            outcome = await self._writer.write(items, on_refused)
            for operation, failure in refused:
                if operation is claim:
                    raise ClaimLostError(f"task {task}: its claim {claim.path} is gone; its offsets are not stored")
                if failure not in _OUTDATED:
                    raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")
            for number in outcome.done:
                for operation in items[number][1:]:
                    waiting.pop(operation.path.rpartition("/")[2])

    async def operations(self, task: TaskId, offsets: Iterable[tuple[JsonObject, JsonObject]]) -> tuple[Operation, ...]:
        """
        Return the writes of offsets for a transaction of the caller, such as the release of the task's claim.

        The transaction has to check or delete the owner znode of the task. If ZooKeeper refuses a write because a znode
        exists, or does not exist, the caller calls this again. If the offsets do not fit into one transaction, it calls
        ``write``.
        """
        return tuple(await self._operations(task.connector, _data_by_digest(task, offsets)))

    async def _operations(self, connector: str, data: dict[str, bytes]) -> list[Operation]:
        """Return the writes of the data by digest, after the connector's folder was created if it is missing."""
        layout = self._layout
        folder = layout.connector_offsets(connector)
        paths = [layout.source_offset(connector, digest) for digest in data]
        above, nodes = await asyncio.gather(self._session.exists(folder), self._session.exists_many(paths))
        if above is None:
            await self._session.ensure([folder])
        return [
            Create(path, written) if node is None else Put(path, written)
            for path, node, written in zip(paths, nodes, data.values(), strict=True)
        ]


def _data_by_digest(task: TaskId, offsets: Iterable[tuple[JsonObject, JsonObject]]) -> dict[str, bytes]:
    """Return the data of the znodes of source partitions, the last one for each."""
    found: dict[str, bytes] = {}
    for partition, offset in offsets:
        data = SourceOffset(partition, offset).encode()
        if len(data) > LARGEST_BYTES:
            raise ConfigError(
                f"task {task}: a source partition and its offset take {len(data)} bytes;"
                f" at most {LARGEST_BYTES} fit into a znode"
            )
        found[partition_digest(partition)] = data
    return found
