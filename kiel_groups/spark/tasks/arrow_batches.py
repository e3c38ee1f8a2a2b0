"""Convert messages to Arrow record batches of the schema that Spark expects, without copying keys or values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.arrow_arrays import binary_array, offset_array
from kiel_groups.wire.message_sets.columns import Columns

__all__ = ["merged", "record_batch"]

#: Spark's timestamp type of messages that have no timestamp, such as those of magic 0.
_NO_TIMESTAMP_TYPE = -1
#: Each batch costs Spark as much as some thousand rows; larger batches than this gain nothing.
_BATCH_ROWS = 8_192


def record_batch(columns: Columns, topic_partition: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    """
    Return messages as a record batch.

    Args:
        columns: The messages; the batch shares their buffers.
        topic_partition: The partition of the messages.
        schema: Some of the columns of Spark's Kafka source, in any order.

    Raises:
        KeyError: The schema has an unknown column.
    """
    arrays = [_COLUMNS[field.name](columns, topic_partition) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge small batches into larger ones, and yield them; the rows keep their order. Merging copies the rows."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > _BATCH_ROWS:
            yield _merge(waiting)
            waiting, rows = [], 0
        waiting.append(batch)
        rows += batch.num_rows
    if waiting:
        yield _merge(waiting)


def _merge(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def _repeated(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


_COLUMNS: Final[dict[str, Callable[[Columns, TopicPartition], pa.Array]]] = {
    "key": lambda columns, _: binary_array(columns.keys, range(len(columns))),
    "value": lambda columns, _: binary_array(columns.values, range(len(columns))),
    "topic": lambda columns, source: _repeated(source.topic, pa.string(), len(columns)),
    "partition": lambda columns, source: _repeated(source.partition, pa.int32(), len(columns)),
    "offset": lambda columns, _: offset_array(columns, range(len(columns))),
    "timestamp": lambda columns, _: pa.nulls(len(columns), pa.timestamp("us", tz="UTC")),
    "timestampType": lambda columns, _: _repeated(_NO_TIMESTAMP_TYPE, pa.int32(), len(columns)),
}
