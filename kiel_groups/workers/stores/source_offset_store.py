"""
Read and write source offsets: how far source tasks have read their sources.

A write requires the worker's znode and the owner znode of the task. So a former owner cannot change the offsets of its
successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from kiel_groups.errors import ClaimLostError, CoordinationError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Check, Create, Failure, Operation, Put, chunks
from kiel_groups.group.znodes.worker_contents import JsonObject, SourceOffset, partition_digest
from kiel_groups.workers.values import TaskId
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session

#: Pairs of a source partition and its offset.
SourceOffsets: TypeAlias = Sequence[tuple[JsonObject, JsonObject]]

#: Refusals after which the znodes are read and written again: an operator has deleted or created some.
_OUTDATED = (Failure.NODE_EXISTS, Failure.NO_NODE)


class SourceOffsetStore:
    """
    Reads and writes the source offsets of one worker group on a worker's session.

    ``writer`` writes on the session. Each write checks that the worker's znode exists.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout

    async def read(self, connector: str, partition: JsonObject) -> JsonObject | None:
        """
        Return the stored offset of a source partition, or None if no offset is stored.

        Raises:
            ConfigError: The partition is no JSON object.
            ProtocolError: The znode of the offset has garbage.
            SessionLostError: The session is over.
        """
        path = self._layout.source_offset(connector, partition_digest(partition))
        node = await self._session.get(path)
        return None if node is None else SourceOffset.parse(node.data, path).offset

    async def write(self, task: TaskId, offsets: SourceOffsets) -> None:
        """
        Store offsets of a task that this worker has claimed.

        Many offsets take several transactions, so some of them may be stored if the call fails. A task makes one call
        at a time: if an answer is lost, calls that overlap could be executed in another order.

        Args:
            task: The task.
            offsets: The offsets to store. Each offset must fit into a znode. Of several offsets for one partition, the
                last offset is stored.

        Raises:
            ClaimLostError: The owner znode of the task does not exist.
            ConfigError: A partition or an offset is no JSON object.
            AuthorizationError: ZooKeeper refuses a write because of an ACL.
            SessionLostError: The session is over.
        """
        waiting = _data_by_digest(offsets)
        claim = Check(self._layout.owner(*task))

        def on_refused(_: int, operation: Operation, failure: Failure) -> None:
            if operation is claim:
                raise ClaimLostError(f"task {task}: its claim {claim.path} is gone; its offsets are not stored")
            if failure not in _OUTDATED:
                raise CoordinationError(f"ZooKeeper refused to write {operation.path}: {failure.name}")

        while waiting:
            operations = await self._operations(task.connector, waiting)
            items = {number: (claim, *chunk) for number, chunk in enumerate(chunks(operations))}
            outcome = await self._writer.write(items, on_refused)
            for number in outcome.done:
                for operation in items[number][1:]:
                    waiting.pop(operation.path.rpartition("/")[2])

    async def operations(self, task: TaskId, offsets: SourceOffsets) -> tuple[Operation, ...]:
        """
        Return the operations that store offsets. The caller adds the operations to a transaction, such as the
        transaction of a release.

        If the connector's folder is missing, this method creates it. The transaction must check or delete the owner
        znode of the task. If ZooKeeper refuses the transaction because a znode of an offset was created or deleted
        meanwhile, or if the operations do not fit into one transaction, the caller must call ``write`` instead.
        """
        return await self._operations(task.connector, _data_by_digest(offsets))

    async def _operations(self, connector: str, data: dict[str, bytes]) -> tuple[Operation, ...]:
        """Create the connector's folder if it is missing; return the operations that store data, given by digest."""
        layout = self._layout
        folder = layout.connector_offsets(connector)
        paths = [layout.source_offset(connector, digest) for digest in data]
        above, nodes = await asyncio.gather(self._session.exists(folder), self._session.exists_many(paths))
        if above is None:
            await self._session.ensure([folder])
        return tuple(
            Create(path, written) if node is None else Put(path, written)
            for path, node, written in zip(paths, nodes, data.values(), strict=True)
        )


def _data_by_digest(offsets: SourceOffsets) -> dict[str, bytes]:
    """Return the data of the znode of each source partition, by digest. The last offset of each partition is used."""
    return {partition_digest(partition): SourceOffset(partition, offset).encode() for partition, offset in offsets}
