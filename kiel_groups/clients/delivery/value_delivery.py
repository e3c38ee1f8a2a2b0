"""
Deliver to calls: values of a topic to ``consume()``, records to ``getone()``, ``getmany()`` and ``consume_batches()``.

What a call returned is *in flight* until the coroutine that received it asks again, for the same topic in the case of
``consume()``. After that, it is finished. Automatic commits store only the offsets of what is finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.in_flight import UNCLAIMED_S, Span, ValuesInFlight
from kiel_groups.clients.delivery.owned_records import OwnedBatch, OwnedRecords
from kiel_groups.clients.fetch.fetcher import FetchedBatch, Selection
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, PartitionBatch, Record, TopicPartition
from kiel_groups.wire.message_sets.record_columns import RecordColumns

__all__ = ["ValueDelivery"]

log = logging.getLogger(__name__)


T = TypeVar("T")
R = TypeVar("R", bound=Sized, covariant=True)


class _Polled(Protocol[R]):
    """A batch, and its records in the form in which they are delivered; such as ``ReadableBatch``."""

    @property
    def batch(self) -> OwnedBatch: ...

    @property
    def records(self) -> R: ...


class _Taken:
    """What one call has taken so far: the span of each partition, and its last batch."""

    def __init__(self) -> None:
        self.spans: dict[TopicPartition, Span] = {}
        self.last: dict[TopicPartition, FetchedBatch] = {}

    def add(self, batch: OwnedBatch) -> None:
        """Move the position of a partition past a batch, and add the batch to the partition's span."""
        fetched, state = batch
        partition, end = fetched.topic_partition, fetched.last_offset + 1
        start = self.spans[partition].start if partition in self.spans else fetched.first_offset
        state.position = end
        self.spans[partition] = Span(state, start, end)
        self.last[partition] = fetched


class ValueDelivery:
    """
    Delivers the owned records to calls, as values of a topic or as records. It owns what is in flight of all calls.

    The values of a topic are tracked under its name, records under None.
    """

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
        """
        self._in_flight.last_call = call
        parts: list[PartitionBatch] = []
        room = most_bytes
        selection = Selection(topic)
        with self._taking() as taken:
            while room > 0 and self._may_poll(selection, or_raise=not taken.spans):
                batch = self._owned.poll(selection, errors=not taken.spans)
                if batch is None:
                    break
                fetched, state = batch
                with self._owned.kept(fetched):
                    part, error = self._owned.deserializer.part(fetched, state.token)
                if not self._owned.is_current(fetched):
                    continue
                count = len(fetched) if error is None else len(part.values)
                if (before := self._owned.before(batch, count, error, may_handle=not taken.spans)) is not None:
                    parts.append(part)
                    taken.add(before)
                elif taken.spans:
                    break
                room -= fetched.size_bytes
        self._track(topic, taken.spans, call, is_empty=not any(part.values for part in parts))
        return Batch(part for part in parts if part.values)

    def take_records(
        self, selection: Selection, most_records: int | None, call: ConsumeCall
    ) -> dict[TopicPartition, list[Record]]:
        """
        Return buffered records of the selected partitions, in order within each; {} if none or the gate is not open.

        Raises:
            KielGroupsError: There are no records, and a partition cannot be read or a start position is unknown.
        """
        return self._take_in_turn(self._owned.poll_readable, list.extend, selection, most_records, call)

    def take_columns(
        self, selection: Selection, most_records: int | None, call: ConsumeCall
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """
        Return buffered records as ``take_records`` does, but as columns: an item for each run of records.

        Raises:
            KielGroupsError: As ``take_records``.
        """
        return self._take_in_turn(self._owned.poll_columns, list.append, selection, most_records, call)

    def _take_in_turn(
        self,
        poll: Callable[..., _Polled[R] | None],
        add: Callable[[list[T], R], None],
        selection: Selection,
        most_records: int | None,
        call: ConsumeCall,
    ) -> dict[TopicPartition, list[T]]:
        """Take what is buffered, batch by batch. ``add`` adds what ``poll`` returns to the list of its partition."""
        self._in_flight.last_call = call
        found: dict[TopicPartition, list[T]] = {}
        left = most_records
        with self._taking() as taken:
            while left != 0 and self._may_poll(selection, or_raise=not taken.spans):
                polled = poll(selection, left, errors=not taken.spans)
                if polled is None:
                    break
                batch, records = polled.batch, polled.records
                if records:
                    add(found.setdefault(batch.fetched.topic_partition, []), records)
                taken.add(batch)
                left = None if left is None else left - len(records)
        self._track(None, taken.spans, call, is_empty=not found)
        return found

    @contextmanager
    def _taking(self) -> Iterator[_Taken]:
        """
        Collect what a call takes. If the block raises, even SystemExit, all of it is delivered again.

        A deserializer may seek. What was taken of that partition before is not counted, as after any seek.
        """
        taken = _Taken()
        try:
            yield taken
        except BaseException:
            for partition, span in taken.spans.items():
                self._redeliver(partition, span.start)
            raise
        for partition, fetched in taken.last.items():
            if not self._owned.is_current(fetched):
                taken.spans[partition] = taken.spans[partition]._replace(state=None)

    def _track(
        self, topic: str | None, spans: dict[TopicPartition, Span], call: ConsumeCall, *, is_empty: bool
    ) -> None:
        """Track what a call is about to return. ``is_empty``: the deserializer failed on all of it."""
        if not spans:
            return
        if is_empty:
            # Nothing that a caller could receive. The call itself may go on, and receive other values or give up.
            call = ConsumeCall()
            call.received = call.superseded = True
        self._topics.setdefault(topic, ValuesInFlight()).add(spans, call, self._owned.boot_time_s())
        if is_empty:
            self.finish([topic], {call})

    def _may_poll(self, selection: Selection, *, or_raise: bool) -> bool:
        if not self._owned.may_deliver():
            return False
        if or_raise:
            self._owned.raise_refused(selection.topic)
        return True

    def finish(self, topics: Iterable[str | None] | None = None, calls: Collection[ConsumeCall] | None = None) -> bool:
        """
        Finish values that a caller has received, and return whether values of these topics were in flight.

        Also finish values whose coroutine has asked again or ended, and redeliver values that no caller will receive.

        Args:
            topics: The topics of the values; None among them means records. None instead of them means everything.
            calls: The calls that returned the values. None means all calls.
        """
        asked = self._topics.keys() & (self._topics if topics is None else set(topics))
        for topic in asked:
            self._topics[topic].finish(calls)
            self._settle(topic)
        return bool(asked)

    def redeliver_unclaimed(self, topic: str | None) -> bool:
        """Redeliver values of a topic that no caller will receive. Return whether a caller may still receive values."""
        return topic in self._topics and self._settle(topic)

    def _settle(self, topic: str | None, now_s: float | None = None, *, finishes: bool = True) -> bool:
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
            for topic in self._topics.keys() & {*topics, None}:
                self._settle(topic, now_s, finishes=False)
