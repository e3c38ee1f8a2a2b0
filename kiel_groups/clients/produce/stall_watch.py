"""Report records that wait for a broker which stores none: a warning when that begins, another one when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from kiel_groups.clients.produce.partition_queue import PartitionQueue
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted, some

__all__ = ["STALLED_AFTER_S", "StallWatch"]

log = logging.getLogger(__name__)

#: How long a partition's records wait, further tries included, before that is worth a warning.
STALLED_AFTER_S = 10.0


class StallWatch:
    """
    Looks at the producer's partitions while batches are on their way; belongs to one event loop.

    A partition stalls when its records have waited for ``STALLED_AFTER_S`` and no broker has stored one since. It
    stalls until a broker stores one: records that are given up do not end that. Retries are logged at INFO only, since
    most succeed at once, and a request to a frozen broker does not fail for half a minute.

    Args:
        queues: All partitions of the producer, as they are at any time.
        metrics: Has how many partitions stall (``produce_stalled``).
    """

    def __init__(self, queues: Collection[PartitionQueue], metrics: Metrics) -> None:
        self._queues = queues
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        #: The partitions that stall, and since when the longest has waited, on the loop's clock.
        self._stalled: set[PartitionQueue] = set()
        self._since_s = 0.0

    def sent(self, queue: PartitionQueue) -> None:
        """The partition's first batch leaves for a broker, for the first time or once more."""
        loop = asyncio.get_running_loop()
        if queue.waits_since_s is None:
            queue.waits_since_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_at(queue.waits_since_s + STALLED_AFTER_S, self._look)

    def stored(self, queue: PartitionQueue) -> None:
        """A broker has stored the partition's first batch."""
        queue.waits_since_s = None
        if self._stalled:
            self._stalled.discard(queue)
            self._report_end()

    def given_up(self, queue: PartitionQueue) -> None:
        """The partition's first batch has failed for good."""
        if queue not in self._stalled:
            # Such as a record that is too large: that says nothing about those that follow.
            queue.waits_since_s = None

    def close(self) -> None:
        """Report nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._stalled.clear()
        self._metrics.gauge("produce_stalled", 0)

    def _look(self) -> None:
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
            # Partitions that stall one after the other are reported together.
            pause_s = STALLED_AFTER_S if late else 0.0
            self._timer = loop.call_at(max(next_s + STALLED_AFTER_S, loop.time() + pause_s), self._look)

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
