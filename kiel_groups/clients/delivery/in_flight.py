"""Track records in flight: a loop or a call has delivered them, and the application has not finished them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import attrgetter, length_hint
from typing import NamedTuple

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.errors import BadRecordError
from kiel_groups.group.partition_offsets import DeliveredOffsets, PartitionOffsets
from kiel_groups.members.partition_handler import Work
from kiel_groups.model import FencingToken, Record, TopicPartition

#: How long values wait for a caller to receive them before they are delivered again, in seconds. A program that gathers
#: several calls may need some time to receive all of their values.
UNCLAIMED_S = 1.0


class Span(NamedTuple):
    """
    The values of one partition that one call returned, from offset ``start`` up to, but not including, ``end``.

    ``state`` is the state of the partition's claim, whose offset ``finished`` advances when the values are finished.
    ``state`` is None if the values are no longer tracked.
    """

    state: PartitionOffsets | None
    start: int
    end: int


class Receipt(Enum):
    """The states of a call's values: whether a caller has received the values, or may still receive them."""

    RECEIVED = "received"
    #: A caller may still receive the values.
    AWAITED = "awaited"
    #: No caller has received the values in time, or no caller can receive them any more, so they are delivered again.
    UNCLAIMED = "unclaimed"


@dataclass(slots=True)
class _Delivered:
    """The values that one call returned at ``at_s``. ``done`` says whether the values are marked as finished."""

    call: ConsumeCall
    spans: dict[TopicPartition, Span]
    at_s: float
    done: bool = False

    def receipt(self, now_s: float) -> Receipt:
        """Return whether a caller has received the values, or may still receive them."""
        if self.call.received:
            return Receipt.RECEIVED
        given_up = self.call.superseded or self.call.is_dropped or now_s - self.at_s > UNCLAIMED_S
        return Receipt.UNCLAIMED if given_up else Receipt.AWAITED


class ValuesInFlight:
    """
    The in-flight values of one topic, by call, in the order of delivery.

    A coroutine's values are finished when the coroutine asks for more values, independently of other coroutines. A
    partition's finished offset advances at most to the first value that a coroutine is still processing.
    """

    __slots__ = ("_delivered",)

    def __init__(self) -> None:
        self._delivered: list[_Delivered] = []

    @property
    def calls(self) -> set[ConsumeCall]:
        """The calls that returned the values in flight."""
        return {delivered.call for delivered in self._delivered}

    def add(self, spans: dict[TopicPartition, Span], call: ConsumeCall, now_s: float) -> None:
        """Add the values that a call returns."""
        self._delivered.append(_Delivered(call, spans, now_s))

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(tp for delivered in self._delivered for tp in delivered.spans).intersection(partitions)

    def busy(self) -> list[tuple[ConsumeCall, frozenset[TopicPartition]]]:
        """
        Return the calls that returned the values in flight, with the values' partitions. Any thread may call this
        method.
        """
        return [(delivered.call, frozenset(delivered.spans)) for delivered in self._delivered]

    def is_awaited(self, now_s: float) -> bool:
        """Return whether a caller may still receive some of the values."""
        return any(delivered.receipt(now_s) is Receipt.AWAITED for delivered in self._delivered)

    def finish(self, calls: Collection[ConsumeCall] | None) -> None:
        """
        Mark values as finished, if a caller has received them.

        Args:
            calls: The calls that returned the values. None means all calls.
        """
        for delivered in self._delivered:
            delivered.done = delivered.done or (delivered.call.received and (calls is None or delivered.call in calls))

    def settle(self, now_s: float, *, finishes: bool = True) -> dict[TopicPartition, int]:
        """
        Remove values that are finished, and values that no caller will receive.

        Keep values that a caller is processing, and values that a caller may still receive. If ``finishes`` is False,
        also keep received values that are not marked as finished, even if the receiving coroutine has ended: it may
        have passed the values to another coroutine.

        Returns:
            For each partition with values that no caller will receive, the offset of the first such value.
        """
        resume_at: dict[TopicPartition, int] = {}
        # Calls are settled in the order of delivery: the finished offset of a partition must not pass values of an
        # earlier call that are not finished. ``undecided`` are partitions whose earlier values may still be received,
        # ``busy`` those whose earlier values are being processed; later values of both have to wait.
        undecided: set[TopicPartition] = set()
        busy: set[TopicPartition] = set()
        for delivered in self._delivered:
            receipt, done = delivered.receipt(now_s), delivered.done or (finishes and delivered.call.ended)
            kept: dict[TopicPartition, Span] = {}
            for tp, span in delivered.spans.items():
                if tp in resume_at and span.state is not None:
                    # These values are delivered again, together with those before them. So they are no longer counted,
                    # but a drain must still wait for the coroutine that processes them.
                    span = span._replace(state=None)
                if receipt is Receipt.AWAITED or tp in undecided:
                    before = undecided
                elif receipt is Receipt.RECEIVED and (not done or tp in busy):
                    before = busy
                else:
                    if span.state is not None and receipt is Receipt.RECEIVED:
                        span.state.finished = span.end
                    elif span.state is not None:
                        resume_at[tp] = span.start
                        delivered.call.redelivered = True
                    continue
                kept[tp] = span
                if span.state is not None:
                    before.add(tp)
            delivered.spans = kept
        self._delivered = [delivered for delivered in self._delivered if delivered.spans]
        return resume_at

    def unreceived_from(self, partition: TopicPartition, state: PartitionOffsets) -> int | None:
        """Return the first offset that a call took under this claim, but no caller has received, or None."""
        taken = (each.spans.get(partition) for each in self._delivered if not each.call.received)
        return min((span.start for span in taken if span is not None and span.state is state), default=None)

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        for delivered in self._delivered:
            for partition in delivered.spans.keys() & set(partitions):
                delivered.spans[partition] = delivered.spans[partition]._replace(state=None)

    def truncate(self, partition: TopicPartition, end: int) -> None:
        for delivered in self._delivered:
            span = delivered.spans.get(partition)
            if span is not None and span.start >= end:
                delivered.spans[partition] = span._replace(state=None)
            elif span is not None and span.end > end:
                delivered.spans[partition] = span._replace(end=end)


