"""
The messages of ``benchmarks.spark_read``, and the alternatives to our data source. Spark's workers import this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange
from kiel_groups.spark.columns import READ_SCHEMA, arrow_schema
from kiel_groups.spark.read_task import record_batch
from kiel_groups.wire.message_sets.decoder import decode_columns
from kiel_groups.wire.message_sets.encoder import encode_message_set

KEY_BYTES = 8
#: Offset, size, CRC, magic, attributes, and the lengths of key and value.
OVERHEAD_BYTES = 26
#: The size of the answer to one fetch of our data source.
FETCHED_BYTES = 1 << 20


def messages_in(size_bytes: int, value_bytes: int) -> int:
    """Return the number of messages in a message set of ``size_bytes``."""
    return size_bytes // (value_bytes + KEY_BYTES + OVERHEAD_BYTES)


@cache
def message_set(count: int, value_bytes: int) -> bytes:
    return encode_message_set([b"%0*d" % (KEY_BYTES, number) for number in range(count)], [b"v" * value_bytes] * count)


def kafka_python_rows(
    packages: str,
    broker: str,
    version: tuple[int, ...] | None,
    topic: str,
    count: int,
    shares: Iterator[range],
) -> Iterator[tuple[Any, ...]]:
    """
    Yield the rows of the first ``count`` messages of some partitions, read with kafka-python, in one task.

    ``version`` is that of the broker; kafka-python asks brokers from 0.10 on for it.
    """
    if packages not in sys.path:
        sys.path.append(packages)
    import kafka

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=[broker], api_version=version, enable_auto_commit=False, group_id=None
    )
    left = {kafka.TopicPartition(topic, number) for share in shares for number in share}
    consumer.assign(left)
    for each in left:
        consumer.seek(each, 0)
    while left:
        for each, records in consumer.poll(timeout_ms=1_000, max_records=5_000).items():
            for record in records:
                if record.offset < count:
                    yield (record.key, record.value, topic, record.partition, record.offset, None, -1)
            if records[-1].offset >= count - 1:
                consumer.pause(each)
                left.discard(each)
    consumer.close()


class ReadyMade(DataSource):
    """A data source that returns one batch again and again: as fast as a source in Python can be."""

    @classmethod
    def name(cls) -> str:
        return "ready-made"

    def schema(self) -> StructType:
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(*self._numbers("tasks", "rows", "value_bytes", "copies"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReadyMadeStreamReader(*self._numbers("rows", "value_bytes"))

    def _numbers(self, *names: str) -> list[int]:
        return [int(self.options[name]) for name in names]


def ready_batch(count: int, value_bytes: int, partition: int = 0) -> Any:
    """Return an Arrow batch with the columns of a read."""
    source = TopicPartition("ready-made", partition)
    columns = decode_columns(message_set(count, value_bytes), source, 0, max_decompressed_bytes=0)
    return record_batch(columns, OffsetRange(source, 0, count), arrow_schema(READ_SCHEMA))


def copied(batch: Any) -> Any:
    """Return the batch in new memory."""
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(
                each.type, len(each), [part and pa.py_buffer(bytearray(memoryview(part))) for part in each.buffers()]
            )
            for each in batch.columns
        ],
        schema=batch.schema,
    )


class ReadyMadeReader(DataSourceReader):
    """
    Returns batches as large as the answer to one fetch of our data source.

    ``copies`` is 1 to return each batch in new memory, as that of a socket is, and 0 for the same memory each time,
    which stays in the caches of the processor.
    """

    def __init__(self, tasks: int, rows: int, value_bytes: int, copies: int) -> None:
        self._copies = bool(copies)
        self._tasks = tasks
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = messages_in(FETCHED_BYTES, self._value_bytes)
        batch = ready_batch(count, self._value_bytes, partition.value)
        rows = self._rows // self._tasks
        for start in range(0, rows, count):
            yield (copied(batch) if self._copies else batch).slice(0, min(count, rows - start))


class ReadyMadeStreamReader(DataSourceStreamReader):
    """Has ``rows`` new rows at each trigger, in one task, and does nothing else that Spark's protocol does not need."""

    def __init__(self, rows: int, value_bytes: int) -> None:
        self._rows = rows
        self._value_bytes = value_bytes
        self._trigger = 0

    def initialOffset(self) -> dict[str, int]:
        return {"trigger": 0}

    def latestOffset(self) -> dict[str, int]:
        self._trigger += 1
        return {"trigger": self._trigger}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield ready_batch(self._rows, self._value_bytes)
