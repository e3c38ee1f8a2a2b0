"""Look up the start positions of partitions in the background, until all positions are known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import find_offsets
from kiel_groups.errors import KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)

#: Seconds between two log lines about the partitions that are still missing.
MISSING_LOG_INTERVAL_S = 60.0

#: The most partitions that a log line names.
_MOST_NAMES = 10


class StartLookup:
    """
    Looks up start positions by asking leaders, with backoff while positions are missing.

    The gauge ``partitions_unopened`` counts the missing positions. A partition without a leader delays no other
    partition.

    Args:
        cluster: Provides the leaders, and the connections to them.
        metrics: Receives the gauge.
        assign: Called with the start positions that were found.
    """

    def __init__(
        self, cluster: ClusterMetadata, metrics: Metrics, assign: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._assign = assign
        #: The time to look up, by partition; see ``at`` of ``offset_lookup.list_offsets``.
        self._times: dict[TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._logged_s = float("-inf")

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._times

    def add(self, times: Mapping[TopicPartition, int]) -> None:
        """Start to look up the offset of each partition at its time."""
        self._times |= times
        if self._times and (self._task is None or self._task.done()):
            self._task = spawn(self._look_up(), "look-up of start positions")

    def discard(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop looking up these partitions."""
        for partition in partitions:
            self._times.pop(partition, None)

    def close(self) -> None:
        """Stop looking up."""
        if self._task is not None:
            self._task.cancel()

    async def _look_up(self) -> None:
        backoff = self._cluster.new_backoff()
        while self._times:
            failures = await self._look_up_once()
            self._metrics.gauge("partitions_unopened", len(self._times))
            if failures:
                self._log_missing(failures)
                await asyncio.sleep(backoff.next_s())

    async def _look_up_once(self) -> dict[TopicPartition, KielGroupsError]:
        failures: dict[TopicPartition, KielGroupsError] = {}
        for at in set(self._times.values()):
            offsets = await find_offsets(self._cluster, [tp for tp, each in self._times.items() if each == at], at)
            # Others were discarded during the look-up.
            found = {
                partition: offset for partition, offset in offsets.found.items() if self._times.get(partition) == at
            }
            self.discard(found)
            self._assign(found)
            failures |= offsets.failures
        return failures

    def _log_missing(self, failures: Mapping[TopicPartition, KielGroupsError]) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= MISSING_LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning(
                "the start positions of %s (%s) are not known yet: %s; the brokers are asked again, and the"
                " other partitions are read",
                counted(failures, "partition"),
                some(sorted(failures), most=_MOST_NAMES),
                failures[min(failures)],
            )