# Track records in flight: records that a loop or a call delivered, and that the application has not finished.
#
# While records are in flight, automatic commits do not store their offsets, and their partitions are not released. Once
# the application has finished them, the offset that a commit stores advances. Unfinished records are delivered again.
#
# The classes for the loop, for calls and for a bad record share three methods. ``in_flight_of`` returns the partitions
# that have records in flight. ``stop_counting`` stops tracking the records of some partitions; the application may
# still be processing them. ``truncate`` stops tracking a partition's records at and after an offset.


class BadRecordInFlight:
    """A bad record for which ``on_bad_record`` runs, with the state of its claim, or None if no longer tracked."""

    __slots__ = ("_error", "_state")

    def __init__(self, error: BadRecordError, state: PartitionOffsets) -> None:
        self._error = error
        self._state: PartitionOffsets | None = state

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset({self._error.topic_partition}).intersection(partitions)

    def finish(self) -> bool:
        """Finish the record, and move the position past it. Return False if the record is no longer tracked."""
        if self._state is None:
            return False
        self._state.position = self._state.finished = self._error.next_offset
        return True

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        if self._error.topic_partition in partitions:
            self._state = None

    def truncate(self, partition: TopicPartition, end: int) -> None:
        if self._error.topic_partition == partition and self._error.offset >= end:
            self._state = None


class ConsumerInFlight:
    """
    All records in flight of one consumer: the record of its loop, the records that its calls returned, and bad records.

    ``topics`` has the values of each topic for which ``consume()`` was called. The key None has the records of
    ``getone()``, ``getmany()`` and ``consume_batches()``, which ask for any topic.
    """

    def __init__(self) -> None:
        #: The batch of the loop, with the record in flight.
        self.batch = CurrentBatch()
        #: A topic without values in flight is left out.
        self.topics: dict[str | None, ValuesInFlight] = {}
        #: Records for which ``on_bad_record`` runs.
        self.bad: dict[TopicPartition, BadRecordInFlight] = {}
        #: The last call, for any topic.
        self.last_call: object = None

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset().union(*(each.in_flight_of(partitions) for each in self._all()))

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        for each in self._all():
            each.stop_counting(partitions)

    def truncate(self, partition: TopicPartition, end: int) -> None:
        for each in self._all():
            each.truncate(partition, end)

    def unreceived_from(self, partition: TopicPartition, state: PartitionOffsets) -> int | None:
        """
        Return the offset of the first record or value of a partition that a call took, but no caller has received.

        Return None if there is no such record. A caller may still receive the record; otherwise it is delivered again.
        """
        first = (values.unreceived_from(partition, state) for values in self.topics.values())
        return min((offset for offset in first if offset is not None), default=None)

    def _all(self) -> list[CurrentBatch | ValuesInFlight | BadRecordInFlight]:
        return [self.batch, *self.topics.values(), *self.bad.values()]

    def works(self) -> list[Work]:
        """
        Return the work of the application: a loop's record, bad records and values. Any thread may call this method.
        """
        works = []
        if (record := self.batch.record) is not None:
            works.append(Work(record, "processing", frozenset({record.topic_partition})))
        works += [Work(bad, "processing", frozenset({partition})) for partition, bad in list(self.bad.items())]
        # A call for another topic is progress, too: programs written for kiel consume several topics in turn.
        busy: defaultdict[object, frozenset[TopicPartition]] = defaultdict(frozenset)
        for values in list(self.topics.values()):
            for call, partitions in values.busy():
                busy[self.last_call if call.ended else call.coroutine.latest] |= partitions
        return works + [Work(token, "processing", partitions) for token, partitions in busy.items()]


