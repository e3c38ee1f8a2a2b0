"""A batch of one partition as the fetcher returns it: its records or columns are made when they are asked for."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from kiel_groups.model import FencingToken, Record, TopicPartition
from kiel_groups.wire.message_sets.columns import Columns, columns_of
from kiel_groups.wire.message_sets.message_runs import MessageRun, ValueRun, values_of
from kiel_groups.wire.message_sets.record_columns import RecordColumns

__all__ = ["FetchedBatch"]

_offset_of = attrgetter("offset")


class _Content:
    """
    The messages of one or more parts of a batch.

    Records replace the run that they are made of, since they take more memory. Columns are kept beside it, until the
    last part is taken: the application may ask for some records after that.
    """

    __slots__ = ("_columns", "messages")

    def __init__(self, messages: list[Record] | MessageRun) -> None:
        self.messages = messages
        self._columns: Columns | None = None

    def __len__(self) -> int:
        messages = self.messages
        return len(messages) if isinstance(messages, list) else messages.count

    def records(self) -> list[Record]:
        """Return the records. The first use makes them."""
        messages = self.messages
        if not isinstance(messages, list):
            messages = self.messages = messages.records()
        return messages

    def values(self) -> ValueRun:
        """Return the values. Each use makes a list of them."""
        messages = self.messages
        return values_of(messages) if isinstance(messages, list) else messages.values()

    def columns(self) -> Columns:
        """Return the columns. The first use makes them."""
        if self._columns is None:
            made = self.messages
            self._columns = columns_of(made, made[-1].offset + 1) if isinstance(made, list) else made.columns()
        return self._columns

    def offset_of(self, row: int) -> int:
        """Return the offset of a message. No records are made for it."""
        messages = self.messages
        if isinstance(messages, list):
            return messages[row].offset
        if row == 0:
            return messages.first_offset
        return messages.last_offset if row == messages.count - 1 else self.columns().numbers[row]

    def row_of(self, offset: int) -> int:
        """Return how many messages precede an offset. No records are made for it."""
        messages = self.messages
        if isinstance(messages, list):
            return bisect_left(messages, offset, key=_offset_of)
        return bisect_left(self.columns().numbers, offset)


class FetchedBatch:
    """
    One or more records of one partition, in order.

    Args:
        topic_partition: The partition.
        records: The records, or a run of checked messages, whose records are made when they are asked for.
        high_watermark: The offset after the last message that consumers could see at the time.
        epoch: The number of the partition's assignment.
        size_bytes: About the size of the messages on the wire.
        answer: The number of the answer that the batch is from, among those of the partition's assignment.

    Attributes:
        buffer_bytes: The size of the messages without compression, which the buffer counts.
    """

    __slots__ = (
        "_content",
        "_rows",
        "answer",
        "buffer_bytes",
        "epoch",
        "high_watermark",
        "size_bytes",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: list[Record] | MessageRun,
        high_watermark: int,
        epoch: int,
        size_bytes: int,
        answer: int = 0,
    ) -> None:
        self.topic_partition = topic_partition
        self._content = _Content(records)
        #: The rows of the content that are the records of this batch.
        self._rows = range(len(self._content))
        self.high_watermark = high_watermark
        self.epoch = epoch
        self.size_bytes = size_bytes
        self.answer = answer
        self.buffer_bytes = size_bytes if isinstance(records, list) else records.size_bytes

    @property
    def run(self) -> MessageRun | None:
        """The checked messages, or None once their records were made."""
        messages = self._content.messages
        return None if isinstance(messages, list) else messages

    @property
    def records(self) -> list[Record]:
        """The records. The first use makes them."""
        records = self._content.records()
        if len(records) != len(self._rows):
            records = records[self._rows.start : self._rows.stop]
            self._content, self._rows = _Content(records), range(len(records))
        return records

    def values(self) -> ValueRun:
        """Return the values, with records that are made later. Only a part of a batch has its records made at once."""
        # A batch of which a part is taken may be taken in many parts. Its values are not made for each of them again.
        if len(self._rows) == len(self._content):
            return self._content.values()
        return values_of(self.records)

    def columns(self, fencing_token: FencingToken | None) -> RecordColumns:
        """Return the records as columns, delivered under this claim. All parts of a batch share their columns."""
        return RecordColumns(self.topic_partition, fencing_token, self._content.columns(), self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self.offset_of(0)

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.offset_of(len(self._rows) - 1)

    def offset_of(self, number: int) -> int:
        """Return the offset of the record with this number, counted from 0."""
        return self._content.offset_of(self._rows[number])

    def count_before(self, offset: int) -> int:
        """Return how many of the records precede an offset."""
        return min(max(self._content.row_of(offset) - self._rows.start, 0), len(self._rows))

    def part(self, start: int, stop: int) -> FetchedBatch:
        """Return a batch of some of the records, from number ``start`` to ``stop``. No records are made for it."""
        changed = self._copy()
        changed._content, changed._rows = self._content, self._rows[start:stop]
        return changed

    def _replace(self, *, records: list[Record]) -> FetchedBatch:
        """Return a batch with other records, and otherwise the same values, as a named tuple does."""
        changed = self._copy()
        changed._content, changed._rows = _Content(records), range(len(records))
        return changed

    def _copy(self) -> FetchedBatch:
        changed = FetchedBatch.__new__(FetchedBatch)
        changed.topic_partition = self.topic_partition
        changed.high_watermark = self.high_watermark
        changed.epoch = self.epoch
        changed.size_bytes = self.size_bytes
        changed.answer = self.answer
        changed.buffer_bytes = self.buffer_bytes
        return changed
