"""
Track the batch that a loop is delivering, and the record of it that is in flight.

The loop iterates over a *cursor*, an iterator of a list, without another call for each record. The cursor is the only
count of the delivered records: position, finished offset and the record in flight are derived from it when they are
asked for. The loop may run on another thread than everything else here (decision 0025).

What this relies on
  - ``next`` of a list's iterator, ``length_hint`` of it and ``list`` of it are atomic steps under the lock of the
    interpreter: none of them runs Python code, or releases the lock. An interpreter without that lock has none of this.
  - A list's iterator that was used up stays so. A loop that still has it gets nothing, and has to ask again.
  - No signal handler runs between the step of a ``for`` statement and a ``return`` that is the first one of its body.

If steps were not atomic, a record could be delivered although it was taken back, and by two members. Checked with
CPython 3.11.7, 3.12.1 and 3.13.0; ``tests/unit/sync/test_blocking_records.py`` fails if this changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import islice
from operator import attrgetter, length_hint
from typing import NamedTuple

from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.group.partition_offsets import DeliveredOffsets, PartitionOffsets
from kiel_groups.model import FencingToken, Record, TopicPartition

__all__ = ["CurrentBatch", "NO_RECORDS"]

#: A cursor without records.
NO_RECORDS: Iterator[Record] = iter(())

_offset_of = attrgetter("offset")


class _View(NamedTuple):
    """
    The records to deliver, the cursor over them, and how many of the delivered ones are not in flight any more.

    A view is replaced as a whole, so that other threads never see parts of two.
    """

    records: list[Record]
    cursor: Iterator[Record]
    done: int

    @property
    def delivered(self) -> int:
        """How many records were delivered. Read this once, and derive everything else from the number."""
        return len(self.records) - length_hint(self.cursor)


class CurrentBatch:
    """
    A batch of one partition, or none, and its record in flight.

    ``state`` is the state of the partition's claim under which the batch is delivered. It reads its position and its
    finished offset from here, until the batch is replaced, or until the records of the batch count no more.
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
        #: The finished offset before the first record, or that which a commit has counted since.
        self._counted = 0
        self._dropped = False

    def start(self, fetched: FetchedBatch, state: PartitionOffsets, records: list[Record]) -> None:
        """Replace the batch by another one, of which ``records`` are delivered. No record may be in flight."""
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
        """Delivers the records that are left: each step makes the next one the record in flight."""
        return self._view.cursor

    @property
    def used_up(self) -> bool:
        """Whether all records are delivered, or there is no batch."""
        return not length_hint(self._view.cursor)

    def has_records_of(self, partition: TopicPartition) -> bool:
        """Return whether some records of this partition are not delivered yet."""
        return self._partition == partition and not self.used_up

    def clear(self) -> None:
        """Drop the records that are left. The record in flight remains."""
        delivered = self._take_back()
        # What was skipped behind the last delivered record counts as delivered.
        self._raw = self._raw[:delivered]
        self._dropped = True

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the records that are left, if they belong to one of these partitions."""
        if self._partition in partitions:
            self.clear()

    def take_rest(self, partition: TopicPartition) -> tuple[FetchedBatch, int] | None:
        """
        Drop the records that are left, if they belong to this partition and there are any.

        Returns:
            The batch, and how many of its records are delivered; None if there is no such batch.
        """
        if self._fetched is None or not self.has_records_of(partition):
            return None
        raw = self._raw
        self.clear()
        return self._fetched._replace(records=raw), len(self._raw)

    def cut_off(self, partition: TopicPartition, end: int) -> int:
        """Drop a partition's records at and after the offset ``end``. Return how many of them were not delivered."""
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
        """Deliver nothing more by the cursor. Return how many of the fetched records count as delivered."""
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
        """Return how many fetched records come before the next one to deliver, those that were skipped included."""
        if len(records) == len(self._raw):
            return delivered
        if delivered == len(records):
            return len(self._raw)
        return bisect_left(self._raw, records[delivered].offset, key=_offset_of)

    # ------------------------------------------------------------------ the record in flight

    @property
    def record(self) -> Record | None:
        """The record in flight, if any. Safe on any thread."""
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
        """Count the record as finished, and keep it in flight."""
        view = self._view
        self._counted = max(self._counted, self._end(view.records, view.delivered, self._counted))

    def finish(self) -> None:
        """Count the record as finished. It is no longer in flight."""
        view = self._view
        self._view = view._replace(done=view.delivered)

    def put_back(self) -> TopicPartition | None:
        """
        Have the record in flight delivered again, if it counts.

        Returns:
            The partition to fetch from its position, if the batch was dropped meanwhile.
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
        """Return the fencing token of ``record``, or None if ``record`` is not in flight, or is no longer counted."""
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
