"""
Check a message set with the compiled decoder (``_messages``), and divide it into runs of plain messages.

The compiled code reads plain messages only. Where it stops, this module examines what follows: a wrapper, whose content
becomes runs of its own, the end of the set, or invalid data. If the package was installed without a compiler,
``COMPILED`` is False, and ``python_decoder`` reads message sets instead.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from kiel_groups.errors import MessageTooLargeError, ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.message_layout import (
    BAD_CRC,
    BAD_LENGTH,
    OVERHEAD_BYTES,
    Run,
    check_content,
    check_wrapper,
    damage_in_wrapper,
    message_at,
    offset_and_size_at,
    offset_at,
    refusal,
    unfinished_message,
)
from kiel_groups.wire.message_sets.wrappers import unpack, value_start_of
from kiel_groups.wire.primitives import Buffer

try:
    from kiel_groups.wire import _messages
except ImportError:
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "LAST_OFFSET", "PIECE_BYTES", "CheckedSet", "check_in_steps", "check_set"]

#: The highest possible offset.
LAST_OFFSET = (1 << 63) - 1
#: A piece of a set is at most this long, unless one message is longer.
PIECE_BYTES = 256 << 10

#: Bytes, and where in them whole plain messages start and stop.
Piece = tuple[Buffer, int, int]


@dataclass(slots=True)
class CheckedSet:
    """
    The readable part of a set, and why it ends.

    The pieces may include messages before ``position`` and after ``last_wanted``.
    """

    data: Buffer
    source: TopicPartition
    position: int
    last_wanted: int = LAST_OFFSET
    piece_bytes: int = PIECE_BYTES
    #: Wrappers that are larger than this, packed or unpacked, are announced; None if no wrapper is.
    announced_bytes: int | None = None
    pieces: list[Piece] = field(default_factory=list)
    #: The offset of the last message that was read, or skipped inside a wrapper.
    last_offset: int = -1
    #: The position in ``data`` after the message with ``last_offset``, or after the wrapper that contains the message.
    stop: int = 0
    #: Whether reading ended at a message after ``last_wanted``.
    passed: bool = False
    error: ProtocolError | None = None

    def records(self) -> list[Record]:
        """Return the records from ``position`` to ``last_wanted``."""
        topic, partition = self.source
        return _messages.records(tuple(self.pieces), self.position, self.last_wanted, Record, topic, partition)

    def values(self) -> tuple[list[bytes | None], list[bytes | None] | None, list[int] | None]:
        """Return the values, keys and offsets of these records; see ``_messages.pyi``."""
        return _messages.values(tuple(self.pieces), self.position, self.last_wanted)

    def columns(self) -> tuple[bytes, _messages.Column, _messages.Column]:
        """Return the offsets, keys and values of these records as columns; see ``_messages.pyi``."""
        return _messages.columns(tuple(self.pieces), self.position, self.last_wanted)

    def span(self) -> tuple[int, int, int]:
        """Return the number of these records, and their first and last offset."""
        return _messages.span(tuple(self.pieces), self.position, self.last_wanted)

    def raise_reason(self) -> None:
        """
        Raise the reason why the set has no wanted message. Do nothing if the set has simply ended.

        Raises:
            ProtocolError: A message could not be read.
            PartialMessage: The set ends with the beginning of a message.
            NoRecords: The set ends with filler, or with batches without records.
        """
        if self.error is not None:
            raise self.error
        if not self.passed and self.stop < len(self.data):
            raise unfinished_message(self.data, self.stop, self.source, self.position)


def check_set(
    data: Buffer, source: TopicPartition, position: int, max_decompressed_bytes: int, last_wanted: int = LAST_OFFSET
) -> CheckedSet:
    """
    Check a set up to the first message that cannot be read, or that is after ``last_wanted``.

    Args:
        data: The set, which must not change as long as the result is used.
        source: The partition that the set belongs to.
        position: The offset of the fetch. Wrappers that end before this offset are not unpacked.
        max_decompressed_bytes: How much wrappers may unpack to.
        last_wanted: Reading ends with the first message that has a higher offset.
    """
    found = CheckedSet(data, source, position, last_wanted)
    found.pieces += filter(None, check_in_steps(found, max_decompressed_bytes))
    return found


def check_in_steps(found: CheckedSet, max_decompressed_bytes: int) -> Iterator[Piece | None]:
    """
    Check a set piece by piece, and yield each piece as soon as it is checked.

    A step checks one piece of plain messages, or unpacks one wrapper. None announces a step that unpacks a wrapper of
    more than ``found.announced_bytes``, and so takes long. After the last step, ``found`` has the reason why the
    readable part ends.
    """
    try:
        yield from _check(found, max_decompressed_bytes)
    except ProtocolError as error:
        found.error = error


def _check(found: CheckedSet, budget: int) -> Iterator[Piece | None]:
    start = -1
    while start < found.stop and not found.passed:
        start = found.stop
        yield from _check_plain(found)
        budget = yield from _check_wrappers(found, budget)
    if not found.passed:
        check_wrapper(found.data, found.stop, found.last_offset, found.source)


def _check_plain(found: CheckedSet) -> Iterator[Piece]:
    """Check the plain messages at ``found.stop``."""
    data = found.data
    while not found.passed:
        start, window = found.stop, _window(data, found.stop, found.piece_bytes)
        checked = _messages.check(data, start, window, found.last_offset, found.last_wanted)
        found.stop, found.last_offset, verdict = checked
        if found.stop > start:
            yield data, start, found.stop
        found.passed = verdict == _messages.STOPPED_BEHIND
        _refuse(verdict, data, found.stop, found.source)
        if found.stop == start or window == len(data):
            return


def _check_wrappers(found: CheckedSet, budget: int) -> Generator[Piece | None, None, int]:
    """Unpack and check the wrappers at ``found.stop``, and return what is left of the budget."""
    view = wrapper = memoryview(found.data)
    try:
        while not found.passed and (place := _messages.wrapper(view, found.stop, found.last_offset)):
            stop, offset, _, _ = place
            pieces: list[Piece] = []
            if offset >= found.position:
                wrapper = view[found.stop : stop]
                content = _unwrap_small(wrapper, place, found, budget)
                if content is None:
                    yield None
                    content = _unwrap(wrapper, place, found, budget)
                pieces = _check_content(content, found, offset)
                budget -= len(content)
            found.stop, found.last_offset = stop, offset
            found.passed = offset > found.last_wanted
            yield from pieces
    except MessageTooLargeError:
        raise
    except ProtocolError as error:
        raise damage_in_wrapper(error, wrapper) from error
    return budget


def _unwrap_small(wrapper: memoryview, place: _messages.Place, found: CheckedSet, budget: int) -> Buffer | None:
    """
    Unpack a wrapper, or return None if it has to be announced.

    Only gzip and lz4 do not say how much they unpack to. So the content is unpacked up to the bound, and what was
    unpacked is lost if there is more.
    """
    most = found.announced_bytes
    if most is None or most >= budget:
        return _unwrap(wrapper, place, found, budget)
    if len(wrapper) > most:
        return None
    try:
        return _unwrap(wrapper, place, found, most)
    except MessageTooLargeError:
        return None


def _unwrap(wrapper: memoryview, place: _messages.Place, found: CheckedSet, limit: int) -> Buffer:
    _, offset, codec, value_start = place
    if value_start < 0 or not _messages.crc_matches(wrapper):
        # The compiled code does not say what is wrong.
        value_start = value_start_of(wrapper, found.source)
    return unpack(wrapper, value_start, codec, found.source, offset, limit)


def _window(data: Buffer, start: int, piece_bytes: int) -> int:
    """Return where the piece that begins at ``start`` ends at most: it has one whole message, if the data has."""
    size, end = len(data), start + piece_bytes
    if start + OVERHEAD_BYTES <= size:
        end = max(end, start + OVERHEAD_BYTES + offset_and_size_at(data, start)[1])
    return min(end, size)


def _check_content(content: Buffer, found: CheckedSet, wrapper_offset: int) -> list[Piece]:
    """Check the content of a wrapper, and divide it into pieces."""
    pieces: list[Piece] = []
    size, stop, last_offset, source = len(content), 0, found.last_offset, found.source
    while stop < size:
        start, window = stop, _window(content, stop, found.piece_bytes)
        stop, last_offset, verdict = _messages.check(content, start, window, last_offset, LAST_OFFSET)
        if verdict != _messages.STOPPED:
            _refuse(verdict, content, stop, source)
        if stop == start:
            break
        pieces.append((content, start, stop))
    if stop < size or last_offset != wrapper_offset:
        end = check_wrapper(content, stop, last_offset, source)
        check_content(content, Run(stop, last_offset, end), wrapper_offset, source)
    return pieces


def _refuse(verdict: int, data: Buffer, stop: int, source: TopicPartition) -> None:
    """Raise if the verdict is that the plain message at ``stop`` cannot be read."""
    if verdict == _messages.STOPPED_BY_LENGTH:
        raise refusal(source, offset_at(data, stop), BAD_LENGTH, message_at(data, stop))
    if verdict == _messages.STOPPED_BY_CRC:
        raise refusal(source, offset_at(data, stop), BAD_CRC, message_at(data, stop))
