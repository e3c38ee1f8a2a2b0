"""Decode message sets into columns, in the layout of Arrow's buffers, so that no row is handled in Python."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets import compiled_decoder
from kiel_groups.wire.message_sets.decoder import decode_message_set
from kiel_groups.wire.primitives import Buffer

__all__ = ["BinaryColumn", "Columns", "columns_of", "decode_columns"]

_OFFSET_BYTES = 8
#: The most bytes of a column: its ends are int32.
_MOST_BYTES = (1 << 31) - 1


class BinaryColumn(NamedTuple):
    """
    Byte strings, one after the other.

    ``ends`` are int32 in native byte order, one more than there are values: a 0, then where in ``data`` each value
    ends. ``validity`` has a bit for each value, the lowest of each byte first, 0 for a null value. ``validity`` is None
    if no value is null. ``null_count`` is the number of null values.
    """

    data: bytes
    ends: bytes
    validity: bytes | None
    null_count: int


@dataclass(frozen=True, slots=True)
class Columns:
    """
    Messages of one partition, by ascending offset. ``len`` is their number.

    ``offsets`` are int64 in native byte order. ``next_offset`` is where the next fetch begins: after the last message,
    or at the requested end if the set has a message at that offset or above, so that no message before it is left.
    """

    offsets: bytes
    keys: BinaryColumn
    values: BinaryColumn
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets) // _OFFSET_BYTES

    @property
    def numbers(self) -> memoryview:
        """The offsets, as integers."""
        return memoryview(self.offsets).cast("q")


def decode_columns(
    message_set: Buffer,
    topic_partition: TopicPartition,
    position: int,
    *,
    max_decompressed_bytes: int,
    end: int | None = None,
) -> Columns:
    """
    Decode the message set of a fetch from one partition, with the checks of ``decode_message_set``.

    Args:
        message_set: The set as received. An unfinished message at its end is dropped.
        topic_partition: The partition that the set belongs to.
        position: The offset of the fetch. Older messages, which a compressed wrapper may contain, are skipped.
        max_decompressed_bytes: How many bytes compressed messages may unpack to. With the set itself, at most 2 GiB.
        end: The offset to stop before, not below the position, or None to read all messages.

    Returns:
        Messages with ``position <= offset < end``, up to the first message that cannot be read. The next fetch begins
        at ``next_offset``. There are no messages if the set is empty, or has no message in that range.

    Raises:
        PartialMessage: There is no message to return, and the set ends with the beginning of a message.
        NoRecords: There is no message to return, and the log has none up to another offset.
        MessageTooLargeError: No message precedes a wrapper that unpacks to more than the bound.
        ProtocolError: No message precedes data that cannot be read. The error names topic, partition and offset.
    """
    last_wanted = compiled_decoder.LAST_OFFSET if end is None else end - 1
    budget = min(max_decompressed_bytes, _MOST_BYTES - len(message_set))
    if not compiled_decoder.COMPILED:
        records = decode_message_set(message_set, topic_partition, position, max_decompressed_bytes=budget)
        last_offset = records[-1].offset if records else position - 1
        wanted = records[: bisect_left(records, last_wanted + 1, key=attrgetter("offset"))]
        return columns_of(wanted, min(last_offset, last_wanted) + 1)
    found = compiled_decoder.check_set(message_set, topic_partition, position, budget, last_wanted)
    offsets, keys, values = found.columns()
    if not offsets:
        found.raise_reason()
    next_offset = last_wanted if found.passed else found.last_offset
    return Columns(offsets, BinaryColumn(*keys), BinaryColumn(*values), max(next_offset + 1, position))


def columns_of(records: Sequence[Record], next_offset: int) -> Columns:
    """Put records with bytes into columns, one by one."""
    return Columns(
        array("q", [record.offset for record in records]).tobytes(),
        _binary_column([record.key for record in records]),
        _binary_column([record.value for record in records]),
        next_offset,
    )


def _binary_column(values: Sequence[bytes | None]) -> BinaryColumn:
    ends = array("i", accumulate((len(value or b"") for value in values), initial=0)).tobytes()
    validity = sum(1 << row for row, value in enumerate(values) if value is not None)
    null_count = sum(value is None for value in values)
    bits = validity.to_bytes((len(values) + 7) // 8, "little") if null_count else None
    return BinaryColumn(b"".join(filter(None, values)), ends, bits, null_count)
