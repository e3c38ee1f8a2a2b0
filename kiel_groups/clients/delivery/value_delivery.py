"""
Deliver the values of a topic to callers of ``consume()``, and track which values the application has finished.

A topic's values are *in flight* until the coroutine that received them asks for the topic again. After that, they are
finished. Automatic commits store only the offsets of finished values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.owned_records import OwnedBatch, OwnedRecords
from kiel_groups.clients.delivery.values_in_flight import UNCLAIMED_S, Span, ValuesInFlight
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, PartitionBatch, TopicPartition

__all__ = ["ValueDelivery"]

log = logging.getLogger(__name__)


class ValueDelivery:
    """Delivers the owned records by topic, as values. It owns the values in flight of all calls of ``consume()``."""

    def __init__(self, owned: OwnedRecords, metrics: Metrics) -> None:
        self._owned = owned
        self._in_flight = owned.in_flight
        self._topics = owned.in_flight.topics
        self._metrics = metrics

    def take(self, topic: str, most_bytes: int, call: ConsumeCall) -> Batch:
        """
        Return buffered values of a topic, about ``most_bytes`` as fetched, or [] if none or if the gate is not open.

        Raises:
            KielGroupsError: There are no values, and a partition cannot be read or the start position is unknown.
            ConfigError: The consumer was iterated over, so it could not know which of its records are finished.
        """
        if self._owned.iterated:
            raise ConfigError("the consumer is iterated over already; iterate over it or call consume(), not both")
        self._in_flight.last_call = call
        parts: list[PartitionBatch] = []
        spans: dict[TopicPartition, Span] = {}
        room = most_bytes
        while room > 0 and (batch := self._poll(topic, or_raise=not spans)) is not None:
            fetched, state = batch
            tp, records = fetched.topic_partition, fetched.records
            parts.append(self._owned.deserializer.part(tp, records, state.token))
            start = spans[tp].start if tp in spans else records[0].offset
            state.position = records[-1].offset + 1
            spans[tp] = Span(state, start, state.position)
            room -= fetched.size_bytes
        if spans:
            self._topics.setdefault(topic, ValuesInFlight()).add(spans, call, self._owned.boot_time_s())
            if not any(part.values for part in parts):
                # The deserializer failed on all values, so none are in flight: finish them without a receiver.
                call.received = True
                self.finish([topic], {call})
        return Batch(part for part in parts if part.values)

    def _poll(self, topic: str, *, or_raise: bool) -> OwnedBatch | None:
        if not self._owned.may_deliver():
            return None
        try:
            if or_raise:
                self._owned.raise_refused(topic)
            return self._owned.poll(topic)
        except KielGroupsError:
            if or_raise:
                raise
            return None

    def finish(self, topics: Iterable[str] | None = None, calls: Collection[ConsumeCall] | None = None) -> bool:
        """
        Finish values that a caller has received, and return whether values of these topics were in flight.

        Also finish values whose coroutine has asked again or ended, and redeliver values that no caller will receive.

        Args:
            topics: The topics of the values. None means all topics.
            calls: The calls that returned the values. None means all calls.
        """
        asked = self._topics.keys() & (self._topics if topics is None else set(topics))
        for topic in asked:
            self._topics[topic].finish(calls)
            self._settle(topic)
        return bool(asked)

    def redeliver_unclaimed(self, topic: str) -> bool:
        """Redeliver values of a topic that no caller will receive. Return whether a caller may still receive values."""
        return topic in self._topics and self._settle(topic)

    def _settle(self, topic: str, now_s: float | None = None, *, finishes: bool = True) -> bool:
        values, now_s = self._topics[topic], self._owned.boot_time_s() if now_s is None else now_s
        for partition, start in values.settle(now_s, finishes=finishes).items():
            self._redeliver(partition, start)
        if not values.calls:
            del self._topics[topic]
        self._owned.progress.notify()
        return values.is_awaited(now_s)

    def _redeliver(self, partition: TopicPartition, start: int) -> None:
        state = self._owned.claim_of(partition)
        if state is not None:
            log.info("%s: delivering again from offset %d: no caller received the values", partition, start)
            self._metrics.count("values_unclaimed")
            state.position = start
            self._owned.fetch([partition])

    async def all_finished(self) -> None:
        """Wait until no values are in flight."""
        await self._owned.progress.until(lambda: not self._topics)

    def drop(self, calls: Collection[ConsumeCall] | None) -> None:
        """Stop tracking topics whose values all come from these calls (None: all). The values are delivered again."""
        for topic, values in list(self._topics.items()):
            if calls is None or values.calls <= set(calls):
                del self._topics[topic]
        self._owned.progress.notify()

    async def drop_unclaimed(self, topics: Collection[str]) -> None:
        """Regularly drop values of these topics that no caller will receive, so that a drain does not wait for them."""
        while True:
            now_s = self._owned.boot_time_s()  # Read before the pause: a blocked loop also delays the callers.
            await asyncio.sleep(UNCLAIMED_S)
            for topic in self._topics.keys() & topics:
                self._settle(topic, now_s, finishes=False)
