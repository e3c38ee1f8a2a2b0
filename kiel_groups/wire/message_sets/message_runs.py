"""
Divide the message set of a fetch into runs of messages, whose records or columns are made when they are wanted.

A run has the bytes of its messages, which are checked. Its records take several times as much memory, so a consumer
makes them for the run that it delivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kiel_groups.model import FetchedRecords, Record, TopicPartition
from kiel_groups.wire.message_sets import compiled_decoder
from kiel_groups.wire.message_sets.columns import BinaryColumn, Columns, columns_of
from kiel_groups.wire.message_sets.compiled_decoder import PIECE_BYTES, CheckedSet, check_in_steps
from kiel_groups.wire.message_sets.decoder import decode_message_set
from kiel_groups.wire.message_sets.message_layout import LEAST_SIZE, OVERHEAD_BYTES
from kiel_groups.wire.primitives import Buffer

__all__ = ["RUN_BYTES", "MessageRun", "ValueRun", "message_runs", "message_steps", "values_of"]

#: A run is at most this long, unless one message is longer. A blocking loop pays for each run with a change of the
#: thread (0.1 ms), so runs are longer than the pieces that one step checks.
RUN_BYTES = 2 * PIECE_BYTES
#: A run may keep the content of a wrapper of this size in memory, which is more than the run itself.
_MOST_KEPT_BYTES = 2 * RUN_BYTES


class ValueRun(NamedTuple):
    """The values of some messages, bytes or None, and their records, which may be made when they are asked for."""

    values: list[bytes | None]
    records: Sequence[Record]


class MessageRun(Protocol):
    """
    One or more messages of a partition, by ascending offset, that were checked.

    ``count`` is the number of messages, ``size_bytes`` their size in a message set without compression.
    """

    count: int
    first_offset: int
    last_offset: int
    size_bytes: int

    def records(self) -> list[Record]:
        """Make the records."""

    def values(self) -> ValueRun:
        """Make a list of the values. Records are made later, one by one."""

    def columns(self) -> Columns:
        """Make columns of the same messages."""


class _CheckedRun:
    """A run that the compiled decoder has checked."""

    __slots__ = ("checked", "count", "first_offset", "last_offset", "size_bytes")

    def __init__(self, checked: CheckedSet) -> None:
        self.checked = checked
        self.count, self.first_offset, self.last_offset = checked.span()
        self.size_bytes = sum(stop - start for _, start, stop in checked.pieces)

    def records(self) -> list[Record]:
        """Make the records."""
        return self.checked.records()

    def values(self) -> ValueRun:
        """Make a list of the values. Neither it nor the records keep the bytes of the run."""
        values, keys, offsets = self.checked.values()
        numbers = range(self.first_offset, self.last_offset + 1) if offsets is None else offsets
        return ValueRun(values, FetchedRecords(self.checked.source, values, keys, numbers))

    def columns(self) -> Columns:
        """Make columns of the same messages."""
        offsets, keys, values = self.checked.columns()
        return Columns(offsets, BinaryColumn(*keys), BinaryColumn(*values), self.last_offset + 1)


class _DecodedRun:
    """A run whose records were made at once, by the decoder in Python."""

    __slots__ = ("_records", "count", "first_offset", "last_offset", "size_bytes")

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.count, self.first_offset, self.last_offset = len(records), records[0].offset, records[-1].offset
        self.size_bytes = sum(map(_size_of, records))

    def records(self) -> list[Record]:
        """Return the records."""
        return self._records

    def values(self) -> ValueRun:
        """Return the values of the records, and the records."""
        return values_of(self._records)

    def columns(self) -> Columns:
        """Put the records into columns."""
        return columns_of(self._records, self.last_offset + 1)


def values_of(records: Sequence[Record]) -> ValueRun:
    """Return the values of records with bytes, and the records."""
    return ValueRun([record.value for record in records], records)


def _size_of(record: Record) -> int:
    return OVERHEAD_BYTES + LEAST_SIZE + len(record.key or b"") + len(record.value or b"")


def message_runs(
    message_set: Buffer,
    topic_partition: TopicPartition,
    position: int,
    *,
    max_decompressed_bytes: int,
    run_bytes: int = RUN_BYTES,
) -> Iterator[MessageRun]:
    """Yield the runs of ``message_steps``, each as soon as it is checked."""
    steps = message_steps(
        message_set, topic_partition, position, max_decompressed_bytes=max_decompressed_bytes, run_bytes=run_bytes
    )
    return filter(None, steps)


def message_steps(
    message_set: Buffer,
    topic_partition: TopicPartition,
    position: int,
    *,
    max_decompressed_bytes: int,
    run_bytes: int = RUN_BYTES,
    announced_bytes: int | None = None,
) -> Iterator[MessageRun | None]:
    """
    Check the message set of a fetch from one partition, run by run, and yield each run as soon as it is checked.

    Without the compiled decoder, the first step takes long, and is not announced.

    Args:
        message_set: The set as received. Runs do not refer to it: they have copies, or what small wrappers unpack to.
        topic_partition: The partition that the set belongs to.
        position: The offset of the fetch. Older messages, which a compressed wrapper may contain, are skipped.
        max_decompressed_bytes: How many bytes compressed messages may unpack to.
        run_bytes: The size of a run at most, without compression, unless one message is larger.
        announced_bytes: The size of wrappers, packed or unpacked, above which None announces a step that takes long;
            None if no step is announced.

    Yields:
        Runs by ascending offset, up to the first message that cannot be read, as ``decode_message_set`` returns
        records. None: the next step unpacks a large wrapper, and may be taken on another thread.

    Raises:
        PartialMessage, NoRecords, MessageTooLargeError, ProtocolError: As ``decode_message_set`` does, if there was no
            run.
    """
    if not compiled_decoder.COMPILED:
        yield from _decoded_runs(message_set, topic_partition, position, max_decompressed_bytes, run_bytes)
        return
    piece_bytes = min(run_bytes, PIECE_BYTES)
    found = CheckedSet(message_set, topic_partition, position, piece_bytes=piece_bytes, announced_bytes=announced_bytes)
    collected = CheckedSet(b"", topic_partition, position)
    is_empty, room = True, run_bytes
    for piece in check_in_steps(found, max_decompressed_bytes):
        if piece is None:
            yield None
            continue
        data, start, stop = piece
        if room < stop - start and collected.pieces:
            run = _CheckedRun(collected)
            collected, room = CheckedSet(b"", topic_partition, position), run_bytes
            if run.count:
                is_empty = False
                yield run
        # A piece of the set itself, or of a large wrapper's content, is copied: the last run of it that waits for its
        # delivery would keep all of it in memory.
        size = stop - start
        is_copied = data is message_set or len(data) > _MOST_KEPT_BYTES
        collected.pieces.append((bytes(data[start:stop]), 0, size) if is_copied else (data, start, stop))
        room -= size
    run = _CheckedRun(collected)
    if run.count:
        yield run
    elif is_empty:
        found.raise_reason()


def _decoded_runs(
    message_set: Buffer, source: TopicPartition, position: int, max_decompressed_bytes: int, run_bytes: int
) -> Iterator[MessageRun]:
    records: list[Record] = []
    room = run_bytes
    for record in decode_message_set(message_set, source, position, max_decompressed_bytes=max_decompressed_bytes):
        size = _size_of(record)
        if room < size and records:
            yield _DecodedRun(records)
            records, room = [], run_bytes
        records.append(record)
        room -= size
    if records:
        yield _DecodedRun(records)
