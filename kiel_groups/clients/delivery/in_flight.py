"""Track records in flight: those that a loop or a call delivered, and that the application has not finished."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.delivery.current_batch import CurrentBatch
from kiel_groups.errors import BadRecordError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.members.partition_handler import Work
from kiel_groups.model import TopicPartition

__all__ = [
    "ValuesInFlight",
    "BusyCall",
    "Receipt",
    "Span",
    "UNCLAIMED_S",
    "BadRecordInFlight",
    "ConsumerInFlight",
    "DeliveryProgress",
    "InFlight",
]


#: How long values wait for a caller to receive them before they are delivered again, in seconds. A program that gathers
#: several calls may need some time to receive all of their values.
UNCLAIMED_S = 1.0


class Span(NamedTuple):
    """
    Values of one partition that one call returned: the values from offset ``start`` up to, but not including, ``end``.

    ``state`` is the partition's state, in which finished values advance the offset ``finished``. ``state`` is None if
    the values are no longer counted.
    """

    state: PartitionOffsets | None
    start: int
    end: int


class BusyCall(NamedTuple):
    """A call, and the partitions of its values that are in flight."""

    call: ConsumeCall
    partitions: frozenset[TopicPartition]


class Receipt(Enum):
    """Whether a caller has received the values of a call."""

    RECEIVED = "received"
    #: A caller may still receive the values.
    AWAITED = "awaited"
    #: No caller has received the values in time, or none can any more, so they are delivered again.
    UNCLAIMED = "unclaimed"


@dataclass(slots=True)
class _Delivered:
    """The values that one call returned at ``at_s``. ``done``: the values are marked as finished."""

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

    A coroutine's values are finished when it asks again, independently of other coroutines. A partition's finished
    offset advances at most to the first value that a coroutine is still processing.
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

    def busy(self) -> list[BusyCall]:
        """Return the calls that returned the values in flight. Safe on any thread."""
        return [BusyCall(delivered.call, frozenset(delivered.spans)) for delivered in self._delivered]

    def is_awaited(self, now_s: float) -> bool:
        """Whether a caller may still receive some of the values."""
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
        """Return the first offset that was taken of a partition under this claim, and not received; None without."""
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


class InFlight(Protocol):
    """The records in flight of one loop, or of the callers of one topic. There may be none."""

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the given partitions that have records in flight."""

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        """Stop counting in-flight records of these partitions. The application may still be processing them."""

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Stop counting a partition's in-flight records at and after the offset ``end``."""


class BadRecordInFlight:
    """A bad record while ``on_bad_record`` runs, and its partition's state (None if it is no longer counted)."""

    __slots__ = ("_error", "_state")

    def __init__(self, error: BadRecordError, state: PartitionOffsets) -> None:
        self._error = error
        self._state: PartitionOffsets | None = state

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset({self._error.topic_partition}).intersection(partitions)

    def finish(self) -> bool:
        """Count the record as finished, and move the position behind it. Return whether it still counts."""
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
    All records in flight of one consumer: that of its loop, what its calls returned, and ``bad`` records.

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
        Return the offset of the first record or value that a call took of a partition, and no caller has received.

        Return None if there is none. A caller may still receive it; otherwise it is delivered again.
        """
        first = (values.unreceived_from(partition, state) for values in self.topics.values())
        return min((offset for offset in first if offset is not None), default=None)

    def _all(self) -> list[InFlight]:
        return [self.batch, *self.topics.values(), *self.bad.values()]

    def works(self) -> list[Work]:
        """Return the record and the values as work of the application. Safe on any thread."""
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
    """Wakes the waiting drains and resets of one consumer when fewer of its records may be in flight or buffered."""

    def __init__(self) -> None:
        #: The number of callers that wait. A loop asks for each batch whether there is one.
        self.waiting = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have each waiting caller check its condition again."""
        self._changed.set()

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Wait until ``is_over`` returns True. It is called at once, and after each ``notify``."""
        self.waiting += 1
        try:
            while not is_over():
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.waiting -= 1
