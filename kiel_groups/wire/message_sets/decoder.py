"""
Decode message sets of magic 0: ``[offset int64, size int32, crc int32, magic int8, attributes int8, key, value]*``.

A plain message is not compressed. A wrapper is a message whose value is a compressed message set.

The compiled code (``_messages``) checks plain messages, and makes records, values or columns from them. Where it stops,
this module examines the next bytes: a wrapper, the end of the set, or invalid data. The compiled code also checks the
content of a wrapper. If the package was installed without a compiler, ``COMPILED`` is False, and ``python_decoder``
decodes message sets instead.

A message set is divided into runs. A run has the checked bytes of its messages, and creates the records or columns of
these messages on demand. Records take several times as much memory as the bytes, so a consumer creates records only for
the run that it delivers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import FetchedRecords, Record, TopicPartition
from kiel_groups.wire.message_sets.columns import BinaryColumn, Columns, columns_of
from kiel_groups.wire.message_sets.message_layout import (
    BAD_CRC,
    BAD_LENGTH,
    LEAST_SIZE,
    OVERHEAD_BYTES,
    check_content,
    check_wrapper,
    damage_in_wrapper,
    message_at,
    offset_and_size_at,
    offset_at,
    refusal,
    unfinished_message,
    unpack,
    value_start_of,
)
from kiel_groups.wire.primitives import Buffer

try:
    from kiel_groups.wire import _messages
except ImportError:
    COMPILED = False
else:
    COMPILED = True

#: The highest possible offset.
_LAST_OFFSET = (1 << 63) - 1
#: The most bytes of a column: its ends are int32.
_MOST_COLUMN_BYTES = (1 << 31) - 1
#: A piece of a set is at most this long, unless one message is longer.
_PIECE_BYTES = 256 << 10
#: A run is at most this long, unless one message is longer. A blocking loop pays for each run with a change of the
#: thread (0.1 ms), so runs are longer than the pieces that one step checks.
RUN_BYTES = 8 * _PIECE_BYTES
#: No piece is added to a run of about so many messages: the records of more would not fit into the processor's cache.
_ENOUGH_MESSAGES = 4_000
#: A run may keep the content of a wrapper of this size in memory, which is more than the run itself.
_MOST_KEPT_BYTES = 4 * _PIECE_BYTES

#: Bytes, and the positions in them at which whole plain messages start and stop.
Piece = tuple[Buffer, int, int]


def decode_columns(
    message_set: Buffer,
    topic_partition: TopicPartition,
    position: int,
    *,
    max_decompressed_bytes: int,
    end: int | None = None,
) -> Columns:
    """
    Decode the message set of a fetch from one partition.

    Args:
        message_set: The set as received. The decoder drops an unfinished message or a filler message (see
            ``FetchRequest``) at the end of the set.
        topic_partition: The partition that the set belongs to.
        position: The offset of the fetch. The decoder skips older messages of a wrapper.
        max_decompressed_bytes: The largest number of bytes to which all wrappers together may unpack. A lower limit
            applies if the unpacked wrappers and the set would exceed 2 GiB.
        end: The offset before which to stop, at least ``position``, or None to read all messages.

    Returns:
        Messages with ``position <= offset < end``, up to the first message that cannot be read. The next fetch begins
        at ``next_offset``. There are no messages if the set is empty, or has no message in that range.

    Raises:
        PartialMessage: There is no message to return, and the set ends with the beginning of a message.
        NoRecords: There is no message to return, and the log has no record before the error's ``next_offset``.
        MessageTooLargeError: No message precedes a wrapper that unpacks to more than the limit.
        ProtocolError: No message precedes one with a bad CRC, a bad magic, an unknown codec, a wrapper in its content,
            an offset that does not ascend, or other damage. The error names topic, partition and offset.
    """
    last_wanted = _LAST_OFFSET if end is None else end - 1
    budget = min(max_decompressed_bytes, _MOST_COLUMN_BYTES - len(message_set))
    if not COMPILED:
        records = _decoded(message_set, topic_partition, position, budget)
        last_offset = records[-1].offset if records else position - 1
        wanted = records[: bisect_left(records, last_wanted + 1, key=attrgetter("offset"))]
        return columns_of(wanted, min(last_offset, last_wanted) + 1)
    found = _SetCheck(message_set, topic_partition, position, last_wanted)
    pieces = tuple(filter(None, found.steps(budget)))
    offsets, keys, values = _messages.columns(pieces, position, last_wanted)
    if not offsets:
        found.raise_reason()
    next_offset = last_wanted if found.passed else found.last_offset
    return Columns(offsets, BinaryColumn(*keys), BinaryColumn(*values), max(next_offset + 1, position))


@dataclass(slots=True)
class _SetCheck:
    """
    Checks a message set up to the first message that cannot be read, or whose offset is above ``last_wanted``.

    A wrapper whose last offset is below ``position`` is not unpacked. The data must not change while its pieces are
    used.
    """

    data: Buffer
    source: TopicPartition
    position: int
    last_wanted: int = _LAST_OFFSET
    #: A wrapper that is larger than this, packed or unpacked, is announced. With None, no wrapper is announced.
    announced_bytes: int | None = None
    #: The offset of the last message that was read, or skipped inside a wrapper.
    last_offset: int = field(default=-1, init=False)
    #: The position in ``data`` after the message with ``last_offset``, or after the wrapper that contains the message.
    stop: int = field(default=0, init=False)
    #: Whether reading ended at a message after ``last_wanted``.
    passed: bool = field(default=False, init=False)
    error: ProtocolError | None = field(default=None, init=False)

    def steps(self, budget: int) -> Iterator[Piece | None]:
        """
        Check the set, and yield each piece right after the check of the piece.

        All wrappers together may unpack to ``budget`` bytes. A step checks one piece of plain messages, or unpacks one
        wrapper. The method yields None before a long step, that is, a step that unpacks a wrapper of more than
        ``announced_bytes``. A piece may include messages before ``position`` and after ``last_wanted``. The method
        raises no error: after the last step, ``error``, ``passed`` and ``stop`` show why the readable part ends.
        """
        data, source, size = self.data, self.source, len(self.data)
        view = memoryview(data)
        try:
            while not self.passed:
                start, window = self.stop, _window(data, self.stop)
                self.stop, self.last_offset, verdict = _messages.check(
                    data, start, window, self.last_offset, self.last_wanted
                )
                if self.stop > start:
                    yield data, start, self.stop
                if verdict != _messages.STOPPED:
                    self.passed = verdict == _messages.STOPPED_BEHIND
                    _refuse(verdict, data, self.stop, source)
                elif start == self.stop or window == size:
                    place = _messages.wrapper(view, self.stop, self.last_offset)
                    if place is None:
                        check_wrapper(data, self.stop, self.last_offset, source)
                        return
                    wrapper_stop, offset, _, _ = place
                    if offset >= self.position:
                        wrapper = view[self.stop : wrapper_stop]
                        content = self._unpack_small(wrapper, place, budget)
                        if content is None:
                            yield None
                            content = self._unpack(wrapper, place, budget)
                        budget -= len(content)
                        yield from self._pieces_of(content, wrapper, offset)
                    self.stop, self.last_offset = wrapper_stop, offset
                    self.passed = offset > self.last_wanted
        except ProtocolError as error:
            self.error = error

    def _unpack_small(self, wrapper: memoryview, place: _messages.Place, budget: int) -> Buffer | None:
        """
        Unpack a wrapper, or return None if the wrapper is so large that its unpacking must be announced.

        gzip and lz4 do not state the unpacked size. So the content is unpacked up to ``announced_bytes``, and dropped
        if there is more.
        """
        most = self.announced_bytes
        if most is None or most >= budget:
            return self._unpack(wrapper, place, budget)
        if len(wrapper) > most:
            return None
        try:
            return self._unpack(wrapper, place, most)
        except MessageTooLargeError:
            return None

    def _unpack(self, wrapper: memoryview, place: _messages.Place, limit: int) -> Buffer:
        _, offset, codec, value_start = place
        try:
            if value_start < 0 or not _messages.crc_matches(wrapper):
                # The compiled code does not say what is wrong.
                value_start = value_start_of(wrapper, self.source)
            return unpack(wrapper, value_start, codec, self.source, offset, limit)
        except MessageTooLargeError:
            raise
        except ProtocolError as error:
            raise damage_in_wrapper(error, wrapper) from error

    def _pieces_of(self, content: Buffer, wrapper: Buffer, offset: int) -> list[Piece]:
        """
        Check the unpacked content of a wrapper, and divide it into pieces.

        Raises:
            DamagedMessage: The content is not valid. The error has the whole wrapper.
        """
        pieces: list[Piece] = []
        size, stop, last_offset, source = len(content), 0, self.last_offset, self.source
        try:
            while stop < size:
                start, window = stop, _window(content, stop)
                stop, last_offset, verdict = _messages.check(content, start, window, last_offset, _LAST_OFFSET)
                if verdict != _messages.STOPPED:
                    _refuse(verdict, content, stop, source)
                if stop == start:
                    break
                pieces.append((content, start, stop))
            if stop < size or last_offset != offset:
                check_content(content, stop, last_offset, offset, source)
        except ProtocolError as error:
            raise damage_in_wrapper(error, wrapper) from error
        return pieces

    def raise_reason(self) -> None:
        """
        Raise the error that explains why the set has no wanted message. Do nothing if the set ended without an error.

        Raises:
            ProtocolError: A message could not be read.
            PartialMessage: The set ends with the beginning of a message.
            NoRecords: The set ends with a filler message (see ``FetchRequest``), or with batches without records.
        """
        if self.error is not None:
            raise self.error
        if not self.passed and self.stop < len(self.data):
            raise unfinished_message(self.data, self.stop, self.source, self.position)


def _window(data: Buffer, start: int) -> int:
    """
    Return the position where the check of a piece must end, if the piece begins at ``start``.

    The position is ``_PIECE_BYTES`` after ``start``, or the end of the first message if that message is longer. The
    position is never beyond the end of the data.
    """
    size, end = len(data), start + _PIECE_BYTES
    if start + OVERHEAD_BYTES <= size:
        end = max(end, start + OVERHEAD_BYTES + offset_and_size_at(data, start)[1])
    return min(end, size)


def _refuse(verdict: int, data: Buffer, stop: int, source: TopicPartition) -> None:
    """Raise DamagedMessage if ``verdict`` means that the plain message at ``stop`` cannot be read."""
    if verdict == _messages.STOPPED_BY_LENGTH:
        raise refusal(source, offset_at(data, stop), BAD_LENGTH, message_at(data, stop))
    if verdict == _messages.STOPPED_BY_CRC:
        raise refusal(source, offset_at(data, stop), BAD_CRC, message_at(data, stop))


class ValueRun(NamedTuple):
    """The values (bytes or None) of messages, and their records. A record may be created when it is accessed."""

    values: list[bytes | None]
    records: Sequence[Record]


class _CheckedRun:
    """
    A run of messages of one partition, by ascending offset. The compiled code has checked these messages.

    ``count`` is the number of messages at or after the position of the fetch. This number may be 0. ``size_bytes`` is
    the uncompressed size of the pieces, which may include older messages.
    """

    __slots__ = ("_position", "_source", "count", "first_offset", "last_offset", "pieces", "size_bytes")

    def __init__(self, pieces: list[Piece], source: TopicPartition, position: int) -> None:
        self.pieces, self._source, self._position = tuple(pieces), source, position
        self.count, self.first_offset, self.last_offset = _messages.span(self.pieces, position, _LAST_OFFSET)
        self.size_bytes = sum(stop - start for _, start, stop in pieces)

    def records(self) -> list[Record]:
        """Create the records of the run."""
        return _messages.records(self.pieces, self._position, _LAST_OFFSET, Record, *self._source)

    def values(self) -> ValueRun:
        """Return the values and records of the run. The results do not keep the bytes of the run in memory."""
        values, keys, offsets = _messages.values(self.pieces, self._position, _LAST_OFFSET)
        numbers = range(self.first_offset, self.last_offset + 1) if offsets is None else offsets
        return ValueRun(values, FetchedRecords(self._source, values, keys, numbers))

    def columns(self) -> Columns:
        """Return the messages of the run as columns."""
        offsets, keys, values = _messages.columns(self.pieces, self._position, _LAST_OFFSET)
        return Columns(offsets, BinaryColumn(*keys), BinaryColumn(*values), self.last_offset + 1)


class _DecodedRun:
    """A run of one or more records that ``python_decoder`` has already created."""

    __slots__ = ("_records", "count", "first_offset", "last_offset", "size_bytes")

    def __init__(self, records: list[Record]) -> None:
        self._records = records
        self.count, self.first_offset, self.last_offset = len(records), records[0].offset, records[-1].offset
        self.size_bytes = sum(map(_size_of, records))

    def records(self) -> list[Record]:
        """Return the records of the run."""
        return self._records

    def values(self) -> ValueRun:
        """Return the values of the records, and the records."""
        return values_of(self._records)

    def columns(self) -> Columns:
        """Return the records of the run as columns."""
        return columns_of(self._records, self.last_offset + 1)


MessageRun: TypeAlias = _CheckedRun | _DecodedRun


def values_of(records: Sequence[Record]) -> ValueRun:
    """Return these records with the list of their values. The keys and values of these records are bytes or None."""
    return ValueRun([record.value for record in records], records)


def _size_of(record: Record) -> int:
    return OVERHEAD_BYTES + LEAST_SIZE + len(record.key or b"") + len(record.value or b"")


def message_steps(
    message_set: Buffer,
    topic_partition: TopicPartition,
    position: int,
    *,
    max_decompressed_bytes: int,
    announced_bytes: int | None = None,
) -> Iterator[MessageRun | None]:
    """
    Check the message set of a fetch from one partition, run by run, and yield each run as soon as it is checked.

    Without the compiled decoder, the first step decodes the whole set, and is not announced.

    Args:
        message_set: The set as received. Runs do not refer to it: they have copies, or the content of small wrappers.
        topic_partition: The partition that the set belongs to.
        position: The offset of the fetch. The decoder skips older messages of a wrapper.
        max_decompressed_bytes: The largest number of bytes to which all wrappers together may unpack.
        announced_bytes: The size, packed or unpacked, above which a wrapper is announced. With None, no wrapper is
            announced.

    Yields:
        Runs by ascending offset, up to the first message that cannot be read. None is yielded before a step that
        unpacks a large wrapper. The caller may take this step on another thread.

    Raises:
        PartialMessage, NoRecords, MessageTooLargeError, ProtocolError: As in ``decode_columns``, if there was no run.
    """
    if not COMPILED:
        yield from _decoded_runs(message_set, topic_partition, position, max_decompressed_bytes)
        return
    found = _SetCheck(message_set, topic_partition, position, announced_bytes=announced_bytes)
    pieces: list[Piece] = []
    is_empty, room, messages = True, RUN_BYTES, 0
    for piece in found.steps(max_decompressed_bytes):
        if piece is None:
            yield None
            continue
        data, start, stop = piece
        size = stop - start
        if pieces and (room < size or messages >= _ENOUGH_MESSAGES):
            run = _CheckedRun(pieces, topic_partition, position)
            pieces, room, messages = [], RUN_BYTES, 0
            if run.count:
                is_empty = False
                yield run
        # A piece of the set itself, or of a large wrapper's content, is copied. Otherwise, one run that waits for
        # delivery would keep the whole set or content in memory.
        is_copied = data is message_set or len(data) > _MOST_KEPT_BYTES
        pieces.append((bytes(data[start:stop]), 0, size) if is_copied else piece)
        room -= size
        # All messages count as large as the first one.
        messages += size // (OVERHEAD_BYTES + offset_and_size_at(data, start)[1])
    run = _CheckedRun(pieces, topic_partition, position)
    if run.count:
        yield run
    elif is_empty:
        found.raise_reason()


def _decoded_runs(
    message_set: Buffer, source: TopicPartition, position: int, max_decompressed_bytes: int
) -> Iterator[MessageRun]:
    records: list[Record] = []
    room = RUN_BYTES
    for record in _decoded(message_set, source, position, max_decompressed_bytes):
        size = _size_of(record)
        if room < size and records:
            yield _DecodedRun(records)
            records, room = [], RUN_BYTES
        records.append(record)
        room -= size
    if records:
        yield _DecodedRun(records)


def _decoded(message_set: Buffer, source: TopicPartition, position: int, max_decompressed_bytes: int) -> list[Record]:
    # aiokafka takes a while to import, so it is imported only where it is needed.
    from kiel_groups.wire.message_sets.python_decoder import decode_uncompiled

    return decode_uncompiled(bytes(message_set), source, position, max_decompressed_bytes)
