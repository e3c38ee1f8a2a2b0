"""Partitions whose start position is not known yet: their leaders are asked again until it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import find_offsets
from kiel_groups.errors import KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some

__all__ = ["StartLookup"]

log = logging.getLogger(__name__)

#: How often the partitions that are still missing are logged, in seconds.
LOG_INTERVAL_S = 60.0

#: A log line names so many partitions at most.
_MOST_NAMES = 10


class StartLookup:
    """
    Looks up the start positions of some partitions in the background, with backoff while leaders are missing.

    The gauge ``partitions_unopened`` counts those that are missing. A partition without a leader delays no other.

    Args:
        cluster: Names the leaders.
        metrics: Has the gauge.
        assign: Called with each start position that is found.
    """

    def __init__(
        self, cluster: ClusterMetadata, metrics: Metrics, assign: Callable[[Mapping[TopicPartition, int]], None]
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._assign = assign
        #: The time to ask each leader for: see ``offset_lookup.list_offsets``.
        self._times: dict[TopicPartition, int] = {}
        self._asking: asyncio.Task[None] | None = None
        self._logged_s = float("-inf")

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._times

    def add(self, times: Mapping[TopicPartition, int]) -> None:
        """Look up where these partitions start, by partition: the time to ask for."""
        self._times |= times
        if self._times and (self._asking is None or self._asking.done()):
            self._asking = spawn(self._ask(), "look-up of start positions")

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        attempt = 0
        while self._times:
            failures = await self._ask_once()
            self._metrics.gauge("partitions_unopened", len(self._times))
            if failures:
                attempt += 1
                self._tell(failures)
                await asyncio.sleep(self._cluster.delay_s(attempt))

    async def _ask_once(self) -> dict[TopicPartition, KielGroupsError]:
        failures: dict[TopicPartition, KielGroupsError] = {}
        for at in set(self._times.values()):
            offsets = await find_offsets(self._cluster, [tp for tp, each in self._times.items() if each == at], at)
            for partition in offsets.found:
                del self._times[partition]
            self._assign(offsets.found)
            failures |= offsets.failures
        return failures

    def _tell(self, failures: Mapping[TopicPartition, KielGroupsError]) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            log.warning(
                "the start positions of %s (%s) are not known yet: %s; the brokers are asked again, and the"
                " other partitions are read",
                counted(failures, "partition"),
                some(sorted(failures), most=_MOST_NAMES),
                failures[min(failures)],
            )