class DeliveryProgress:
    """Wakes the drains and resets that wait until fewer of a consumer's records are in flight or buffered."""

    def __init__(self) -> None:
        #: The number of callers that wait. A loop reads the number with each batch.
        self.waiting = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting callers, so that each caller checks its condition again."""
        self._changed.set()

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Wait until ``is_over`` returns True. The function is called at once, and after ``notify`` was called."""
        self.waiting += 1
        try:
            while not is_over():
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.waiting -= 1


# Track the batch that a loop is delivering, and the record of it that is in flight.
#
# The loop iterates over a *cursor*, an iterator of a list, without another call for each record. The cursor is the only
# count of the delivered records: position, finished offset and the record in flight are derived from it when they are
# asked for. The loop may run on another thread than everything else here (decision 0025).
#
# What this relies on - ``next``, ``length_hint`` and ``list`` of a list's iterator are atomic steps under the lock of
# the interpreter: none of them runs Python code, or releases the lock. An interpreter without that lock does not
# guarantee this. - A list's iterator that was used up stays so. A loop that still has such an iterator gets no record
# from it, and has to ask for another cursor. - No signal handler runs between the step of a ``for`` statement and a
# ``return`` that is the first one of its body.
#
# If steps were not atomic, a record could be delivered although it was taken back, and by two members. Checked with
# CPython 3.11.7, 3.12.1 and 3.13.0; ``tests/unit/sync/test_blocking_records.py`` fails if this changes.


#: A cursor without records.
NO_RECORDS: Iterator[Record] = iter(())

_offset_of = attrgetter("offset")


class _View(NamedTuple):
    """
    The records of a batch, the cursor that delivers them, and how many delivered records are no longer in flight.

    A view is replaced as a whole, so that other threads never see a mixture of two views.
    """

    records: list[Record]
    cursor: Iterator[Record]
    done: int

    @property
    def delivered(self) -> int:
        """
        The number of delivered records. Another thread may increase the number, so read it once, and derive everything
        else from the result.
        """
        return len(self.records) - length_hint(self.cursor)


