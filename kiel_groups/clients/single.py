"""The single consumer: reads all partitions of its topics from a chosen start, without a group or stored offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, NoReturn, Self, TypeAlias, Unpack

from kiel_groups.clients.calls.arguments import (
    BrokerSettings,
    broker_config,
    check_setting_names,
    offsets_of,
    partitions_of,
)
from kiel_groups.clients.calls.eager_methods import connect_or_close, fails_in_future, spawn, starts_at_call
from kiel_groups.clients.calls.left_loop import LeftLoop
from kiel_groups.clients.connected_consumer import AssignedConsumer
from kiel_groups.clients.consumer import Consumer
from kiel_groups.clients.delivery.deserializer import OnBadRecord
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.record_reader import ReaderSettings, RecordReader
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import LEADERLESS_PATIENCE_S, find_offsets, list_offsets
from kiel_groups.clients.record_calls import Lifecycle
from kiel_groups.config import FetchConfig, ResetPolicy, topic_names
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionKind, SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.wording import counted


class SingleConsumer(Consumer):
    """
    A consumer that reads every partition of its topics and belongs to no group.

    There are three ways to get records, and the first use decides on one (decision 0006): ``async for record in
    consumer``, which ends when the consumer is closed; ``getone()``, ``getmany()`` and ``consume_batches()``; or
    ``consume()``. Records are delivered in order within each partition. Partitions that are added to a topic are found
    within ``metadata_max_age_ms`` and read from their beginning. Construct the consumer before or while an event loop
    runs, and use it on one loop only.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string; IPv6 addresses in brackets.
        deserializer: Converts a value's bytes. Without a deserializer, iteration keeps bytes, and ``consume()`` decodes
            JSON.
        max_wait_time: How long a broker may wait for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: For how many bytes a broker waits before it responds.
        max_bytes: The approximate limit, in bytes, of one result of ``consume()``, and of one response of a broker.
            While partitions lag behind, a response grows with the speed of the broker, up to four times ``max_bytes``.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        fetch_buffer_bytes: How many bytes of fetched records may wait for their delivery, counted without compression.
        key_deserializer: Converts the key of a record that has a key. Without a key deserializer, keys are bytes.
        on_bad_record: What happens to a record on which a deserializer fails, or whose message is damaged: ``"raise"``
            raises a BadRecordError, again and again until the record is passed by ``seek()``; ``"skip"`` logs and
            counts the record. A function, plain or ``async``, is called with the record (in bytes) and the error, and
            the record is passed when the function has returned. ``consume()`` skips values that fail even with
            ``"raise"``.
        auto_offset_reset: Where to resume if a position is not, or no longer, in the log: ``"earliest"``, ``"latest"``,
            or ``"none"`` to raise OffsetOutOfRangeError.
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
            NoBrokersError: No address answered. The message has the errors of the first five addresses.
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

        If a loop is left by an exception, the next loop delivers the last record of that loop again.

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
        Return the available values of one topic, from all of its partitions. The first call subscribes to the topic.

        Values that arrive after the caller has given up (``asyncio.wait_for``, ``gen.with_timeout``) are delivered
        again.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: BEGINNING, END, a datetime (in UTC if it has no time zone) or a timedelta into the past; see
                ``offsets_for_times`` for how exact a time is. The start applies to the first call for a topic. The
                start of the last call applies when a position is not in the log any more. A partition without a leader
                delays no other partition. With END, such a partition is read from its beginning once it has a leader.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if no values came within
            ``max_wait_time``, or None once the consumer is closed. A value on which the deserializer raises is logged,
            counted and skipped. But if ``on_bad_record`` is a function, the function is called instead.

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
        Add topics to the topics of former calls. (``GroupedConsumer.subscribe`` replaces the topics.)

        The future is done once the topics' start positions are known. With END, records that are written once the
        future is done are delivered. Until then, the topics are not in ``subscription()``.

        Args:
            topics: One topic or several; topics that are subscribed already are not changed.
            start: BEGINNING (-2), END (-1), a datetime (in UTC if it has no time zone), a timedelta into the past, or
                offsets by partition. See ``offsets_for_times`` for how exact a time is.
            partitions: The partition numbers to read in every topic; by default all, including partitions added later.
            listener: The object whose hooks are called until the next call of ``subscribe`` replaces it:
                ``on_partitions_assigned`` before the first record of a partition is delivered,
                ``on_partitions_revoked`` at ``unsubscribe`` and ``close``. Partitions are never lost or rebalanced.

        Raises:
            UnknownTopicError: No broker knows one of the topics.
            ConfigError: A name is not legal, the start is invalid, or a partition does not exist.
            ArgumentTypeError: The listener is not an object with hooks. The error is a TypeError and a ConfigError.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            BrokerError: The brokers could not look up the start positions.
            ClosedError: The consumer was closed.
        """
        return self._lifecycle.subscribe(topics, start, partitions, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read these partitions, in place of the partitions of an earlier call.

        The call takes effect at once, so ``seek`` and ``pause`` may follow.

        A partition starts where the application seeks, else as ``auto_offset_reset`` says. Partitions that stay keep
        their position, pause and high watermark.

        Args:
            partitions: At least one partition. A partition that does not exist yet is read once it exists.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. The error is a TypeError and a ConfigError.
            ConfigError: There is no partition, or a partition has no legal topic and number.
            IllegalStateError: The consumer has subscribed to topics; call ``unsubscribe()`` first.
            ClosedError: The consumer was closed.
        """
        self._lifecycle.assign(partitions)

    @fails_in_future
    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. No record is delivered any more.

        Without a listener, the call takes effect at once, so ``assign`` may follow. If a listener must be notified, the
        topics are left once the listener's hook has returned, because the hook may read the positions. In that case,
        await the future before ``assign``.

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

        Further calls return the same outcome. The ``timeout_s`` of a further call may end the close earlier.

        If the event loop does not run any more, as after a Ctrl-C, the close is complete when this method returns.

        Args:
            timeout_s: How long the listener's ``on_partitions_revoked`` may delay the close, in seconds. After this
                time, the hook is cancelled.

        Raises:
            ConfigError: The argument is not valid. The consumer stays open.
            IllegalStateError: A coroutine hook of the listener has called this method. The consumer stays open.
        """
        return self._lifecycle.close(timeout_s)

    @starts_at_call
    async def wind_down(self) -> None:
        """
        Do nothing, because a consumer without a group has nothing to release. The method is kept for programs written
        for kiel.
        """


def _groupless(call: str) -> IllegalStateError:
    return IllegalStateError(
        f"{call}: SingleConsumer has no group, so nothing is committed; store position() yourself and seek() there, or"
        " use GroupedConsumer"
    )


log = logging.getLogger(__name__)

#: BEGINNING, END, a datetime (in UTC if it has no time zone), or a timedelta into the past.
StartAt: TypeAlias = int | datetime | timedelta

#: A time (see StartAt), or the next offset of each partition; partitions that are left out start at their beginning.
Start: TypeAlias = StartAt | Mapping[TopicPartition, int]

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


def offset_time(start: StartAt | None, now: datetime) -> int:
    """
    Return a start as the time in a ListOffsets request: -2 (BEGINNING), -1 (END), or milliseconds since the epoch.

    Args:
        start: A start. None means END. A time before 1970 means the epoch.
        now: The current time, with a time zone. A timedelta counts back from this time.

    Raises:
        ConfigError: The start is not valid.
    """
    if start is None:
        return END
    if isinstance(start, timedelta):
        # Compute with numbers: the resulting time may lie outside the years that a datetime can represent.
        return max(0, _milliseconds(now) - start // _MILLISECOND)
    if isinstance(start, datetime):
        return max(0, _milliseconds(start if start.tzinfo is not None else start.replace(tzinfo=UTC)))
    if type(start) is int and start in (BEGINNING, END):
        return start
    raise ConfigError(
        f"start: {start!r} given; expected BEGINNING (-2), END (-1), a datetime (UTC), or a timedelta into the past"
    )


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


class SingleLifecycle(Lifecycle):
    """The lifecycle of a single consumer: connect at the first use, read topics or assigned partitions, and close."""

    connected: AssignedConsumer | None

    def __init__(self, settings: ReaderSettings) -> None:
        super().__init__(SubscriptionState(), LeftLoop(abandon=self._abandon))
        self._settings = settings
        self.ended = False
        #: The subscribed topics of which all partitions are read, including partitions that are added later.
        self._whole_topics: set[str] = set()
        #: Where ``consume`` starts each topic, and where it resumes if a position is not in the log any more.
        self._starts: dict[str, StartAt | None] = {}
        #: Lookups of start positions, by topic. A call of ``consume`` may time out before its lookup ends.
        self._lookups: dict[str, asyncio.Task[None]] = {}
        #: Calls of ``subscribe`` under way, whose topics are not subscribed yet.
        self._subscribing: set[asyncio.Task[None]] = set()
        self._unsubscribing = asyncio.Lock()
        #: Replaced by ``unsubscribe``, which voids the calls of ``subscribe`` under way.
        self._round = object()

    # ------------------------------------------------------------------ the connection

    async def connect(self) -> None:
        """Connect to a broker, read the cluster's metadata, and start to read assigned partitions."""
        self.left_loop.remember()
        connected = self.require_connected()
        await connected.reader.cluster.refresh([], "connect")
        connected.follow()

    def require_connected(self) -> AssignedConsumer:
        """Return the connected parts, created at the first use. Raise ClosedError once the consumer is closed."""
        if self.ended:
            raise ClosedError("the consumer was closed")
        if self.connected is None:
            self.connected = AssignedConsumer(
                self._settings, self.subscription, _no_offsets, self._reset_rule, self._read_new_partitions
            )
        return self.connected

    def close(self, timeout_s: float | None) -> asyncio.Future[None]:
        """Stop reading, notify the listener, and close the connections."""
        self._check_close(timeout_s)
        self.closing = self.left_loop.close(self.closing, partial(self._close, timeout_s), "SingleConsumer.close")
        return self.closing

    async def _close(self, timeout_s: float | None) -> None:
        # Without a running loop, ``close`` could not tell when the time began.
        self._limit.shorten(timeout_s)
        self.ended = True
        for lookup in self._lookups.values():
            lookup.cancel()
        if self.connected is not None:
            await self.connected.close(self._limit)

    def _abandon(self) -> None:
        if self.connected is not None:
            self.connected.abandon()

    # ------------------------------------------------------------------ partitions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, in place of the partitions of an earlier call. Raise ClosedError after the close."""
        if self.ended:
            raise ClosedError("the consumer was closed")
        self.subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self.require_connected().follow()

    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment, and cancel the unfinished calls of ``subscribe``.

        The future is done once the listener's hook, if any, has returned.
        """
        connected = self.require_connected()
        self._round = object()
        for lookup in self._lookups.values():
            lookup.cancel()
        self._whole_topics, self._starts = set(), {}
        is_pending = self._unsubscribing.locked() or connected.must_revoke
        if not is_pending:
            self._leave_all(connected)
        return spawn(self._revoke(connected, is_pending), "SingleConsumer.unsubscribe")

    async def _revoke(self, connected: AssignedConsumer, is_pending: bool) -> None:
        if is_pending:
            async with self._unsubscribing:
                await connected.revoke()
                self._leave_all(connected)

    def _leave_all(self, connected: AssignedConsumer) -> None:
        self.subscription.unsubscribe()
        connected.follow()

    # ------------------------------------------------------------------ topics

    def subscribe(
        self,
        topics: str | Iterable[str],
        start: Start,
        partitions: Collection[int] | None,
        listener: RebalanceListener | None,
    ) -> asyncio.Future[None]:
        """Add topics. The future is done once the start positions of the topics are known."""
        adding = spawn(self._subscribe(topics, start, partitions, listener), "SingleConsumer.subscribe")
        self._subscribing.add(adding)
        adding.add_done_callback(self._subscribing.discard)
        return adding

    async def _subscribe(
        self,
        topics: str | Iterable[str],
        start: Start,
        partitions: Collection[int] | None,
        listener: RebalanceListener | None,
    ) -> None:
        check_listener(listener)
        cluster, this_round = self.require_reader().cluster, self._round
        async with self._unsubscribing:
            pass  # The hook of an `unsubscribe` under way ends before topics are added.
        self.subscription.check_kind(SubscriptionKind.TOPICS, "subscribe()")
        fresh = [name for name in topic_names(topics) if name not in self.subscription.topics]
        chosen = [
            TopicPartition(name, number)
            for name in fresh
            for number in _chosen(name, await cluster.partitions_of(name), partitions)
        ]
        positions = await _start_positions(cluster, chosen, start)
        if self._round is this_round:
            self.subscription.listener = listener
            self._add(fresh, positions)
            if partitions is None:
                self._whole_topics.update(fresh)

    def check_chosen(self, call: str) -> None:
        if not self._subscribing:
            super().check_chosen(call)

    def _add(self, topics: Collection[str], positions: Mapping[TopicPartition, int]) -> None:
        """Add topics, and read their partitions whose positions are known."""
        connected = self.require_connected()
        self.subscription.change_subscription(self.subscription.topics | frozenset(topics))
        connected.open(positions)

    def _read_new_partitions(self) -> None:
        connected = self.connected
        if connected is None or self.ended:
            return
        cluster, assigned = connected.reader.cluster, self.subscription.assigned_partitions()
        known = {TopicPartition(t, p) for t in self._whole_topics for p in cluster.known_partitions(t) or ()}
        fresh = {partition for partition in known - assigned if partition not in connected.start_lookup}
        if fresh:
            log.info("reading %s from the beginning", counted(fresh, "new partition"))
            connected.start_lookup.add(dict.fromkeys(fresh, BEGINNING))

    async def _reset_rule(self, partition: TopicPartition) -> ResetPolicy | int:
        """
        Return where a partition resumes if its position is not in the log.

        For a topic of ``consume``, return the offset at the start that the last call named. For any other topic, return
        ``auto_offset_reset``.
        """
        if partition.topic not in self._starts:
            return self._settings.fetching.auto_offset_reset
        cluster = self.require_reader().cluster
        return (await list_offsets(cluster, [partition], self._time_of(partition.topic)))[partition]

    # ------------------------------------------------------------------ the starts of values

    def check_start(self, start: StartAt | None) -> None:
        """Raise ConfigError if a start is not valid, or IllegalStateError after ``assign``. Remember the event loop."""
        offset_time(start, datetime.now(UTC))
        self.subscription.check_kind(SubscriptionKind.TOPICS, "consume()")
        self.left_loop.remember()

    async def read_topic(self, topic: str, start: StartAt | None) -> tuple[RecordReader, float] | None:
        """
        Start to read a topic from a start, unless the topic is read already.

        Wait for the start positions, but at most ``max_wait_time``.

        Returns:
            The reader, and how long the call may still wait for values, in seconds; None once the consumer was closed.
        """
        if self.ended:
            return None
        self._starts[topic] = start
        now_s = asyncio.get_running_loop().time
        due_s = now_s() + self._settings.fetching.max_wait_ms / 1000
        reader = self.require_reader()
        if topic not in self.subscription.topics:
            await asyncio.wait({self._look_up(topic)}, timeout=due_s - now_s())
        return reader, max(0.0, due_s - now_s())

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        """Start to look up a topic's start positions, or return the lookup under way."""
        if topic not in self._lookups:
            self._lookups[topic] = spawn(self._find_start(topic), f"start of {topic}")
        return self._lookups[topic]

    async def _find_start(self, topic: str) -> None:
        connected = self.require_connected()
        cluster = connected.reader.cluster
        try:
            partitions = [TopicPartition(topic, number) for number in await cluster.partitions_of(topic)]
            at = self._time_of(topic)
            offsets = await find_offsets(
                cluster, partitions, at, patience_s=LEADERLESS_PATIENCE_S if at == END else 0.0
            )
            # While no partition has a position, retrying delays none, and all partitions get the same start time.
            found = offsets.found or await list_offsets(cluster, partitions, at)
            self._add([topic], found)
            self._whole_topics.add(topic)
            # Once a missing partition has a leader, its end may lie after records that were written since this call.
            missing = offsets.failures.keys() - found.keys()
            connected.start_lookup.add(dict.fromkeys(missing, BEGINNING if at == END else at))
        except KielGroupsError as error:
            if not self.ended:
                log.error("topic %s cannot be consumed yet: %s; the next call of consume() tries again", topic, error)
        finally:
            del self._lookups[topic]

    def _time_of(self, topic: str) -> int:
        return offset_time(self._starts[topic], datetime.now(UTC))


async def _no_offsets(_: ClusterMetadata, __: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Return no stored offsets, because the consumer has no group."""
    return {}


def _chosen(topic: str, known: Collection[int], partitions: Collection[int] | None) -> Collection[int]:
    numbers = sorted(known)
    for number in partitions or ():
        if number not in known:
            raise ConfigError(f"partitions: {number!r} given; {topic} has {numbers[0]} to {numbers[-1]}")
    return numbers if partitions is None else sorted(set(partitions))


async def _start_positions(
    cluster: ClusterMetadata, partitions: list[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    if not isinstance(start, Mapping):
        return await list_offsets(cluster, partitions, offset_time(start, datetime.now(UTC)))
    given = {each: offset for each, (offset, _) in offsets_of(start, "start").items()}
    if unknown := [str(each) for each in given if each not in partitions]:
        raise ConfigError(f"start: {', '.join(unknown)} given; expected partitions of the topics being subscribed")
    return await list_offsets(cluster, [each for each in partitions if each not in given], BEGINNING) | given
