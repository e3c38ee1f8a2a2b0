"""
Track records in flight: records that a loop or ``consume()`` delivered, and that the application has not finished.

While records are in flight, automatic commits do not store their offsets, and their partitions are not released. Once
the application has finished them, the offset that a commit stores advances. Unfinished records are delivered again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.model import Record, TopicPartition

__all__ = ["InFlight", "RecordInFlight", "ValuesInFlight", "Span", "UNCLAIMED_S"]

#: How long values wait for a caller to receive them before they are delivered again, in seconds. A program that gathers
#: several calls may need some time to receive all of their values.
UNCLAIMED_S = 1.0


class InFlight(Protocol):
    """The records in flight of one loop, or of the callers of one topic. There may be none."""

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the given partitions that have records in flight."""

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        """Stop counting in-flight records of these partitions. The application may still be processing them."""

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Stop counting a partition's in-flight records at and after the offset ``end``."""


class RecordInFlight:
    """The record in flight of a loop, if any, and its partition's state (None if the record is no longer counted)."""

    __slots__ = ("record", "state")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.state: PartitionOffsets | None = None

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        if self.record is None or self.record.topic_partition not in partitions:
            return frozenset()
        return frozenset({self.record.topic_partition})

    def count(self) -> None:
        """Count the record as finished, and keep it in flight."""
        if self.record is not None and self.state is not None:
            self.state.finished = self.record.offset + 1

    def fencing_token_of(self, record: Record) -> int | None:
        """Return the fencing token of ``record``, or None if ``record`` is not in flight, or is no longer counted."""
        # Compare identities, not offsets: the same offset may be in flight again, under a later claim.
        return self.state.token if record is self.record and self.state is not None else None

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        if self.record is not None and self.record.topic_partition in partitions:
            self.state = None

    def truncate(self, partition: TopicPartition, end: int) -> None:
        if self.record is not None and self.record.topic_partition == partition and self.record.offset >= end:
            self.state = None

    def clear(self) -> None:
        self.record = self.state = None


class Span(NamedTuple):
    """
    Values of one partition that one call returned: the values from offset ``start`` up to, but not including, ``end``.

    ``state`` is the partition's state, in which finished values advance the offset ``finished``. ``state`` is None if
    the values are no longer counted.
    """

    state: PartitionOffsets | None
    start: int
    end: int


@dataclass(slots=True)
class _Delivered:
    """The values that one call returned at ``at_s``. ``done``: the values are marked as finished."""

    call: ConsumeCall
    spans: dict[TopicPartition, Span]
    at_s: float
    done: bool = False

    def received(self, now_s: float) -> bool | None:
        """Return whether a caller has received the values, or None while a caller may still receive them."""
        if self.call.received:
            return True
        return False if self.call.superseded or now_s - self.at_s > UNCLAIMED_S else None


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

    def busy(self) -> list[tuple[ConsumeCall, frozenset[TopicPartition]]]:
        """Return each call and the partitions of its in-flight values. Safe on any thread."""
        return [(delivered.call, frozenset(delivered.spans)) for delivered in self._delivered]

    def is_awaited(self, now_s: float) -> bool:
        """Whether a caller may still receive some of the values."""
        return any(delivered.received(now_s) is None for delivered in self._delivered)

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
            received, done = delivered.received(now_s), delivered.done or (finishes and delivered.call.ended)
            kept: dict[TopicPartition, Span] = {}
            for tp, span in delivered.spans.items():
                if tp in resume_at and span.state is not None:
                    # These values are delivered again, together with those before them. So they are no longer counted,
                    # but a drain must still wait for the coroutine that processes them.
                    span = span._replace(state=None)
                if received is None or tp in undecided:
                    before = undecided
                elif received and (not done or tp in busy):
                    before = busy
                else:
                    if span.state is not None and received:
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
