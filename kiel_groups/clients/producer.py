"""The producer: a future for every record, batches underneath."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, Unpack

from kiel_groups.clients.calls.client_arguments import BrokerSettings, broker_config, check_functions, compression_name
from kiel_groups.clients.calls.eager_methods import failed, spawn, started
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat.attributes import ProducerAttributes
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.produce.partition_queue import RecordMetadata, message_bytes
from kiel_groups.clients.produce.partitioners import Partitioner, key_bytes, random_partitioner
from kiel_groups.clients.produce.sender import Sender, raise_first, reject
from kiel_groups.clients.produce.serializer import Serializer, serialized
from kiel_groups.config import ProducerConfig, check_name
from kiel_groups.errors import BufferFullError, ClosedError, ConfigError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted

__all__ = ["Producer", "RecordMetadata"]

log = logging.getLogger(__name__)


#: How long a cancelled program (Ctrl-C) flushes.
_CANCELLED_FLUSH_MS = 2_000


class _Unplaced(NamedTuple):
    """A record on its way to its partition."""

    key: Any
    message: tuple[bytes | None, bytes | None]
    partition: int | None
    size_bytes: int
    future: asyncio.Future[RecordMetadata]


class Producer(ProducerAttributes):
    """
    Sends records to topics; constructed before or while an event loop runs, used on one loop.

    Delivery is at least once: a record whose outcome is unknown (a broken connection, a broker that timed out) is sent
    again, ``retries`` times. Records of one partition are stored in the order in which they were produced, except
    around those that fail for good.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string.
        serializer: Makes bytes, str or None of a value; a str goes out as UTF-8, None is a null value. Without one,
            bytes go out as they are, anything else as JSON with sorted keys.
        key_maker: Makes a record's key of its value where ``produce`` gets none.
        partitioner: ``partitioner(key, partitions)`` returns one of the list of partition numbers; the key comes as
            it was made. Without one, any partition; with ``hash_partitioner``, the same one for the same key.
        batch_size: Records wait until there are so many, of all partitions together, or for ``flush()`` or ``close()``.
            More may go along while a broker is busy. 0 and None are 1.
        required_acks: -1 (all in-sync replicas have it), 1 (the leader has it), 0 (sent, and nobody says more), or how
            many replicas are to have it.
        ack_timeout: How long a broker may wait for its replicas, in milliseconds.
        compression: None, ``"gzip"``, ``"snappy"`` or ``"lz4"``, or the number of one in ``constants``.
        linger_ms: Batches form per partition: they go out with ``batch_size`` records, or when the first one has
            waited so long.
        retries: How often a batch is sent again after an error that may heal.
        max_buffered_bytes: What may wait for its outcome; see ``drain``.
        metrics: Where to count; a registry of its own if left out.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the others of ``BrokerConfig``.

    Raises:
        ConfigError: A setting that cannot work, or an unknown compression.
    """

    def __init__(
        self,
        brokers: str | Iterable[str],
        serializer: Serializer | None = None,
        key_maker: Callable[[Any], Any] | None = None,
        partitioner: Partitioner | None = None,
        batch_size: int | None = 1,
        compression: str | int | None = None,
        required_acks: int = -1,
        ack_timeout: int = 500,
        *,
        linger_ms: int | None = None,
        retries: int = 10,
        max_buffered_bytes: int = 64 << 20,
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_functions(serializer=serializer, key_maker=key_maker, partitioner=partitioner)
        self.metrics = metrics or Metrics()
        self._config = config = ProducerConfig(
            required_acks=required_acks,
            ack_timeout_ms=ack_timeout,
            batch_size=batch_size or 1,
            linger_ms=linger_ms,
            compression=compression_name(compression),
            retries=retries,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._serializer = serializer
        self._key_maker = key_maker
        self._partitioner = partitioner or random_partitioner
        self._cluster = ClusterMetadata(broker_config(brokers, **broker_settings), self.metrics, names_unknown=True)
        self._sender = Sender(self._cluster, config, self.metrics)
        #: Records of topics whose partitions are being asked for, and the asking.
        self._unplaced: dict[str, list[_Unplaced]] = {}
        self._unplaced_bytes = 0
        self._lookups: dict[str, asyncio.Task[None]] = {}
        #: Where a future cannot wait for its record's outcome, since more records are to come first: the outcomes of
        #: those that wait, until there are ``batch_size`` of them; None where no record waits for others.
        self._round: list[asyncio.Future[RecordMetadata]] | None = None
        if linger_ms is None and config.batch_size > 1:
            self._round = []
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._left_loop = LeftLoop(self._at_exit, self._tell_unsent)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._closing is not None:
            # Whoever closed it is told how that went.
            await asyncio.wait({self._closing})
            return
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        try:
            await self.close(_CANCELLED_FLUSH_MS if cancelled else None)
        except Exception:
            # Logged already, and no more important than what is on its way.
            if kind is None:
                raise

    @started
    async def connect(self) -> None:
        """
        Find the cluster now; otherwise the first record does.

        Raises:
            NoBrokersError: None of the brokers answers; names them, and why.
        """
        self._left_loop.remember()
        await self._cluster.refresh([], "connect")

    def produce(
        self, topic: str, message: Any, key: Any = None, partition: int | None = None
    ) -> asyncio.Future[RecordMetadata]:
        """
        Send one record; it is on its way whether or not the future is awaited.

        With a ``batch_size`` and no ``linger_ms`` a record may have to wait for further ones. Its future does not: it
        is done at once, with -1 for partition and offset. The future of the record that completes the batch,
        ``flush()`` or ``close()`` then waits for all of the batch, and fails where one of them does.

        Args:
            topic: Where to; the topic must exist, or brokers must create it by themselves.
            message: The value: what the serialiser takes; without one, bytes, or anything that JSON has a form for.
            key: Bytes as they are, None as null, anything else as the UTF-8 of its ``str()``.
            partition: Skips the partitioner.

        Returns:
            Topic, partition and offset once the record is stored (offset -1 with acks 0). Or the failure: an
            UnknownTopicError, a BrokerError that names topic and partition (with the Kafka code), a NoBrokersError, a
            ConfigError for a topic or partition that cannot be, or a value that nothing can be sent of. A
            BufferFullError where ``max_buffered_bytes`` wait already: await ``drain()`` now and then. A ClosedError
            once the producer was closed. Failures are logged too, once for the records of a batch.
        """
        if running_loop() is None:
            return spawn(self._produce_later(topic, message, key, partition), "Producer.produce")
        try:
            outcome = self._accept(topic, message, key, partition)
        except Exception as error:  # also the caller's own: of its key_maker, or its serialiser
            self.metrics.count("produce_failures")
            return failed(error, "Producer.produce")
        return outcome if self._round is None else self._join_round(topic, outcome)

    async def _produce_later(self, topic: str, value: Any, key: Any, partition: int | None) -> RecordMetadata:
        """What was produced before the loop ran is sent when it does."""
        return await self.produce(topic, value, key, partition)

    def _accept(self, topic: str, value: Any, key: Any, partition: int | None) -> asyncio.Future[RecordMetadata]:
        if self._closed:
            raise ClosedError("the producer was closed")
        if self.is_full:
            raise BufferFullError(
                f"{self.buffered_bytes} bytes wait to be sent, max_buffered_bytes is {self._config.max_buffered_bytes};"
                " await drain(), or the futures of earlier records, before producing more"
            )
        if key is None and self._key_maker is not None:
            key = self._key_maker(value)
        message = (key_bytes(key), serialized(value, self._serializer))
        future = asyncio.get_running_loop().create_future()
        record = _Unplaced(key, message, partition, message_bytes(*message), future)
        partitions = None if topic in self._unplaced else self._cluster.known_partitions(topic)
        if partitions is not None:
            self._place(topic, partitions, record)
        else:
            self._look_up(topic, record)
        return future

    @property
    def is_full(self) -> bool:
        """Whether ``max_buffered_bytes`` wait: the next record would fail."""
        return self.buffered_bytes >= self._config.max_buffered_bytes

    def _join_round(self, topic: str, outcome: asyncio.Future[RecordMetadata]) -> asyncio.Future[RecordMetadata]:
        """Wait for further records, or end the waiting of all; returns what the caller is given."""
        assert self._round is not None
        self._round.append(outcome)
        if len(self._round) >= self._config.batch_size or self.is_full:
            return spawn(self._end_round(self._take_round(), outcome), "Producer.produce")
        queued: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        queued.set_result(RecordMetadata(topic, -1, -1))
        return queued

    def _take_round(self) -> list[asyncio.Future[RecordMetadata]]:
        outcomes = self._round or []
        if self._round is not None:
            self._round = []
        return outcomes

    async def _end_round(
        self, outcomes: list[asyncio.Future[RecordMetadata]], last: asyncio.Future[RecordMetadata]
    ) -> RecordMetadata:
        if self._lookups:
            await asyncio.wait(list(self._lookups.values()))
        self._sender.send_waiting()
        await asyncio.wait(outcomes)
        raise_first(outcomes)
        return last.result()

    @property
    def buffered_bytes(self) -> int:
        """What the records without an outcome take on the wire, uncompressed."""
        return self._sender.buffered_bytes + self._unplaced_bytes

    @property
    def unsent_count(self) -> int:
        """How many records have no outcome."""
        return self._sender.unsettled + sum(map(len, self._unplaced.values()))

    @property
    def closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @started
    async def drain(self) -> None:
        """
        Wait until half of ``max_buffered_bytes`` is free; returns at once where it is.

        Records that wait for others go out. Who waits for their outcome, or flushes, is told when one fails.
        """
        while self.buffered_bytes > self._config.max_buffered_bytes // 2:
            if self._lookups:
                await asyncio.wait(list(self._lookups.values()), return_when=asyncio.FIRST_COMPLETED)
            else:
                self._sender.send_waiting()
                await self._sender.progress()

    @started
    async def flush(self) -> None:
        """
        Send what waits, at once, and wait until every record produced before has an outcome, good or bad.

        Raises:
            BrokerError: One of those has failed whose future was done before; others tell by their futures.
        """
        outcomes = self._take_round()
        await self._flush()
        raise_first(outcomes)

    def wind_down(self) -> asyncio.Future[None]:
        """Send what waits: kiel's name for ``flush()`` before a close."""
        return self.flush()

    async def _flush(self) -> None:
        if self._lookups:
            await asyncio.wait(list(self._lookups.values()))
        await self._sender.flush()

    def close(self, timeout_ms: int | None = None) -> asyncio.Future[None]:
        """
        Flush, then close the connections. Calling it again does nothing.

        Where no event loop runs any more, as after a Ctrl-C, it is done before this returns, within two seconds.

        Records without an outcome at the end of the flush fail: with OutcomeUnknownError where they were sent, and may
        or may not be stored; with ClosedError where they were not.

        Args:
            timeout_ms: How long to flush. Without it, the flush ends when every record is stored or out of retries,
                and at the latest when no broker has stored anything for ``request_timeout_ms`` and ``ack_timeout``
                together (30.5 s unless set), as when a broker is frozen.

        Raises:
            BrokerError: As ``flush()``.
        """
        self._closed = True
        if running_loop() is None and timeout_ms is None:
            timeout_ms = _CANCELLED_FLUSH_MS
        self._closing = self._left_loop.close(self._closing, partial(self._close, timeout_ms), "Producer.close")
        return self._closing

    def _at_exit(self) -> None:
        """The interpreter ends: what was produced is sent, on the loop that was left."""
        if self.unsent_count:
            self.close()

    def _tell_unsent(self) -> None:
        """There is no loop to send on."""
        unknown = self._sender.unknown
        if unsent := self.unsent_count - unknown:
            told = counted(unsent, "record was", "records were")
            log.error("%s not sent: the event loop ended before flush() or close()", told)
            self.metrics.count("produce_failures", unsent)
        if unknown:
            told = counted(unknown, "record")
            log.error("%s may or may not be stored: the event loop ended before the broker's answer", told)
            self.metrics.count("produce_unknown", unknown)

    async def _close(self, timeout_ms: int | None) -> None:
        outcomes = self._take_round()
        flushing = spawn(self._flush(), "flush of Producer.close")
        try:
            await self._wait_for_flush(flushing, timeout_ms)
        finally:
            flushing.cancel()
            self._abandon()
            self._cluster.close()
        raise_first(outcomes)

    async def _wait_for_flush(self, flushing: asyncio.Task[None], timeout_ms: int | None) -> None:
        """Wait until the flush or the time is over; without a time, while brokers store something."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        patience_s = (self._cluster.config.request_timeout_ms + self._config.ack_timeout_ms) / 1000
        while not flushing.done():
            if timeout_ms is None:
                ends_s = max(began_s, self._sender.stored_at_s) + patience_s
            else:
                ends_s = began_s + timeout_ms / 1000
            if ends_s <= now_s():
                # The flush of nothing has not begun yet either.
                if self.unsent_count:
                    self._warn_of_close(now_s() - began_s)
                return
            await asyncio.wait({flushing}, timeout=ends_s - now_s())
        flushing.result()

    def _warn_of_close(self, took_s: float) -> None:
        unknown, unsent = self._sender.unknown, self.unsent_count - self._sender.unknown
        log.warning(
            "closing after %.1f s with %d bytes not acknowledged: %s may or may not be stored, %s",
            took_s,
            self.buffered_bytes,
            counted(unknown, "record"),
            counted(unsent, "record was not sent", "records were not sent"),
        )

    def _abandon(self) -> None:
        """Fail what has no outcome."""
        for lookup in self._lookups.values():
            lookup.cancel()
        for topic, records in self._unplaced.items():
            error = ClosedError(f"the producer was closed before the partitions of {topic} were known")
            self._fail(topic, records, error)
        self._lookups.clear()
        self._unplaced.clear()
        self._unplaced_bytes = 0
        self._sender.close()

    # ------------------------------------------------------------------ placing

    def _place(self, topic: str, partitions: tuple[int, ...], record: _Unplaced) -> None:
        partition = record.partition
        if partition is None:
            try:
                partition = self._partitioner(record.key, list(partitions))
            except Exception as error:  # the partitioner is the caller's, and so is its failure
                self._refuse(record, error)
                return
        if partition not in partitions:
            known = f"{partitions[0]} to {partitions[-1]}"
            self._refuse(record, ConfigError(f"partition: {partition!r} given; {topic} has {known}"))
            return
        self._sender.add(TopicPartition(topic, partition), record.message, record.size_bytes, record.future)

    def _refuse(self, record: _Unplaced, error: Exception) -> None:
        log.error("a record cannot be sent: %s", error)
        self.metrics.count("produce_failures")
        reject(record.future, error)

    def _look_up(self, topic: str, record: _Unplaced) -> None:
        """Keep the record until the topic's partitions are known; those after it queue up behind it."""
        waiting = self._unplaced.get(topic)
        if waiting is None:
            check_name(topic, "topic")
            self._left_loop.remember()
            waiting = self._unplaced[topic] = []
            self._lookups[topic] = spawn(self._find_partitions(topic), f"lookup of {topic}")
        waiting.append(record)
        self._unplaced_bytes += record.size_bytes

    async def _find_partitions(self, topic: str) -> None:
        failure: KielGroupsError | None = None
        partitions: tuple[int, ...] = ()
        for failures in range(self._config.retries + 1):
            await asyncio.sleep(self._cluster.delay_s(failures))
            try:
                partitions, failure = await self._cluster.partitions_of(topic), None
                break
            except KielGroupsError as error:
                failure = error
                if not error.retriable:
                    break
        del self._lookups[topic]
        records = self._unplaced.pop(topic)
        self._unplaced_bytes -= sum(record.size_bytes for record in records)
        if failure is not None:
            self._fail(topic, records, failure)
            return
        for record in records:
            self._place(topic, partitions, record)

    def _fail(self, topic: str, records: Sequence[_Unplaced], error: KielGroupsError) -> None:
        """None of these has been sent."""
        log.error("%s for %s cannot be sent: %s", counted(records, "record"), topic, error)
        self.metrics.count("produce_failures", len(records))
        for record in records:
            reject(record.future, error)
