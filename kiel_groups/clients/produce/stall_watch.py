"""Warn when no broker stores the records of a partition, and report when brokers store them again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from kiel_groups.clients.produce.partition_queue import PartitionQueue
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted, some

__all__ = ["STALLED_AFTER_S", "StallWatch"]

log = logging.getLogger(__name__)

#: How long a partition's records may wait, including retries, before the warning, in seconds.
STALLED_AFTER_S = 10.0


class StallWatch:
    """
    Checks the producer's partitions while batches are in flight, on one event loop.

    A partition is stalled when its records have waited for ``STALLED_AFTER_S`` and no broker has stored one since. The
    partition stays stalled until a broker stores one of its records, even if records are given up. Retries are logged
    at INFO only, since most succeed at once, and a request to a frozen broker does not fail for half a minute.

    Args:
        queues: A live view of all partitions of the producer.
        metrics: Has the gauge of stalled partitions (``produce_stalled``).
    """

    def __init__(self, queues: Collection[PartitionQueue], metrics: Metrics) -> None:
        self._queues = queues
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        #: The stalled partitions, and since when the first stalled partition has waited, on the loop's clock.
        self._stalled: set[PartitionQueue] = set()
        self._since_s = 0.0

    def sent(self, queue: PartitionQueue) -> None:
        """Note that the partition's first batch is sent, for the first time or again."""
        loop = asyncio.get_running_loop()
        if queue.waits_since_s is None:
            queue.waits_since_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_at(queue.waits_since_s + STALLED_AFTER_S, self._check)

    def stored(self, queue: PartitionQueue) -> None:
        """Note that a broker has stored the partition's first batch."""
        queue.waits_since_s = None
        if self._stalled:
            self._stalled.discard(queue)
            self._report_end()

    def given_up(self, queue: PartitionQueue) -> None:
        """Note that the partition's first batch has failed for good."""
        if queue not in self._stalled:
            # The cause may be the batch itself, such as a record that is too large; the next batches may be stored.
            queue.waits_since_s = None

    def close(self) -> None:
        """Stop reporting, and reset the gauge."""
        if self._timer is not None:
            self._timer.cancel()
        self._stalled.clear()
        self._metrics.gauge("produce_stalled", 0)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = {queue: queue.waits_since_s for queue in self._queues if queue.busy and queue not in self._stalled}
        since_s = {queue: at_s for queue, at_s in waiting.items() if at_s is not None}
        late = [queue for queue, at_s in since_s.items() if at_s + STALLED_AFTER_S <= loop.time()]
        if late:
            self._report(sorted(late, key=since_s.__getitem__), loop.time())
        next_s = min((at_s for queue, at_s in since_s.items() if queue not in self._stalled), default=None)
        if next_s is None:
            self._timer = None
        else:
            # Pause after a report, so that partitions that stall one after the other share the next report.
            pause_s = STALLED_AFTER_S if late else 0.0
            self._timer = loop.call_at(max(next_s + STALLED_AFTER_S, loop.time() + pause_s), self._check)

    def _report(self, late: list[PartitionQueue], now_s: float) -> None:
        since_s = late[0].waits_since_s or now_s
        self._since_s = min(self._since_s, since_s) if self._stalled else since_s
        self._stalled.update(late)
        self._metrics.gauge("produce_stalled", len(self._stalled))
        reason = late[0].batches[0].failure
        log.warning(
            "no broker has stored a record of %s for %.0f s; %s%s",
            some(queue.topic_partition for queue in late),
            now_s - since_s,
            counted(sum(queue.added - queue.settled for queue in late), "record waits", "records wait"),
            f", and the last try failed: {reason}; trying again" if reason is not None else " for the first answer",
        )

    def _report_end(self) -> None:
        self._metrics.gauge("produce_stalled", len(self._stalled))
        if not self._stalled:
            now_s = asyncio.get_running_loop().time()
            log.warning("brokers store the records of all partitions again, after %.1f s", now_s - self._since_s)
