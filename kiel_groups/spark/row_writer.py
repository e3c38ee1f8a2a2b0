"""
Write rows to topics from Spark's workers, at least once.

Spark runs a failed task again. The records that the task has already sent remain, so readers must expect duplicates.
Only queries that write import this module and the producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import ConfigError
from kiel_groups.spark.columns import WriteColumns
from kiel_groups.spark.options import WriteOptions
from kiel_groups.spark.spark_calls import PortablePickle, cause_first
from kiel_groups.sync import LoopThread

log = logging.getLogger(__name__)

#: The number of rows that the producer gets at a time. In between, the loop's thread can send records.
_ROWS_AT_ONCE = 1_000
_BATCH_SIZE = 1_000
#: The size of buffered records at which rows wait for the brokers; the producer's own limit is twice as high.
_MOST_BUFFERED_BYTES = 32 << 20
#: How long a broker may wait for the acknowledgements of replicas, in milliseconds.
_ACK_TIMEOUT_MS = 10_000


class _RowWriter(PortablePickle):
    """The base class of the batch writer and the stream writer. It sends the rows of a task on a worker."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = WriteColumns.of(schema, options.topic)

    @cause_first
    def write(self, iterator: Iterator[Sequence[Any]]) -> WriterCommitMessage:
        """
        Send the rows of a task, and wait until the brokers have acknowledged every record, as ``kafka.acks`` says.

        Raises:
            ConfigError: A row has no topic, or its topic lacks the partition of the row.
            BrokerError: A record could not be stored.
        """
        with LoopThread("the Spark sink's producer") as loop:
            sender = loop.run(_RowSender.opened(self._options, self._columns))
            try:
                while rows := list(islice(iterator, _ROWS_AT_ONCE)):
                    loop.run(sender.send(rows))
                loop.run(sender.finish())
            finally:
                loop.run(sender.close())
        return WriterCommitMessage()


class BatchWriter(_RowWriter, DataSourceWriter):
    """The writer of ``df.write.format("kiel").mode("append")``."""


class StreamWriter(_RowWriter, DataSourceStreamWriter):
    """The writer of ``df.writeStream.format("kiel")``. ``write`` stores the rows, so a commit does nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log that stored rows remain, and will be duplicated when Spark repeats the batch."""
        log.warning("batch %d failed; rows that it wrote remain, and will be duplicated when Spark repeats it", batchId)


class _RowSender:
    """Sends rows with a producer on an event loop, and tracks the records whose outcome is not known yet."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._topic = options.topic
        self._columns = columns
        self._pending: set[asyncio.Future[RecordMetadata]] = set()
        self._producer = Producer(
            [str(broker) for broker in options.brokers],
            partitioner=hash_partitioner,
            batch_size=_BATCH_SIZE,
            max_buffered_bytes=2 * _MOST_BUFFERED_BYTES,
            compression=options.compression,
            required_acks=options.acks,
            ack_timeout=min(_ACK_TIMEOUT_MS, options.request_timeout_ms),
            linger_ms=options.linger_ms,
            retries=options.retries,
            client_id=options.client_id,
            request_timeout_ms=options.request_timeout_ms,
            **options.arguments,
        )

    @classmethod
    async def opened(cls, options: WriteOptions, columns: WriteColumns) -> _RowSender:
        """Create a sender. A coroutine does so, because the producer must be created on the running loop."""
        return cls(options, columns)

    async def send(self, rows: Iterable[Sequence[Any]]) -> None:
        """Pass rows to the producer, and wait while its buffer is full. Raise the failure of an earlier row, if any."""
        for row in rows:
            if self._producer.buffered_bytes > _MOST_BUFFERED_BYTES:
                await self._producer.drain()
            self._pending.add(self._producer.produce(*self._record(row)))
        await asyncio.sleep(0)
        self._check_outcomes()

    def _record(self, row: Sequence[Any]) -> tuple[str, bytes | None, bytes | None, int | None]:
        columns = self._columns
        topic = self._topic if columns.topic is None else row[columns.topic]
        if topic is None:
            raise ConfigError("column topic: null in a row; give every row a topic, or the option topic for all")
        key = None if columns.key is None else _bytes(row[columns.key])
        partition = None if columns.partition is None else row[columns.partition]
        return topic, _bytes(row[columns.value]), key, partition

    def _check_outcomes(self) -> None:
        done = {record for record in self._pending if record.done()}
        self._pending -= done
        for record in done:
            record.result()

    async def finish(self) -> None:
        """Wait until all records are stored. If records failed, raise one of their errors."""
        await self._producer.flush()
        if self._pending:
            await asyncio.wait(self._pending)
        self._check_outcomes()

    async def close(self) -> None:
        """Close the producer without waiting for records whose outcome is not known."""
        for record in self._pending:
            record.cancel()
        await self._producer.close(timeout_ms=0)


def _bytes(value: Any) -> bytes | None:
    """
    Return a value as bytes, or None for None. Text is encoded as UTF-8.

    Spark before 4.1 passes a bytearray for a binary column.
    """
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)
