"""
Writing rows to topics, from the workers; at least once.

A task that fails is done again by Spark, and what it had sent stays: readers have to expect records twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.clients.producer import Producer, RecordMetadata
from kiel_groups.errors import ConfigError
from kiel_groups.spark.options.write_options import WriteColumns, WriteOptions
from kiel_groups.spark.tasks.shipping import Shipped
from kiel_groups.sync import LoopThread

__all__ = ["BatchWriter", "StreamWriter"]

log = logging.getLogger(__name__)

#: Rows are handed to the producer so many at a time: the sender works on the loop's thread in between.
_ROWS = 1_000
_BATCH_SIZE = 1_000
#: Beyond this, rows wait for the brokers; the producer would take twice as much.
_MOST_BUFFERED_BYTES = 32 << 20
#: How long a broker may wait for its replicas, in milliseconds.
_ACK_TIMEOUT_MS = 10_000


class _RowWriter(Shipped):
    """What writers of batches and of streams do on a worker."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = WriteColumns.of(schema, options.topic)

    def write(self, iterator: Iterator[Sequence[Any]]) -> WriterCommitMessage:
        """
        Send the rows of a task; returns when brokers have all of them, as ``kafka.acks`` asks for.

        Raises:
            ConfigError: A row without a topic, or with a partition that its topic does not have.
            BrokerError: A record was not stored.
        """
        with LoopThread("the Spark sink's producer") as loop:
            sending = loop.run(_opened(self._options, self._columns))
            try:
                while rows := list(islice(iterator, _ROWS)):
                    loop.run(sending.send(rows))
                loop.run(sending.finish())
            finally:
                loop.run(sending.close())
        return WriterCommitMessage()


class BatchWriter(_RowWriter, DataSourceWriter):
    """``df.write.format("kiel").mode("append")``."""


class StreamWriter(_RowWriter, DataSourceStreamWriter):
    """``df.writeStream.format("kiel")``."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The rows are stored already; there is nothing to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was stored stays, and comes again when Spark does the batch again."""
        log.warning("batch %d failed; what was written of it stays, and is written again with it", batchId)


class _Sending:
    """A producer, and the records whose outcome is open; on an event loop."""

    def __init__(self, options: WriteOptions, columns: WriteColumns) -> None:
        self._topic = options.topic
        self._columns = columns
        self._open: set[asyncio.Future[RecordMetadata]] = set()
        self._producer = Producer(
            [str(broker) for broker in options.brokers],
            serializer=_as_it_is,
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
        )

    async def send(self, rows: Iterable[Sequence[Any]]) -> None:
        """Hand rows to the producer, as far as there is room, and look whether earlier ones were stored."""
        for row in rows:
            if self._producer.buffered_bytes > _MOST_BUFFERED_BYTES:
                await self._producer.drain()
            self._open.add(self._producer.produce(*self._record(row)))
        await asyncio.sleep(0)
        self._settle()

    def _record(self, row: Sequence[Any]) -> tuple[str, bytes | None, bytes | None, int | None]:
        columns = self._columns
        topic = self._topic if columns.topic is None else row[columns.topic]
        if topic is None:
            raise ConfigError("column topic: null in a row; give every row a topic, or the option topic for all")
        key = None if columns.key is None else _bytes(row[columns.key])
        partition = None if columns.partition is None else row[columns.partition]
        return topic, _bytes(row[columns.value]), key, partition

    def _settle(self) -> None:
        done = {record for record in self._open if record.done()}
        self._open -= done
        for record in done:
            record.result()

    async def finish(self) -> None:
        """Wait until everything is stored."""
        await self._producer.flush()
        if self._open:
            await asyncio.wait(self._open)
        self._settle()

    async def close(self) -> None:
        """End it; what has no outcome is not waited for."""
        for record in self._open:
            record.cancel()
        await self._producer.close(timeout_ms=0)


async def _opened(options: WriteOptions, columns: WriteColumns) -> _Sending:
    return _Sending(options, columns)


def _bytes(value: Any) -> bytes | None:
    """Text as UTF-8; Spark before 4.1 hands bytes over as a bytearray."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else bytes(value)


def _as_it_is(value: Any) -> bytes | None:
    """Otherwise the producer would send null as JSON."""
    made: bytes | None = value
    return made
