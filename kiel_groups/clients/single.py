"""The single consumer: reads all partitions of its topics from a chosen start, without a group or stored offsets."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn, Self, Unpack

from kiel_groups.clients.calls.arguments import BrokerSettings, broker_config, check_close_timeout, check_setting_names
from kiel_groups.clients.calls.eager_methods import connect_or_close, starts_at_call
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat import ConsumerAttributes
from kiel_groups.clients.delivery.deserializer import OnBadRecord
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.record_reader import ReaderSettings
from kiel_groups.clients.single_topics import SingleTopics, Start
from kiel_groups.config import FetchConfig, ResetPolicy
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import IllegalStateError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record
from kiel_groups.zookeeper.tasks import CloseLimit

__all__ = ["SingleConsumer", "Start", "BEGINNING", "END"]


class SingleConsumer(SingleTopics, ConsumerAttributes):
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
        self.metrics = metrics or Metrics()
        self._fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            fetch_buffer_bytes=fetch_buffer_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        self._deserializer = deserializer
        settings = ReaderSettings(
            brokers=broker_config(brokers, **broker_settings),
            fetching=self._fetching,
            deserializer=deserializer,
            key_deserializer=key_deserializer,
            on_bad_record=on_bad_record,
            metrics=self.metrics,
        )
        super().__init__(settings)
        self._closing: asyncio.Future[None] | None = None
        self._left_loop = LeftLoop(abandon=self._abandon)
        self._limit = CloseLimit()
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
        self._left_loop.remember()
        connected = self._require_connected()
        await connected.reader.cluster.refresh([], "connect")
        connected.follow()

    @property
    def allocation(self) -> defaultdict[str, list[int]]:
        """The partitions being read, by topic, in ascending order. Any other topic maps to []."""
        return self._subscription.offsets.allocation()

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closing is not None

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
            if self._ended:
                raise StopAsyncIteration
            self._own_loop = super().__aiter__()
        return await self._own_loop.__anext__()

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
        check_close_timeout(timeout_s)
        if running_loop() is not None:
            if self._connected is not None:
                self._connected.calls.check_outside("close()")
            self._limit.shorten(timeout_s)
        self._closing = self._left_loop.close(
            self._closing, functools.partial(self._close, timeout_s), "SingleConsumer.close"
        )
        return self._closing

    @starts_at_call
    async def wind_down(self) -> None:
        """Do nothing; kept for programs written for kiel. Without a group, there is nothing to release."""

    async def _close(self, timeout_s: float | None) -> None:
        # Without a running loop, ``close`` could not tell when the time began.
        self._limit.shorten(timeout_s)
        self._ended = True
        for lookup in self._lookups.values():
            lookup.cancel()
        if self._connected is not None:
            await self._connected.close(self._limit)

    def _abandon(self) -> None:
        if self._connected is not None:
            self._connected.abandon()


def _groupless(call: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call}: SingleConsumer has no group, so nothing is committed; store position() yourself and seek() there, or"
        " use GroupedConsumer"
    )
