"""
What a simulated consumer fetches, and the resets of positions that are not in their logs.

A fetch transfers no records here: the application reads the simulated log. ``clients/delivery/position_reset.py`` runs
unchanged, on brokers that answer late or have no leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kiel_groups.backoff import Backoff
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers
from kiel_groups.clients.net.offset_lookup import LogRange
from kiel_groups.errors import BrokerError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition
from kiel_groups.wire.list_offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Fetches"]


class _LinearBackoff(Backoff):
    """Delays in steps of 0.1 s without jitter, up to 2 s. Seeds of known failures depend on them."""

    def delay_s(self, failures: int) -> float:
        return min(0.1 * failures, 2.0)


class Fetches:
    """
    The fetches of a consumer, which has its member already.

    Args:
        consumer: Its records are waited for and cut off, and its positions are reset.
        subscription: The positions of the consumer.
    """

    def __init__(self, consumer: Consumer, subscription: SubscriptionState) -> None:
        self._consumer = consumer
        self._world = consumer.world
        self._offsets = subscription.offsets
        #: Partitions whose logs do not have this consumer's position, until the position is reset.
        self.resets: set[TopicPartition] = set()
        #: A unique object for each partition that is fetched; fetching again from another position gets a new one.
        self._fetches: dict[TopicPartition, object] = {}
        self._position_reset = PositionReset(
            self._world.reset,  # type: ignore[arg-type]
            ResetBrokers(self._leader_of, self._log_range, self._new_backoff),
            subscription,
            consumer,  # type: ignore[arg-type]
            consumer.member,
            consumer.metrics,
        )

    def start(self, partition: TopicPartition) -> None:
        self._fetches[partition] = object()

    def stop(self, partition: TopicPartition) -> None:
        """End a fetch, and its reset."""
        self._fetches.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """End a fetch. The partition has no reset any more."""
        self.stop(partition)
        self.resets.discard(partition)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        fetch = self._fetches.get(partition)
        return lambda: fetch is not None and self._fetches.get(partition) is fetch

    def check_position(self, partition: TopicPartition) -> None:
        """Start a reset of the position if the log does not have it."""
        state = self._offsets.of(partition)
        if state is None or partition in self.resets:
            return
        if not self._world.logs[partition].has(state.position):
            self.resets.add(partition)
            self._consumer.process.start(self._reset(partition, self._fetches[partition]))

    async def _reset(self, partition: TopicPartition, fetch: object) -> None:
        state = self._offsets.of(partition)
        while state is not None and self._fetches.get(partition) is fetch:
            with suppress(KielGroupsError):
                stored = await self._position_reset(partition, state.position)
                if stored is not None:
                    self._world.history.record_reset(self._consumer, partition, stored)
                    self._consumer.update_epoch(partition)
            if self._fetches.get(partition) is fetch and self._world.logs[partition].has(state.position):
                self.resets.discard(partition)
                return
            await asyncio.sleep(self._world.timeline.random.uniform(0.01, 0.5))

    # The brokers of resets

    def _leader_of(self, partition: TopicPartition) -> int | None:
        return 0 if self._world.has_leader(partition) else None

    def _new_backoff(self) -> Backoff:
        return _LinearBackoff(0.1, 2.0)

    async def _log_range(self, partition: TopicPartition) -> LogRange:
        start, end = await asyncio.gather(self._log_offset(partition, EARLIEST), self._log_offset(partition, LATEST))
        return LogRange(start, end)

    async def _log_offset(self, partition: TopicPartition, at: int) -> int:
        await asyncio.sleep(self._world.timeline.random.uniform(0.001, 0.05))
        if not self._world.has_leader(partition):
            raise BrokerError(f"no leader of {partition}")
        log = self._world.logs[partition]
        return log.start if at == EARLIEST else log.end
