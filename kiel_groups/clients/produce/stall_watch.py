"""Telling that records wait for a broker that stores none: one line when that begins, one when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from kiel_groups.clients.produce.partition_queue import PartitionQueue
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted, some

__all__ = ["STALLED_AFTER_S", "StallWatch"]

log = logging.getLogger(__name__)

#: How long a partition's first batch is on its way, its further tries included, before that is worth a warning.
STALLED_AFTER_S = 10.0


class StallWatch:
    """
    Looks at the producer's partitions while batches are on their way; belongs to one event loop.

    A stall lasts from the first partition that waits for ``STALLED_AFTER_S`` until no partition does. Each retry of a
    batch is logged at INFO only, since most heal at once; a broker that is frozen does not even fail for half a minute.

    Args:
        queues: All partitions of the producer, as they are at any time.
        metrics: Has how many partitions wait so long (``produce_stalled``).
    """

    def __init__(self, queues: Collection[PartitionQueue], metrics: Metrics) -> None:
        self._queues = queues
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        #: Since when the oldest batch of the stall that was told has been on its way, on the loop's clock.
        self._stalled_since_s: float | None = None

    def sent(self, queue: PartitionQueue) -> None:
        """The first batch of the partition is on its way, for the first time or once more."""
        batch, loop = queue.batches[0], asyncio.get_running_loop()
        if batch.sent_s is None:
            batch.sent_s = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(STALLED_AFTER_S, self._look)

    def settled(self) -> None:
        """A batch has an outcome."""
        if self._stalled_since_s is not None:
            self._look()

    def close(self) -> None:
        """Say nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._stalled_since_s = None
        self._metrics.gauge("produce_stalled", 0)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        on_their_way = {queue: sent_s for queue in self._queues if (sent_s := queue.sent_s) is not None}
        before_s = loop.time() - STALLED_AFTER_S
        stalled = {queue: sent_s for queue, sent_s in on_their_way.items() if sent_s <= before_s}
        self._tell(stalled, loop.time())
        # Those that are late already end their stall by an outcome, those that are not become late at a time.
        next_s = min((sent_s for queue, sent_s in on_their_way.items() if queue not in stalled), default=None)
        self._timer = None if next_s is None else loop.call_at(next_s + STALLED_AFTER_S, self._look)

    def _tell(self, stalled: dict[PartitionQueue, float], now_s: float) -> None:
        self._metrics.gauge("produce_stalled", len(stalled))
        if stalled and self._stalled_since_s is None:
            first = min(stalled, key=stalled.__getitem__)
            self._stalled_since_s = stalled[first]
            waiting = sum(queue.added - queue.settled for queue in stalled)
            reason = first.batches[0].failure
            log.warning(
                "no broker has stored records for %s for %.0f s: %s%s",
                some([queue.topic_partition for queue in sorted(stalled, key=stalled.__getitem__)], 1),
                now_s - stalled[first],
                counted(waiting, "record waits", "records wait"),
                f", the last try failed: {reason}; trying again" if reason is not None else " for the first answer",
            )
        elif not stalled and self._stalled_since_s is not None:
            log.warning("no record waits for a broker for long any more, after %.1f s", now_s - self._stalled_since_s)
            self._stalled_since_s = None
