"""Read the configuration of a worker group: at each join, and until it has an offset that another worker has seen."""

from __future__ import annotations

import asyncio
import logging

from kiel_groups.backoff import Backoff
from kiel_groups.errors import KielGroupsError
from kiel_groups.workers.coordination.worker_interfaces import SnapshotSource, WorkerContext
from kiel_groups.workers.values.config_snapshot import ConfigSnapshot

__all__ = ["ConfigReads"]

log = logging.getLogger(__name__)

#: How long one read may take, and after how long a worker that is behind says so, in seconds. Kafka Connect's
#: ``worker.sync.timeout.ms``, which is shorter than any session timeout that brokers allow.
_READ_LIMIT_S = 3.0

#: The first and the longest pause between two reads of a worker that is behind, in seconds.
_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S = 0.05, 1.0


class ConfigReads:
    """
    The configuration as this worker has read it.

    Args:
        context: The worker.
        source: The store of the configuration.
    """

    def __init__(self, context: WorkerContext, source: SnapshotSource) -> None:
        self._group = context.group
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._source = source
        #: The newest snapshot; None if none was read yet.
        self.newest: ConfigSnapshot | None = None

    def has(self, offset: int) -> bool:
        """Return whether the newest snapshot contains the changes up to this offset."""
        return self.newest is not None and self.newest.offset >= offset

    async def fresh(self, *, current: bool = False) -> ConfigSnapshot | None:
        """
        Read the configuration. If it cannot be read, return the newest snapshot.

        A worker without ZooKeeper must not fail here: it would leave the group, and others would wait for its join.

        Args:
            current: Whether to read past a server that lags behind, which takes longer.
        """
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                self.newest = await self._source.snapshot(current=current)
        except (KielGroupsError, TimeoutError) as error:
            self._metrics.count("config_reads_failed")
            why = str(error) or f"no answer within {_READ_LIMIT_S:g} s"
            log.warning("group %s: the configuration could not be read: %s", self._group, why)
        return self.newest

    async def reach(self, offset: int) -> None:
        """Read the configuration until it has this offset; report once if that takes long."""
        began_s, is_reported = self._runtime.boot_time_s(), False
        pauses = Backoff(_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))
        while not self.has(offset):
            await self.fresh(current=True)
            if self.has(offset):
                return
            if not is_reported and self._runtime.boot_time_s() - began_s >= _READ_LIMIT_S:
                is_reported = True
                log.error(
                    "group %s: this worker starts none of its assigned work: its configuration is still behind offset"
                    " %d, by which the work was assigned",
                    self._group,
                    offset,
                )
            await asyncio.sleep(pauses.next_s())
