"""Create Arrow arrays that share the memory of columns. Only code that needs pyarrow imports this module."""

from __future__ import annotations

import pyarrow as pa

from kiel_groups.wire.message_sets.columns import BinaryColumn, Columns

_SCHEMA = pa.schema([pa.field("offset", pa.int64(), nullable=False), ("key", pa.binary()), ("value", pa.binary())])


def binary_array(column: BinaryColumn, rows: range) -> pa.Array:
    """Return these rows of a key or value column as an Arrow array, which shares the buffers of the whole column."""
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    # -1: Arrow counts the nulls of these rows itself, once it is asked for their number.
    null_count = 0 if validity is None else -1
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers, null_count, rows.start)


def offset_array(columns: Columns, rows: range) -> pa.Array:
    """Return the offsets of these rows as an Arrow array, which shares the buffer of all offsets."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(columns.offsets)], 0, rows.start)


def record_batch(columns: Columns, rows: range) -> pa.RecordBatch:
    """Return these rows as an Arrow record batch with the columns ``offset``, ``key`` and ``value``."""
    keys, values = binary_array(columns.keys, rows), binary_array(columns.values, rows)
    return pa.RecordBatch.from_arrays([offset_array(columns, rows), keys, values], schema=_SCHEMA)