class CurrentBatch:
    """
    The batch that a loop is delivering, if any, and its record in flight.

    ``state`` is the state of the claim under which the batch is delivered. The state reads its position and finished
    offset from this object, until the batch is replaced or its records are no longer tracked.
    """

    __slots__ = ("_base", "_counted", "_dropped", "_fetched", "_partition", "_raw", "_view", "state")

    def __init__(self) -> None:
        self._fetched: FetchedBatch | None = None
        self._partition: TopicPartition | None = None
        self.state: PartitionOffsets | None = None
        #: The position before the first record.
        self._base = 0
        #: The records as they were fetched. The deserializer may have skipped some of them.
        self._raw: list[Record] = []
        self._view = _View([], NO_RECORDS, 0)
        #: The finished offset before the first record, or the offset that a commit has counted since.
        self._counted = 0
        self._dropped = False

    def start(self, fetched: FetchedBatch, state: PartitionOffsets, records: list[Record]) -> None:
        """Replace the batch, and deliver ``records``, which were made from it. No record may be in flight."""
        if self._counts:
            assert self.state is not None
            self.state.end_delivery()
        self._fetched, self._partition, self.state = fetched, fetched.topic_partition, state
        self._base, self._counted = state.position, state.finished
        self._raw, self._dropped = fetched.records, False
        self._view = _View(records, iter(records), 0)
        state.begin_delivery(self)

    # ------------------------------------------------------------------ the records that are left

    @property
    def cursor(self) -> Iterator[Record]:
        """The iterator that delivers the remaining records. Each step makes the next record the record in flight."""
        return self._view.cursor

    @property
    def used_up(self) -> bool:
        """Whether all records are delivered, or there is no batch."""
        return not length_hint(self._view.cursor)

    def has_records_of(self, partition: TopicPartition) -> bool:
        """Return whether some records of this partition are not delivered yet."""
        return self._partition == partition and not self.used_up

    def clear(self) -> None:
        """Drop the undelivered records. The record in flight remains."""
        delivered = self._take_back()
        # Records that were skipped after the last delivered record count as delivered.
        self._raw = self._raw[:delivered]
        self._dropped = True

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the undelivered records, if they belong to one of these partitions."""
        if self._partition in partitions:
            self.clear()

    def take_rest(self, partition: TopicPartition) -> tuple[FetchedBatch, int] | None:
        """
        Drop the undelivered records, if they belong to this partition.

        Returns:
            The batch, and how many of its records are delivered; None if no records were dropped.
        """
        if self._fetched is None or not self.has_records_of(partition):
            return None
        raw = self._raw
        self.clear()
        return self._fetched._replace(records=raw), len(self._raw)

    def cut_off(self, partition: TopicPartition, end: int) -> int:
        """Drop a partition's undelivered records at and after the offset ``end``, and return their number."""
        if self._partition != partition:
            return 0
        records, raw = self._view.records, self._raw
        taken = self._take_back()
        delivered = len(self._view.records)
        self._raw = raw[:taken] + [record for record in raw[taken:] if record.offset < end]
        left = [record for record in records[delivered:] if record.offset < end]
        self._deliver_from(records[:delivered] + left, delivered, self._view.done)
        return len(raw) - len(self._raw)

    def _take_back(self) -> int:
        """End the cursor. Return how many of the fetched records are delivered or skipped."""
        view = self._view
        # Other threads must not take the records of the next step for delivered ones.
        self._view = _View(view.records[: view.delivered], NO_RECORDS, view.done)
        rest = list(view.cursor)
        delivered = len(view.records) - len(rest)
        taken = self._taken(view.records, delivered)
        self._view = _View(view.records[:delivered], NO_RECORDS, view.done)
        return taken

    def _deliver_from(self, records: list[Record], delivered: int, done: int) -> None:
        cursor = iter(records)
        next(islice(cursor, delivered, delivered), None)
        self._view = _View(records, cursor, done)

    # ------------------------------------------------------------------ the offsets

    def offsets(self) -> DeliveredOffsets:
        """Return the position, which is after the record in flight, and the finished offset, which is before it."""
        view = self._view
        delivered = view.delivered
        finished = delivered - 1 if delivered > view.done else delivered
        # A record that was counted by a commit, and put back after that, remains counted.
        return DeliveredOffsets(
            self._end(view.records, delivered, self._base),
            max(self._counted, self._end(view.records, finished, self._counted)),
        )

    def _end(self, records: list[Record], delivered: int, base: int) -> int:
        taken = self._taken(records, delivered)
        return self._raw[taken - 1].offset + 1 if taken else base

    def _taken(self, records: list[Record], delivered: int) -> int:
        """Return how many fetched records, including skipped records, come before the next record to deliver."""
        if len(records) == len(self._raw):
            return delivered
        if delivered == len(records):
            return len(self._raw)
        return bisect_left(self._raw, records[delivered].offset, key=_offset_of)

    # ------------------------------------------------------------------ the record in flight

    @property
    def record(self) -> Record | None:
        """The record in flight, if any. Any thread may read this property."""
        view = self._view
        delivered = view.delivered
        return view.records[delivered - 1] if delivered > view.done else None

    @property
    def _counts(self) -> bool:
        return self.state is not None and self.state.is_delivered_by(self)

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        record = self.record
        if record is None or record.topic_partition not in partitions:
            return frozenset()
        return frozenset({record.topic_partition})

    def count(self) -> None:
        """Let commits include the record in flight, and keep the record in flight."""
        view = self._view
        self._counted = max(self._counted, self._end(view.records, view.delivered, self._counted))

    def finish(self) -> None:
        """Finish the record in flight, if any."""
        view = self._view
        self._view = view._replace(done=view.delivered)

    def put_back(self) -> TopicPartition | None:
        """
        Let the record in flight be delivered again, if the record is still tracked.

        Returns:
            The partition of the record if the batch was dropped meanwhile: the caller must fetch the partition from its
            position. None if the batch was not dropped.
        """
        record, view = self.record, self._view
        if record is None:
            return None
        if not self._counts:
            self._view = view._replace(done=view.delivered)
            return None
        if not self._dropped:
            before = view.delivered - 1
            self._deliver_from(view.records, before, before)
            return None
        assert self.state is not None
        self.state.position = record.offset
        self._view = view._replace(done=view.delivered)
        return record.topic_partition

    def fencing_token_of(self, record: Record) -> FencingToken | None:
        """Return the fencing token of ``record``, or None if ``record`` is not in flight, or is no longer tracked."""
        # Compare identities, not offsets: the same offset may be in flight again, under a later claim.
        return self.state.token if record is self.record and self.state is not None and self._counts else None

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        if self._partition in partitions and self._counts:
            assert self.state is not None
            self.state.end_delivery()

    def truncate(self, partition: TopicPartition, end: int) -> None:
        record = self.record
        if record is not None and record.topic_partition == partition and record.offset >= end:
            self.stop_counting([partition])
