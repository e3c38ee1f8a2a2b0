"""
Deliver fetched records to the application, and track which records the application has finished.

A record is *in flight* from its delivery until the loop asks for the next record. A topic's values are in flight until
the coroutine that received them asks for the topic again. After that, the record or the values are finished. Automatic
commits store only the offsets of finished records and values.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from kiel_groups.clients.calls.callers import ConsumeCall, context_without_calls
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.delivery.in_flight import InFlight
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.ready_claims import ReadyClaims
from kiel_groups.clients.delivery.record_in_flight import RecordInFlight
from kiel_groups.clients.delivery.values_in_flight import UNCLAIMED_S, Span, ValuesInFlight
from kiel_groups.clients.fetch.fetcher import FetchedBatch, Fetcher
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.delivery_gate import GATE_PAUSE_S, DeliveryGate
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition

__all__ = ["RecordDelivery"]

log = logging.getLogger(__name__)

#: How long records are delivered before the event loop runs its other tasks, in seconds. Otherwise an application that
#: never awaits would delay releases and commits for as long as records are buffered.
QUANTUM_S = 0.01


class GateOwner(Protocol):
    """A member, whose ``gate`` is checked before each delivery, by its clock. Each new session has another gate."""

    gate: DeliveryGate
    runtime: Runtime


class RecordDelivery:
    """Delivers records of the owned partitions, and tracks which records are finished."""

    def __init__(
        self,
        fetcher: Fetcher,
        subscription: SubscriptionState,
        calls: ListenerCalls,
        member: GateOwner,
        deserializer: Callable[[bytes], Any] | None,
        metrics: Metrics,
    ) -> None:
        self._fetcher = fetcher
        self._subscription = subscription
        self._calls = calls
        self._member = member
        # A bound method, because each delivery of a record calls it.
        self._boot_time_s = member.runtime.boot_time_s
        self._deserializing = Deserializer(deserializer, metrics, self._boot_time_s)
        self._keeps_bytes = deserializer is None
        self._metrics = metrics
        # The batch being delivered: its partition and that partition's state (None without a batch), and its records.
        self._batch_of: TopicPartition | None = None
        self._state: PartitionOffsets | None = None
        self._records: list[Record] = []
        self._next = 0
        self._loop_record = RecordInFlight()
        self._topics: dict[str, ValuesInFlight] = {}
        # Errors of topics whose start position is unknown. Each is raised once; the member's retries add it again.
        self._refused: dict[str, KielGroupsError] = {}
        #: The last call of ``consume()``, for any topic.
        self._last_call: object = None
        self._ready = ReadyClaims(subscription, calls, self._fetch)
        # Whether a loop is active, and whether any loop ever was: a loop may have left part of a batch undelivered.
        self._looping = False
        self._iterated = False
        # The number of waiting drains and resets. The event is set when fewer records may be in flight or buffered.
        self._drains, self._progress = 0, asyncio.Event()
        self._pause_at_s = float("inf")
        self._ended = False

    # ------------------------------------------------------------------ the application's side

    def take(self) -> Record | None:
        """
        Finish the record in flight, and return the next record, or None if the caller must call ``wait`` first.

        Raises:
            KielGroupsError: A partition cannot be read, or the start position of a topic is unknown.
        """
        current = self._loop_record
        if current.record is not None:
            self.finish()
        while self._next < len(self._records) or self._next_batch():
            now_s = self._boot_time_s()
            if now_s >= self._pause_at_s or not self._member.gate.is_open(now_s):
                return None
            record = self._records[self._next]
            self._next += 1
            state = self._state
            assert state is not None
            state.position = record.offset + 1
            if not self._keeps_bytes:
                readable = self._deserializing.record(record)
                if readable is None:
                    state.finished = state.position
                    continue
                record = readable
            current.record, current.state = record, state
            return record
        return None

    def _next_batch(self) -> bool:
        """Move to the next batch of a partition that is still owned, and return whether there is such a batch."""
        if self._refused:
            raise self._refused.popitem()[1]
        if self._drains:
            self._progress.set()
        while not self._ended and (batch := self._fetcher.poll()) is not None:
            state = self._subscription.offsets.of(batch.topic_partition)
            if state is None:
                continue
            self._metrics.count("records_handed_out", len(batch.records))
            self._batch_of, self._state = batch.topic_partition, state
            self._records, self._next = batch.records, 0
            return True
        return False

    def take_topic(self, topic: str, most_bytes: int, call: ConsumeCall) -> Batch:
        """
        Return buffered values of a topic, about ``most_bytes`` as fetched, or [] if none or if the gate is not open.

        Raises:
            KielGroupsError: There are no values, and a partition cannot be read or the start position is unknown.
            ConfigError: The consumer was iterated over, so it could not know which of its records are finished.
        """
        if self._iterated:
            raise ConfigError("the consumer is iterated over already; iterate over it or call consume(), not both")
        self._last_call = call
        parts: list[PartitionBatch] = []
        spans: dict[TopicPartition, Span] = {}
        room = most_bytes
        while room > 0 and (batch := self._poll_topic(topic, or_raise=not spans)) is not None:
            tp = batch.topic_partition
            state = self._subscription.offsets.of(tp)
            if state is None:
                continue
            parts.append(self._deserializing.part(tp, batch.records, state.token))
            start = spans[tp].start if tp in spans else batch.records[0].offset
            state.position = batch.records[-1].offset + 1
            spans[tp] = Span(state, start, state.position)
            self._metrics.count("records_handed_out", len(batch.records))
            room -= batch.size_bytes
        if spans:
            self._topics.setdefault(topic, ValuesInFlight()).add(spans, call, self._boot_time_s())
            if not any(part.values for part in parts):
                # The deserializer failed on all values, so none are in flight: finish them without a receiver.
                call.received = True
                self.finish_topics([topic], {call})
        return Batch(part for part in parts if part.values)

    def _poll_topic(self, topic: str, *, or_raise: bool) -> FetchedBatch | None:
        if self._ended or not self._member.gate.is_open(self._boot_time_s()):
            return None
        try:
            if or_raise and topic in self._refused:
                raise self._refused.pop(topic)
            return self._fetcher.poll(topic)
        except KielGroupsError:
            if or_raise:
                raise
            return None

    def finish_topics(self, topics: Iterable[str] | None = None, calls: Collection[ConsumeCall] | None = None) -> bool:
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
        values, now_s = self._topics[topic], self._boot_time_s() if now_s is None else now_s
        self._redeliver(values.settle(now_s, finishes=finishes))
        if not values.calls:
            del self._topics[topic]
        self._progress.set()
        return values.is_awaited(now_s)

    def _redeliver(self, starts: Mapping[TopicPartition, int]) -> None:
        for partition, start in starts.items():
            state = self._subscription.offsets.of(partition)
            if state is not None and partition in self._ready and not self._ended:
                log.info("%s: delivering again from offset %d: no caller received the values", partition, start)
                self._metrics.count("values_unclaimed")
                state.position = start
                self._fetch([partition])

    async def topics_finished(self) -> None:
        """Wait until no values are in flight."""
        while self._topics:
            self._progress.clear()
            await self._progress.wait()

    def drop_values(self, calls: Collection[ConsumeCall] | None) -> None:
        """Stop tracking topics whose values all come from these calls (None: all). The values are delivered again."""
        for topic, values in list(self._topics.items()):
            if calls is None or values.calls <= set(calls):
                del self._topics[topic]
        self._progress.set()

    async def wait(self, topic: str | None = None) -> None:
        """Wait until ``take`` or ``take_topic`` may return records or values."""
        now_s = self._boot_time_s()
        if not self._member.gate.is_open(now_s):
            await asyncio.sleep(GATE_PAUSE_S)
        elif self._next < len(self._records):
            await asyncio.sleep(0)
        else:
            await self._fetcher.ready.wait(topic)
        self._pause_at_s = self._boot_time_s() + QUANTUM_S

    def count_in_flight(self) -> None:
        """Count the record in flight as finished, although the application may still be processing it."""
        self._loop_record.count()

    def fencing_token_of(self, record: Record) -> int | None:
        """Return the record's fencing token, or None if ``record`` is not in flight, or is no longer counted."""
        return self._loop_record.fencing_token_of(record)

    def finish(self) -> None:
        """Finish the record in flight."""
        self._loop_record.count()
        self._loop_record.clear()
        # While the batch has more records, no drain or reset can end, so none is woken. Retention may overtake a
        # thousand partitions at once: a thousand resets would then wake up after each record.
        if self._drains and self._next >= len(self._records):
            self._progress.set()

    def put_back(self) -> None:
        """Deliver the record in flight once more, because the application has not finished it."""
        record, state = self._loop_record.record, self._loop_record.state
        if record is not None and state is not None:
            state.position = record.offset
            if state is self._state:
                self._next -= 1
            else:
                # Its batch was dropped. Fetch the record again if its partition is ready and its topic subscribed.
                self._fetch([record.topic_partition])
        self._loop_record.clear()
        self._progress.set()

    def end(self) -> None:
        """Stop all deliveries. The record in flight can still be finished."""
        self._ended = True
        self._batch_of = self._state = None
        self._records, self._next = [], 0
        self._deserializing.close()

    def begin_loop(self) -> None:
        """
        Start a loop over the records.

        Raises:
            ConfigError: Another loop is active, or values of a topic are in flight.
        """
        if self._topics:
            raise ConfigError("consume() was called already; iterate over the consumer or call consume(), not both")
        if self._looping:
            raise ConfigError(
                "another loop over this consumer is active: the consumer could not know which of its records are"
                " finished; leave that one first, or use a consumer for each"
            )
        self._looping = self._iterated = True
        self._pause_at_s = self._boot_time_s() + QUANTUM_S

    def end_loop(self, *, finished: bool) -> None:
        """End the loop. Finish its record, or deliver the record again if not ``finished``, as after an exception."""
        self._looping = False
        if finished:
            self.finish()
        else:
            self.put_back()

    def _busy_with(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset().union(*(each.in_flight_of(partitions) for each in self._in_flight()))

    def _in_flight(self) -> list[InFlight]:
        return [self._loop_record, *self._topics.values()]

    def in_progress(self) -> list[Work]:
        """Return the records, values and hook that the application is processing. Safe on any thread."""
        works = self._calls.in_progress()
        if (record := self._loop_record.record) is not None:
            works.append(Work(record, "processing", frozenset({record.topic_partition})))
        # A call for another topic is progress, too: programs written for kiel consume several topics in turn.
        busy: defaultdict[object, frozenset[TopicPartition]] = defaultdict(frozenset)
        for values in list(self._topics.values()):
            for call, partitions in values.busy():
                busy[self._last_call if call.ended else call.coroutine.latest] |= partitions
        return works + [Work(token, "processing", partitions) for token, partitions in busy.items()]

    # ------------------------------------------------------------------ the group's side

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Run the assigned hook, then fetch these partitions, unless ``stop`` or ``lost`` is called before that."""
        return self._ready.assigned(partitions)

    def _fetch(self, partitions: Collection[TopicPartition]) -> None:
        """
        Drop the buffered records of these partitions, and fetch them from their positions.

        A partition is skipped while its assigned hook runs or its topic is not subscribed. A later call fetches it.
        """
        self._drop(partitions)
        topics = self._subscription.topics
        positions, lost = {}, set()
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None and partition in self._ready and partition.topic in topics:
                positions[partition] = state.position
                reset = state.reset
                if reset is not None and reset.start <= state.position <= reset.end:
                    # The dropped records are still in the log, so they are fetched again before the reset applies.
                    self._subscription.offsets.withdraw_reset(partition)
                elif reset is not None:
                    # The log may have grown past the lost position, and a fetch from there would skip earlier records.
                    positions[partition] = reset.lost
                    lost.add(partition)
        # The fetcher's tasks must not inherit the caller's context, or they would count as part of its coroutine.
        context_without_calls().run(self._fetcher.assign, positions, lost)

    def follow_subscription(self) -> None:
        """Stop the delivery of unsubscribed topics, and resume that of topics that are subscribed to again."""
        topics, fetched = self._subscription.topics, self._fetcher.assignment
        self._refused = {topic: error for topic, error in self._refused.items() if topic in topics}
        self._fetch([partition for partition in self._ready if (partition.topic in topics) != (partition in fetched)])

    def start_unknown(self, topic: str, error: KielGroupsError) -> None:
        """Raise ``error`` at the application's next request for the topic, whose start position is unknown."""
        if topic in self._subscription.topics:
            self._refused[topic] = error
            self._fetcher.ready.notify(topic)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions, and return the partitions with records in flight."""
        self._ready.remove(partitions)
        self._drop(partitions)
        return self._busy_with(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until these partitions have no records in flight, then notify the listener of the revocation."""
        self._drains += 1
        dropping = spawn(self._drop_unclaimed({tp.topic for tp in partitions}), "drop of unclaimed values")
        try:
            while self._busy_with(partitions):
                self._progress.clear()
                await self._progress.wait()
        finally:
            dropping.cancel()
            self._drains -= 1
        await self._calls.revoked(partitions)

    async def _drop_unclaimed(self, topics: Collection[str]) -> None:
        """Regularly drop values of these topics that no caller will receive, so that a drain does not wait for them."""
        while True:
            now_s = self._boot_time_s()  # Read before the pause: a blocked loop also delays the callers.
            await asyncio.sleep(UNCLAIMED_S)
            for topic in self._topics.keys() & topics:
                self._settle(topic, now_s, finishes=False)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        """Return a function that returns whether the fetcher still has the partition's present assignment."""
        epoch = self._fetcher.epoch(partition)
        return lambda: epoch is not None and self._fetcher.epoch(partition) == epoch

    def truncate(self, partition: TopicPartition, end: int) -> int:
        """
        Drop buffered records and stop counting records in flight, at and after ``end``, the end of the partition's log.

        Returns:
            How many buffered records were dropped.
        """
        dropped = self._fetcher.truncate(partition, end)
        if self._batch_of == partition:
            left = [record for record in self._records if record.offset < end]
            dropped += len(self._records) - max(len(left), self._next)
            self._records = left
        for each in self._in_flight():
            each.truncate(partition, end)
        return dropped

    async def wait_until_consumed(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        """Wait until a partition has no record buffered or in flight, or until ``is_fetched`` returns False."""
        self._drains += 1
        try:
            while is_fetched() and (self._is_buffered(partition) or self._busy_with([partition])):
                self._progress.clear()
                await self._progress.wait()
        finally:
            self._drains -= 1

    def _is_buffered(self, partition: TopicPartition) -> bool:
        in_batch = self._batch_of == partition and self._next < len(self._records)
        return in_batch or self._fetcher.is_buffering(partition)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the buffered records of these partitions, stop counting those in flight, and notify the listener."""
        self._ready.remove(partitions)
        self._drop(partitions)
        for each in self._in_flight():
            each.stop_counting(partitions)
        self._calls.lost(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Resume at ``offset`` once the assigned hook has ended. Stop counting the partition's records in flight."""
        for each in self._in_flight():
            each.stop_counting([partition])
        if (state := self._subscription.offsets.of(partition)) is not None:
            state.position = offset
        self._fetch([partition])

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self._fetcher.unassign(partitions)
        self._progress.set()
        if self._batch_of in partitions:
            self._batch_of = self._state = None
            self._records, self._next = [], 0
