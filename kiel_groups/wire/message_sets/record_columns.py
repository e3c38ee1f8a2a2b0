"""Records of one partition as columns, as ``consume_batches()`` returns them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import sub
from typing import Any, overload

from kiel_groups.errors import ConfigError
from kiel_groups.model import FencingToken, TopicPartition
from kiel_groups.wire.message_sets.columns import BinaryColumn, Columns


class ByteColumn(Sequence["memoryview | None"]):
    """
    The keys or the values of some records: a sequence of a memoryview for each key or value, or None for null.

    A view is created when it is accessed, and keeps the bytes of the whole column in memory. ``bytes(view)`` returns a
    copy of one key or value.
    """

    __slots__ = ("_data", "_ends", "_rows", "_validity")

    def __init__(self, column: BinaryColumn, rows: range) -> None:
        self._data = memoryview(column.data)
        self._ends = memoryview(column.ends).cast("i")
        self._validity = column.validity
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all keys or values."""
        return self._ends[self._rows.stop] - self._ends[self._rows.start]

    @property
    def longest(self) -> int:
        """The number of bytes of the longest key or value."""
        ends: list[int] = self._ends[self._rows.start : self._rows.stop + 1].tolist()
        return max(map(sub, ends[1:], ends), default=0)

    @overload
    def __getitem__(self, index: int) -> memoryview | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[memoryview | None]: ...

    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview | None] | None:
        if isinstance(index, slice):
            return [self._view(row) for row in self._rows[index]]
        return self._view(self._rows[index])

    def __iter__(self) -> Iterator[memoryview | None]:
        # Without nulls, this takes half of the time of ``_view``.
        if self._validity is not None:
            yield from map(self._view, self._rows)
            return
        data, start = self._data, self._ends[self._rows.start]
        for end in self._ends[self._rows.start + 1 : self._rows.stop + 1]:
            yield data[start:end]
            start = end

    def to_list(self) -> list[bytes | None]:
        """Return a copy of each key or value, or None for null. Copies of single views take three times as long."""
        rows, validity = self._rows, self._validity
        if validity is not None and not validity.strip(b"\0"):
            return [None] * len(rows)
        data = self._data.obj
        assert isinstance(data, bytes)
        ends: list[int] = self._ends[rows.start : rows.stop + 1].tolist()
        copies: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
        if validity is None:
            return copies
        return [copy if validity[row >> 3] >> (row & 7) & 1 else None for row, copy in zip(rows, copies, strict=True)]

    def _view(self, row: int) -> memoryview | None:
        if self._validity is not None and not self._validity[row >> 3] >> (row & 7) & 1:
            return None
        return self._data[self._ends[row] : self._ends[row + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """
    One or more records of one partition as columns, by ascending offset. ``len()`` is the number of records.

    ``fencing_token`` is the token of the claim under which the records were delivered, as in ``PartitionBatch``.
    ``fencing_token`` is None if the consumer reads without a group.
    """

    topic_partition: TopicPartition
    fencing_token: FencingToken | None
    #: The columns that the records are part of, and the rows of these records.
    columns: Columns = field(repr=False)
    rows: range

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def offsets(self) -> memoryview:
        """The offsets, as integers of 64 bits in native byte order."""
        return self.columns.numbers[self.rows.start : self.rows.stop]

    @property
    def keys(self) -> ByteColumn:
        """The keys of the records, as memoryviews or None."""
        return ByteColumn(self.columns.keys, self.rows)

    @property
    def values(self) -> ByteColumn:
        """The values of the records, as memoryviews or None."""
        return ByteColumn(self.columns.values, self.rows)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all keys and values."""
        return self.keys.size_bytes + self.values.size_bytes

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self.columns.numbers[self.rows.start]

    @property
    def next_offset(self) -> int:
        """The offset after the last record. A commit of these records stores this offset."""
        return self.columns.numbers[self.rows.stop - 1] + 1

    def to_pyarrow(self) -> Any:
        """
        Return the records as a ``pyarrow.RecordBatch`` that shares their memory.

        The columns of the batch are ``offset`` (int64), ``key`` and ``value`` (binary, with null for a record without
        key or value).

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            from kiel_groups.wire.message_sets.arrow_arrays import record_batch
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"to_pyarrow(): pyarrow is missing in {sys.executable}; install kiel-groups[arrow], or use the columns"
                " offsets, keys and values, which need no library"
            ) from error
        return record_batch(self.columns, self.rows)
