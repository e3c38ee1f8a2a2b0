"""The producer: sends records in batches, and returns a future for each record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from kiel_groups.clients.calls.arguments import (
    BrokerSettings,
    broker_config,
    check_converters,
    check_setting_names,
    compression_name,
)
from kiel_groups.clients.calls.eager_methods import (
    connect_or_close,
    failed_future,
    spawn,
    starts_at_call,
    suspended_if_left,
)
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.produce.batches import messages_bytes
from kiel_groups.clients.produce.outcomes import JointOutcome, Outcome, RecordMetadata, RoundOutcome, raise_first
from kiel_groups.clients.produce.partitioners import (
    Partitioner,
    Serializer,
    as_keys,
    as_partitions,
    as_values,
    fast_choice,
    find_partitioner,
    key_bytes,
    serialize_value,
)
from kiel_groups.clients.produce.placement import Placement, Unplaced
from kiel_groups.clients.produce.sender import Sender
from kiel_groups.config import ProducerConfig
from kiel_groups.errors import BufferFullError, ClosedError, KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.wording import counted

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a close flushes after the program was cancelled (Ctrl-C), in milliseconds.
_CANCELLED_FLUSH_MS = 2_000


class Producer:
    """
    Sends records to topics, with at-least-once delivery.

    A record whose outcome is unknown (a broken connection, a broker that timed out) is sent again, up to ``retries``
    times. Records of one partition are stored in the order in which they were produced, except around records that
    fail for good. Construct the producer before or while an event loop runs, and use it on one loop only.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string.
        serializer: Converts a value to bytes, str or None. A str is sent as UTF-8, None as a null value. Without a
            serializer, bytes are sent as they are, None as a null value, and any other value as JSON with sorted keys.
        key_maker: Makes a record's key from its value if ``produce`` gets no key.
        partitioner: ``partitioner(key, partitions)`` returns one of the listed partition numbers, given the unencoded
            key. The names of this package's partitioners are ``"random"`` (the default), ``"hash"``, ``"murmur2"``
            (Java's hash of the key) and ``"sticky"``; see ``clients.produce.partitioners``.
        batch_size: How many records, of all partitions together, wait until they are sent. With ``linger_ms``, of each
            partition. ``flush()``, ``drain()`` and ``close()`` send the records earlier. While a broker is busy, more
            records may join a batch. 0 and None mean 1.
        required_acks: How many replicas must have a record before its future is done: -1 (all in-sync replicas), 1
            (the leader), 0 (none: the future is done once the record is sent), or another number of replicas.
        ack_timeout: How long a broker may wait for its replicas, in milliseconds.
        compression: None, ``"gzip"``, ``"snappy"`` or ``"lz4"``, or the number of a codec in ``constants``.
        linger_ms: If given, each partition has its own batch, which is sent once it has ``batch_size`` records, or once
            its first record has waited for this time, in milliseconds. With a ``batch_size`` of 1, the default, no
            record waits: set both.
        batch_bytes: How many bytes a partition's batch may have before compression. A larger record is sent alone.
        retries: How many times a batch is sent again after retriable errors.
        max_buffered_bytes: How many bytes of records may be without an outcome before ``produce`` fails; see ``drain``.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid, or the compression is unknown.
    """

    @check_setting_names
    def __init__(
        self,
        brokers: str | Iterable[str],
        serializer: Serializer | None = None,
        key_maker: Callable[[Any], Any] | None = None,
        partitioner: Partitioner | str | None = None,
        batch_size: int | None = 1,
        compression: str | int | None = None,
        required_acks: int = -1,
        ack_timeout: int = 500,
        *,
        linger_ms: int | None = None,
        batch_bytes: int = 900 << 10,
        retries: int = 10,
        max_buffered_bytes: int = 64 << 20,
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_converters(serializer=serializer, key_maker=key_maker)
        self.metrics = metrics or Metrics()
        self._config = config = ProducerConfig(
            required_acks=required_acks,
            ack_timeout_ms=ack_timeout,
            batch_size=batch_size or 1,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            compression=compression_name(compression),
            retries=retries,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._serializer = serializer
        self._key_maker = key_maker
        self._makes_bytes = serializer is not None or key_maker is not None
        self._partitioner = find_partitioner(partitioner)
        self._cluster = ClusterMetadata(broker_config(brokers, **broker_settings), self.metrics, names_unknown=True)
        self._sender = Sender(self._cluster, config, self.metrics, fast_choice(self._partitioner))
        self._appender = self._sender.appender
        if self._makes_bytes:
            self._appender.due_after = 0
        self._left_loop = LeftLoop(self._at_exit, self._report_unsent)
        self._placement = Placement(
            self._cluster, self._sender, self.metrics, self._partitioner, retries, self._left_loop.remember
        )
        #: Whether records wait until ``batch_size`` records have come, and the outcome of those that wait. The futures
        #: that ``produce`` returned for these are done already, since an application may await each before it produces
        #: the next record.
        self._in_rounds = linger_ms is None and config.batch_size > 1
        self._round: RoundOutcome | None = None
        self._append: Callable[..., asyncio.Future[RecordMetadata] | int | None] = self._appender.append
        if self._in_rounds:
            self._append = self._append_to_round
            # A record that may fill the buffer, and then ends the round, must come by ``_produce``.
            self._appender.most_buffered_bytes -= self._appender.most_batch_bytes
        #: How many records were produced while no loop ran, and are not accepted yet.
        self._suspended = 0
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        await connect_or_close(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._closing is not None:
            # The future of close() reports a failure to the caller of close().
            await asyncio.wait({self._closing})
            return
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        try:
            await self.close(_CANCELLED_FLUSH_MS if cancelled else None)
        except Exception:
            # The error was logged already, and must not replace the exception that ended the block.
            if kind is None:
                raise

    @starts_at_call
    async def connect(self) -> None:
        """
        Connect to a broker and read the cluster's metadata now, rather than with the first record.

        Raises:
            NoBrokersError: No address answered. The message has the errors of the first five addresses.
        """
        self._left_loop.remember()
        await self._cluster.refresh([], "connect")

    def produce(
        self, topic: str, message: Any, key: Any = None, partition: int | None = None
    ) -> asyncio.Future[RecordMetadata]:
        """
        Send one record, whether or not the returned future is awaited.

        With a ``batch_size`` above 1 and no ``linger_ms``, a record may wait for further records. The future of a
        waiting record is done at once, with -1 for partition and offset. Then the future of the record that completes
        the batch, ``flush()`` or ``close()`` waits for all records of the batch, and fails if a record of the batch
        fails.

        Failures of accepted records are also logged, in one line for the records of a batch.

        Args:
            topic: The topic's name. The topic must exist, or brokers must create topics automatically.
            message: The value, for the serializer. Without a serializer: bytes, a bytearray, a memoryview, anything
                that JSON can represent, or None for a null value, which deletes its key from a compacted topic.
            key: Bytes, and those of a bytearray or memoryview, are sent as they are, None as null, any other key as the
                UTF-8 of its ``str()``.
            partition: The partition's number, also one of numpy. By default, the partitioner chooses. If the partition
                is not known, a broker is asked before the record fails, at most once in ``backoff_ms``.

        Returns:
            A future for topic, partition and offset of the stored record (offset -1 with ``required_acks`` 0). The
            future raises the errors. If the record completes a batch, the future may raise the error of another record
            of the batch.

        Raises:
            UnknownTopicError: No broker knows the topic.
            NoBrokersError: No broker answered.
            BrokerError: Brokers did not store the record. The text names topic, partition and Kafka's error code. If a
                compacted topic refuses the record, the text says that the key is missing.
            OutcomeUnknownError: The record may or may not be stored.
            ConfigError: The topic or partition is not valid, or the value cannot be serialized.
            BufferFullError: ``max_buffered_bytes`` are buffered; await ``drain()`` now and then.
            ClosedError: The producer was closed.
            IllegalStateError: The event loop runs on another thread. The call itself raises this error.
            KielGroupsError: Memory was missing to compress the batch, or another error that is not expected.
            Exception: The serializer, ``key_maker`` or the partitioner raised an error.
        """
        added = self._append(topic, message, key, partition)
        if isinstance(added, asyncio.Future):
            return added
        return self._produce(topic, message, key, partition, added)

    def _produce(self, topic: str, value: Any, key: Any, given: int | None, chosen: int | None) -> asyncio.Future[Any]:
        """Send one record that was not added to an open batch, to the given or chosen partition."""
        try:
            outcome: asyncio.Future[RecordMetadata] = asyncio.Future(loop=asyncio.get_running_loop())
        except RuntimeError:
            return self._when_loop_runs(partial(self.produce, topic, value, key, given), 1)
        try:
            if self._closed or self.is_full:
                self._refuse_call(topic, [outcome])
                return outcome
            key, encoded_key, value = self._encode(value, key)
            this_round = self._round_of(encoded_key, value)
            self._place(topic, key, encoded_key, value, given, chosen, this_round or outcome)
        except Exception as error:  # also any error of the application's key_maker or serializer
            self.metrics.count("produce_failures")
            return failed_future(error, "Producer.produce")
        if this_round is not None:
            return this_round.join(topic, outcome)
        if self._in_rounds:
            return spawn(self._end_round(self._take_round(), outcome), "Producer.produce")
        return outcome

    def _when_loop_runs(self, call: Callable[[], asyncio.Future[T]], records: int) -> asyncio.Task[T]:
        """Make a call when the loop runs. Meanwhile, its records count as unsent."""
        self._left_loop.remember()
        self._suspended += records

        async def begin() -> T:
            self._suspended -= records
            return await call()

        return spawn(suspended_if_left(begin), "Producer.produce")

    def _place(
        self,
        topic: str,
        key: Any,
        encoded_key: bytes | None,
        value: bytes | None,
        given: int | None,
        chosen: int | None,
        outcome: Outcome,
    ) -> None:
        """Add a record that was not added to an open batch. Raise ConfigError if the topic is not legal."""
        if chosen is not given and self._appender.topics[topic][0] is not self._cluster.known_partitions(topic):
            chosen = None  # from partitions that the topic had before
        self._placement.add(topic, key, encoded_key, value, chosen, outcome)

    def _encode(self, value: Any, key: Any) -> tuple[Any, bytes | None, bytes | None]:
        """
        Return a record's key for the partitioner, and its key and value as they are sent.

        Raises:
            ConfigError: The value cannot be encoded.
            Exception: The serializer or ``key_maker`` raised it.
        """
        if type(value) is bytes and not self._makes_bytes and (key is None or type(key) is bytes):
            return key, key, value
        if key is None and self._key_maker is not None:
            key = self._key_maker(value)
        return key, key_bytes(key), serialize_value(value, self._serializer)

    @overload
    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: Literal[False] = False,
    ) -> asyncio.Future[int]: ...

    @overload
    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: Literal[True],
    ) -> list[asyncio.Future[RecordMetadata]]: ...

    def produce_many(
        self,
        topic: str,
        messages: Iterable[Any],
        keys: Iterable[Any] | None = None,
        partitions: Iterable[int] | int | None = None,
        *,
        each: bool = False,
    ) -> asyncio.Future[int] | list[asyncio.Future[RecordMetadata]]:
        """
        Send many records of one topic, at a fraction of what as many calls of ``produce`` cost.

        Two things differ from ``produce``. If a partitioner of this package would choose the partitions of records
        without a key at random, up to 1,000 records in a row get the same partition. If records wait because of
        ``batch_size``, the producer sends them at once, together with the records of this call.

        Args:
            topic: The topic's name.
            messages: The values.
            keys: The key of each value.
            partitions: The partition of each value, or one partition for all.
            each: Return a future for each record.

        Returns:
            A future for the number of records, which is done when brokers have stored all of them. If records fail, the
            future fails with the first error, once each record has an outcome. With ``each``, a list with a future for
            each record, as of ``produce``. If an argument is not valid, no record is sent, and the futures fail.

        Raises:
            ConfigError: ``messages`` is a single value, such as bytes.
        """
        values = as_values(messages)
        loop = running_loop()
        if loop is None:
            self._left_loop.remember()
        if loop is None and not each:
            return self._when_loop_runs(partial(self.produce_many, topic, values, keys, partitions), len(values))
        try:
            app_keys = as_keys(keys, len(values))
            chosen = as_partitions(partitions, len(values))
            if loop is None:
                rest = zip(values, app_keys, chosen, strict=True)
                return [self.produce(topic, value, key, partition) for value, key, partition in rest]
            joint = JointOutcome(len(values))
            futures: list[asyncio.Future[RecordMetadata]] = [asyncio.Future(loop=loop) for _ in values if each]
            self._accept_many(topic, values, app_keys, chosen, futures if each else [joint] * len(values))
        except Exception as error:  # also any error of the application's key_maker or serializer
            self.metrics.count("produce_failures", len(values))
            failed = failed_future(error, "Producer.produce_many")
            return [failed] * len(values) if each else failed
        return futures if each else joint.future

    def _accept_many(
        self,
        topic: str,
        values: list[Any],
        app_keys: list[Any],
        partitions: list[int | None],
        outcomes: Sequence[Outcome],
    ) -> None:
        if self._closed or self.is_full:
            self._refuse_call(topic, outcomes)
            return
        if self._makes_bytes or not all(type(value) is bytes for value in values):
            encoded = [self._encode(value, key) for value, key in zip(values, app_keys, strict=True)]
            app_keys, keys, values = (list(each) for each in zip(*encoded, strict=True)) if encoded else ([], [], [])
        else:
            keys = list(map(key_bytes, app_keys))
        records = Unplaced(app_keys, keys, values, partitions, outcomes, ends_round=self._in_rounds)
        self._placement.add_many(topic, records)

    def _refuse_call(self, topic: str, outcomes: Sequence[Outcome]) -> None:
        """Fail the records of a call, because the buffer is full. Raise ClosedError if the producer was closed."""
        if self._closed:
            raise ClosedError("the producer was closed")
        error = BufferFullError(
            f"{self.buffered_bytes} bytes wait to be sent, max_buffered_bytes is {self._config.max_buffered_bytes};"
            " await drain(), or the futures of earlier records, before producing more"
        )
        # A program that awaits no futures may go on for long: one line is logged for many records.
        self._placement.refuse(topic, outcomes, error)

    @property
    def is_full(self) -> bool:
        """Whether ``max_buffered_bytes`` are buffered, so that the next record would fail."""
        return self.buffered_bytes >= self._config.max_buffered_bytes

    def _append_to_round(
        self, topic: str, value: Any, key: Any, partition: int | None
    ) -> asyncio.Future[RecordMetadata] | int | None:
        """Do what ``Appender.append`` does with a record that waits for further records: its future is done."""
        this_round, loop = self._round, running_loop()
        if loop is None or this_round is None or this_round.missing <= 1:
            return partition
        added = self._appender.append(topic, value, key, partition, this_round)
        if not isinstance(added, RoundOutcome):
            return added
        return this_round.join(topic, asyncio.Future(loop=loop))

    def _round_of(self, key: bytes | None, value: bytes | None) -> RoundOutcome | None:
        """
        Return the outcome of a record that waits for further records. Return None if the record does not wait.

        All waiting records are sent once there are ``batch_size`` records, or once the buffer is full. The future of
        the record that causes the sending waits for all records; the futures of the other records are done at once.
        """
        if not self._in_rounds:
            return None
        if self._round is None:
            self._round = RoundOutcome(self._config.batch_size)
        fills = self.buffered_bytes + messages_bytes([key], [value]) >= self._config.max_buffered_bytes
        return None if fills or self._round.missing <= 1 else self._round

    def _take_round(self) -> list[asyncio.Future[Any]]:
        """Begin a new round, and return what gets the outcomes of the records of the old one, if there are any."""
        ended, self._round = self._round, None
        return [] if ended is None else [ended.end()]

    async def _end_round(
        self, outcomes: list[asyncio.Future[Any]], last: asyncio.Future[RecordMetadata]
    ) -> RecordMetadata:
        outcomes.append(last)
        await self._placement.placed()
        self._sender.send_waiting()
        await asyncio.wait(outcomes)
        raise_first(outcomes)
        return last.result()

    @property
    def buffered_bytes(self) -> int:
        """The size of all records without an outcome, in bytes before compression."""
        return self._appender.buffered_bytes

    @property
    def unsent_count(self) -> int:
        """The number of records without an outcome."""
        return self._sender.unsettled + sum(1 for _ in self._placement.waiting) + self._suspended

    @property
    def serializer(self) -> Serializer:
        """The function that encodes values, by default as bytes or JSON."""
        return self._serializer or partial(serialize_value, serializer=None)

    @property
    def key_maker(self) -> Callable[[Any], Any]:
        """The function that makes a key from a value, if ``produce`` gets no key. By default, such keys are null."""
        return self._key_maker or (lambda _: None)

    @property
    def partitioner(self) -> Partitioner:
        """The function that chooses partitions, by default at random."""
        return self._partitioner

    @property
    def batch_size(self) -> int:
        """How many records wait before they are sent together."""
        return self._config.batch_size

    @property
    def linger_ms(self) -> int | None:
        """How long the first record of a partition's batch waits for further records, in milliseconds, if given."""
        return self._config.linger_ms

    @property
    def max_buffered_bytes(self) -> int:
        """The size of the records without an outcome from which on ``produce`` fails, in bytes."""
        return self._config.max_buffered_bytes

    @property
    def compression(self) -> str | None:
        """The name of the compression codec, or None if records are not compressed."""
        return self._config.compression

    @property
    def required_acks(self) -> int:
        """The number of replicas that must have a record before its future is done; -1 for all in-sync replicas."""
        return self._config.required_acks

    @property
    def ack_timeout(self) -> int:
        """The longest time for which a broker waits for its replicas, in milliseconds."""
        return self._config.ack_timeout_ms

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    @starts_at_call
    async def drain(self) -> None:
        """
        Wait until at most half of ``max_buffered_bytes`` is buffered.

        Records that wait for further records are sent now. The records' futures and ``flush()`` raise the failures of
        records. This method does not.
        """
        while self.buffered_bytes > self._config.max_buffered_bytes // 2:
            self._sender.send_waiting()
            await self._sender.progress()

    @starts_at_call
    async def flush(self) -> None:
        """
        Send all waiting records at once, and wait until every record produced before is stored or has failed.

        Raises:
            KielGroupsError: A record failed whose future was done already, because the record had waited for other
                records. The future of any other record raises the failure of its record.
        """
        outcomes = self._take_round()
        await self._flush()
        raise_first(outcomes)

    def wind_down(self) -> asyncio.Future[None]:
        """Flush: an alias of ``flush()`` for programs written for kiel."""
        return self.flush()

    async def _flush(self) -> None:
        await self._placement.placed()
        await self._sender.flush()

    def close(self, timeout_ms: int | None = None) -> asyncio.Future[None]:
        """
        Flush, then close the connections. Further calls return the same outcome.

        If the event loop does not run any more, as after a Ctrl-C, the close is complete when this method returns,
        within two seconds.

        Records without an outcome at the end of the flush fail: with OutcomeUnknownError if they were sent and may or
        may not be stored, with ClosedError if they were not sent.

        Args:
            timeout_ms: How long to flush, in milliseconds. By default, the flush ends when every record is stored or
                out of retries. The flush also ends when brokers have stored no record for ``request_timeout_ms`` plus
                ``ack_timeout`` (together 30.5 s by default), as when a broker is frozen.

        Raises:
            KielGroupsError: As in ``flush()``.
        """
        self._left_loop.check_thread()
        if running_loop() is not None or not self._suspended:
            self._accept_no_more()
        if running_loop() is None and timeout_ms is None:
            timeout_ms = _CANCELLED_FLUSH_MS
        self._closing = self._left_loop.close(self._closing, partial(self._close, timeout_ms), "Producer.close")
        self._accept_no_more()
        return self._closing

    def _accept_no_more(self) -> None:
        self._closed = True
        self._appender.due_after = 0

    def _at_exit(self) -> None:
        """Close the producer when the interpreter exits, and send the remaining records on the stopped event loop."""
        if self.unsent_count:
            self.close()

    def _report_unsent(self) -> None:
        """Log and count the records without an outcome, because no loop is left to send them on."""
        unknown = self._sender.unknown
        if unsent := self.unsent_count - unknown:
            records = counted(unsent, "record was", "records were")
            log.error("%s not sent: the event loop ended before flush() or close()", records)
            self.metrics.count("produce_failures", unsent)
        if unknown:
            records = counted(unknown, "record")
            log.error("%s may or may not be stored: the event loop ended before the broker's answer", records)
            self.metrics.count("produce_unknown", unknown)

    def _without_outcome(self, reason: KielGroupsError) -> Iterator[tuple[Outcome, KielGroupsError]]:
        """Yield each outcome that is not set, with the error that it gets if the loop has ended."""
        yield from self._sender.without_outcome(reason)
        yield from zip(self._placement.waiting, repeat(reason))

    async def _close(self, timeout_ms: int | None) -> None:
        # Records that were produced before the loop ran have been accepted now.
        self._accept_no_more()
        outcomes = self._take_round()
        flushing = spawn(self._flush(), "flush of Producer.close")
        try:
            await self._wait_for_flush(flushing, timeout_ms)
        finally:
            flushing.cancel()
            self._placement.close()
            self._sender.close()
            self._cluster.close()
        raise_first(outcomes)

    async def _wait_for_flush(self, flushing: asyncio.Task[None], timeout_ms: int | None) -> None:
        """Wait until the flush ends: at most ``timeout_ms`` or, if None, as long as brokers store records."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        patience_s = (self._cluster.config.request_timeout_ms + self._config.ack_timeout_ms) / 1000
        while not flushing.done():
            if timeout_ms is None:
                ends_s = max(began_s, self._sender.stored_at_s) + patience_s
            else:
                ends_s = began_s + timeout_ms / 1000
            if ends_s <= now_s():
                # With a ``timeout_ms`` of 0, even the flush of an empty buffer is not done yet.
                if self.unsent_count:
                    self._warn_of_close(now_s() - began_s)
                return
            await asyncio.wait({flushing}, timeout=ends_s - now_s())
        flushing.result()

    def _warn_of_close(self, took_s: float) -> None:
        unknown, unsent = self._sender.unknown, self.unsent_count - self._sender.unknown
        log.warning(
            "closing after %.1f s with %s not acknowledged: %s may or may not be stored, %s",
            took_s,
            counted(self.buffered_bytes, "byte"),
            counted(unknown, "record"),
            counted(unsent, "record was not sent", "records were not sent"),
        )
