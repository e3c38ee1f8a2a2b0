"""Columns of messages, in the layout of Arrow's buffers. The compiled decoder creates them without Python objects."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from kiel_groups.model import Record

_OFFSET_BYTES = 8


class BinaryColumn(NamedTuple):
    """
    A column of byte strings, in the layout of Arrow's binary arrays.

    ``data`` has all values, one after the other. ``ends`` are int32 in native byte order: a 0, then the position in
    ``data`` where each value ends. ``validity`` has a bit for each value, 0 for a null value, from the lowest bit of
    the first byte on. ``validity`` is None if no value is null. ``null_count`` is the number of null values.
    """

    data: bytes
    ends: bytes
    validity: bytes | None
    null_count: int


@dataclass(frozen=True, slots=True)
class Columns:
    """
    Messages of one partition as columns, by ascending offset. ``len()`` is the number of messages.

    ``offsets`` are int64 in native byte order. The next fetch begins at ``next_offset``: the offset after the last
    message, or the requested end if the set has a message at or after that end.
    """

    offsets: bytes
    keys: BinaryColumn
    values: BinaryColumn
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets) // _OFFSET_BYTES

    @property
    def numbers(self) -> memoryview:
        """The offsets as a memoryview of integers."""
        return memoryview(self.offsets).cast("q")


def columns_of(records: Sequence[Record], next_offset: int) -> Columns:
    """Return columns of these records, whose keys and values are bytes or None."""
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
