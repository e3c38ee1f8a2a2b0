"""Read the configuration of a worker group: at each join, and until it has an offset that another worker has seen."""

from __future__ import annotations

import asyncio
import logging
import math

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
        self._is_failing = False

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
        await self._read(current=current)
        return self.newest

    async def _read(self, *, current: bool) -> bool:
        """Read the configuration, and return whether it could be read."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                self.newest = await self._source.snapshot(current=current)
        except (KielGroupsError, TimeoutError) as error:
            self._metrics.count("config_reads_failed")
            why = str(error) or f"no answer within {_READ_LIMIT_S:g} s"
            level = logging.DEBUG if self._is_failing else logging.WARNING
            log.log(level, "group %s: the configuration could not be read: %s", self._group, why)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def readable(self, offset: int, limit_s: float = math.inf) -> bool:
        """
        Read the configuration at least once, and until it has this offset; return False if that takes too long.

        A read that has begun before the limit is completed.
        """
        began_s, pauses = self._runtime.boot_time_s(), self._new_pauses()
        while not (await self._read(current=True) and self.has(offset)):
            if self._runtime.boot_time_s() - began_s >= limit_s:
                return False
            await asyncio.sleep(pauses.next_s())
        return True

    def _new_pauses(self) -> Backoff:
        return Backoff(_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))

    async def reach(self, offset: int, limit_s: float) -> bool:
        """
        Read the configuration until it has this offset; report once if that takes long.

        Return False if it does not have the offset after ``limit_s``. A read that has begun before is completed.
        """
        began_s, is_reported = self._runtime.boot_time_s(), False
        pauses = self._new_pauses()
        while not self.has(offset):
            await self.fresh(current=True)
            if self.has(offset):
                break
            passed_s = self._runtime.boot_time_s() - began_s
            if passed_s >= limit_s:
                return False
            if not is_reported and passed_s >= _READ_LIMIT_S:
                is_reported = True
                log.error(
                    "group %s: this worker starts none of its assigned work: its configuration is still behind offset"
                    " %d, by which the work was assigned",
                    self._group,
                    offset,
                )
            await asyncio.sleep(pauses.next_s())
        return True
