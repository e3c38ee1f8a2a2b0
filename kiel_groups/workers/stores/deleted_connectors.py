"""Delete what connectors leave in ZooKeeper when they are deleted: statuses, and folders of owner znodes."""

from __future__ import annotations

import logging

from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Check, Delete, Failure, Operation
from kiel_groups.group.znodes.worker_layout import WorkerLayout

__all__ = ["DeletedConnectors"]

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
