"""The single consumer: reads all partitions of its topics from a chosen start, without a group or stored offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, ClassVar, NoReturn, Self, Unpack

from kiel_groups.clients.calls.arguments import BrokerSettings, broker_config, check_setting_names
from kiel_groups.clients.calls.eager_methods import connect_or_close, fails_in_future, starts_at_call
from kiel_groups.clients.consumer import Consumer
from kiel_groups.clients.delivery.deserializer import OnBadRecord
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.record_reader import ReaderSettings
from kiel_groups.clients.single_topics import SingleLifecycle, Start, StartAt
from kiel_groups.config import FetchConfig, ResetPolicy
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import IllegalStateError
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition

__all__ = ["SingleConsumer", "Start", "BEGINNING", "END"]


class SingleConsumer(Consumer):
    """
    A consumer that reads every partition of its topics and belongs to no group.

    ``async for record in consumer`` delivers records, in order within each partition, and ends when the consumer is
    closed; so do ``getone()``, ``getmany()`` and ``consume_batches()``, and ``consume()``. The first use decides on one
    of the three ways (decision 0006). Partitions that are added to a topic are found within ``metadata_max_age_ms`` and
    read from their beginning. Construct the consumer before or while an event loop runs, and use it on one loop only.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string; IPv6 addresses in brackets.
        deserializer: Converts a value's bytes. Without a deserializer, iteration keeps bytes, and ``consume()`` decodes
            JSON.
        max_wait_time: How long a broker waits for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: How many bytes a broker waits for.
        max_bytes: About how many bytes ``consume()`` returns at once, and one response holds. While partitions are
            behind, the size of a response follows how fast the broker sends, up to four times of this.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        fetch_buffer_bytes: How many bytes of fetched records may wait for their delivery, counted without compression.
        key_deserializer: Converts a record's key, if it has one. Without it, keys are bytes.
        on_bad_record: What happens to a record on which a deserializer fails, or whose message is damaged: ``"raise"``
            raises a BadRecordError, again and again until the record is passed by ``seek()``; ``"skip"`` logs and
            counts it; a function, plain or ``async``, is called with the record (in bytes) and the error, and the
            record is passed when it has returned. ``consume()`` skips values that fail even with ``"raise"``.
        auto_offset_reset: Where to resume if a position is not in the log (any more): ``"earliest"``, ``"latest"``, or
            ``"none"`` to raise OffsetOutOfRangeError.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid.
    """

    BEGINNING: ClassVar[int] = BEGINNING
    END: ClassVar[int] = END

    _lifecycle: SingleLifecycle

    @check_setting_names
    def __init__(
        self,
        brokers: str | Iterable[str],
        deserializer: Callable[[bytes], Any] | None = None,
        max_wait_time: int = 1_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        *,
        max_message_bytes: int = 64 << 20,
        max_decompressed_bytes: int = 64 << 20,
        fetch_buffer_bytes: int = 64 << 20,
        key_deserializer: Callable[[bytes], Any] | None = None,
        on_bad_record: OnBadRecord = "raise",
        auto_offset_reset: ResetPolicy = "earliest",
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            fetch_buffer_bytes=fetch_buffer_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        settings = ReaderSettings(
            brokers=broker_config(brokers, **broker_settings),
            fetching=fetching,
            deserializer=deserializer,
            key_deserializer=key_deserializer,
            on_bad_record=on_bad_record,
            metrics=metrics or Metrics(),
        )
        super().__init__(SingleLifecycle(settings), settings)
        #: The loop of ``anext(consumer)``, if there is one.
        self._own_loop: RecordLoop | None = None

    async def __aenter__(self) -> Self:
        await connect_or_close(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @starts_at_call
    async def connect(self) -> None:
        """
        Connect to a broker and read the cluster's metadata. Without this call, the first use connects.

        Raises:
            NoBrokersError: No broker answered. The text gives the errors of the first five.
            ClosedError: The consumer was closed.
        """
        await self._lifecycle.connect()

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._lifecycle.closing is not None

    # ------------------------------------------------------------------ records

    def __aiter__(self) -> RecordLoop:
        """
        Iterate over records until the consumer is closed. Only one loop may be active at a time.

        If a loop is left by an exception, the next one delivers its last record again.

        Raises:
            ClosedError: The consumer was closed.
            ConfigError: Another loop is active, or the consumer is used in another style, such as ``consume()``.
        """
        if self._own_loop is not None:
            self._own_loop.end_loop(finished=True)
            self._own_loop = None
        return super().__aiter__()

    async def __anext__(self) -> Record:
        """
        Wait for the next record, outside of a loop.

        Raises:
            StopAsyncIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read; the error names partition and
                offset. Iteration may continue with the other partitions. The error recurs until ``seek`` moves the
                partition past the offset.
            ConfigError: A loop is active, or the consumer is used in another style.
        """
        if self._own_loop is None:
            if self._lifecycle.ended:
                raise StopAsyncIteration
            self._own_loop = super().__aiter__()
        return await self._own_loop.__anext__()

    def consume(self, topic: str, start: StartAt | None = END) -> asyncio.Future[Batch | None]:
        """
        Return the available values of one topic, from all of its partitions. The first call subscribes to it.

        Values that arrive after the caller has given up (``asyncio.wait_for``, ``gen.with_timeout``) are delivered
        again.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: BEGINNING, END, a datetime (in UTC if it has no time zone) or a timedelta into the past; see
                ``offsets_for_times`` for how exact a time is. The start applies to the first call for a topic, and
                when a position is not in the log any more. A partition without a leader delays no other; with END, it
                is read from its beginning once it has a leader.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if none came within ``max_wait_time``,
            or None once the consumer is closed. A value on which the deserializer raises is logged, counted and
            skipped, unless ``on_bad_record`` is a function, which is then called.

        Raises:
            ConfigError: The start is invalid, the name is not legal for a topic of Kafka 0.8, or the consumer is used
                in another style, such as iteration.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            NoBrokersError: No values came, and 8 metadata requests in a row were not answered. The next call may
                succeed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read. The next call may read other
                partitions.
        """
        read_topic = partial(self._lifecycle.read_topic, topic, start)
        return self._calls.consume(topic, read_topic, partial(self._lifecycle.check_start, start))

    # ------------------------------------------------------------------ topics and partitions

    def subscribe(
        self,
        topics: str | Iterable[str],
        start: Start = END,
        partitions: Collection[int] | None = None,
        listener: RebalanceListener | None = None,
    ) -> asyncio.Future[None]:
        """
        Add topics to those of former calls. (``GroupedConsumer.subscribe`` replaces the topics.)

        The future is done once their start positions are known: with END, later records are delivered. Until then, the
        topics are not in ``subscription()``.

        Args:
            topics: One topic or several; topics that are subscribed already are not changed.
            start: BEGINNING (-2), END (-1), a datetime (in UTC if it has no time zone), a timedelta into the past, or
                offsets by partition. See ``offsets_for_times`` for how exact a time is.
            partitions: The partition numbers to read in every topic; by default all, including partitions added later.
            listener: Notified, until the next call of ``subscribe``, of partitions before their first record is
                delivered, and of all partitions at ``unsubscribe`` and ``close``. Nothing is ever lost or rebalanced.

        Raises:
            UnknownTopicError: No broker knows one of the topics.
            ConfigError: A name is not legal, the start is invalid, or a partition does not exist.
            ArgumentTypeError: The listener is not an object with hooks. It is a TypeError and a ConfigError.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            BrokerError: The brokers could not look up the start positions.
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.subscribe(topics, start, partitions, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read these partitions. The call takes effect at once, so ``seek`` and ``pause`` may follow at once.

        A partition starts where the application seeks, else as ``auto_offset_reset`` says. Another call replaces the
        partitions: those that stay keep their position, pause and high watermark.

        Args:
            partitions: At least one. A partition that does not exist yet is read once it does.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. It is a TypeError and a ConfigError.
            ConfigError: There is no partition, or one has no legal topic and number.
            IllegalStateError: The consumer has subscribed to topics; call ``unsubscribe()`` first.
            ClosedError: The consumer was closed.
        """
        self._lifecycle.assign(partitions)

    @fails_in_future
    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. Nothing is delivered any more.

        It takes effect at the call, so ``assign`` may follow at once. With a listener whose partitions are revoked, it
        takes effect once the listener's hook has returned, because the hook finds the positions: await the future.

        Raises:
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.unsubscribe()

    # ------------------------------------------------------------------ what needs a group

    @starts_at_call
    async def commit(self, offsets: object = None) -> NoReturn:
        """
        Refuse to commit, because there is no group.

        Raises:
            IllegalStateError: Always; the text says what to do.
        """
        raise _groupless("commit()")

    @starts_at_call
    async def commit_async(self, offsets: object = None, callback: object = None) -> NoReturn:
        """
        Refuse to commit, because there is no group. No callback is called.

        Raises:
            IllegalStateError: Always; the text says what to do.
        """
        raise _groupless("commit_async()")

    @starts_at_call
    async def fetch_committed_offsets(self, partitions: object = None) -> NoReturn:
        """
        Refuse to look for committed offsets, because there is no group.

        Raises:
            IllegalStateError: Always; the text says what to do.
        """
        raise _groupless("fetch_committed_offsets()")

    @starts_at_call
    async def committed(self, partition: object) -> NoReturn:
        """
        Refuse to look for committed offsets, because there is no group.

        Raises:
            IllegalStateError: Always; the text says what to do.
        """
        raise _groupless("committed()")

    # ------------------------------------------------------------------ the end

    def close(self, *, timeout_s: float | None = None) -> asyncio.Future[None]:
        """
        Stop reading, end iteration, notify the listener, and close the connections.

        Further calls return the same outcome; their ``timeout_s`` may end the close earlier.

        If the event loop does not run any more, as after a Ctrl-C, the close is complete when this method returns.

        Args:
            timeout_s: How long the listener's ``on_partitions_revoked`` may delay the close, in seconds. After it, the
                hook is cancelled.

        Raises:
            ConfigError: The argument is not valid; nothing is closed.
            IllegalStateError: A hook of the listener that is a coroutine has called this; nothing is closed.
        """
        return self._lifecycle.close(timeout_s)

    @starts_at_call
    async def wind_down(self) -> None:
        """Do nothing; kept for programs written for kiel. Without a group, there is nothing to release."""


def _groupless(call: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call}: SingleConsumer has no group, so nothing is committed; store position() yourself and seek() there, or"
        " use GroupedConsumer"
    )
