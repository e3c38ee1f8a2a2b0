"""A consumer by itself: every partition of its topics, from where it is told, without a group or stored offsets."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, TypeAlias, Unpack

from kiel_groups.clients.calls.client_arguments import BrokerSettings, broker_config, check_functions
from kiel_groups.clients.calls.eager_methods import failed, spawn, started
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat.attributes import ConsumerAttributes
from kiel_groups.clients.compat.start_arguments import StartAt, offset_time
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.fetch.fetcher import FetchedBatch, Fetcher
from kiel_groups.clients.fetch.start_lookup import StartLookup
from kiel_groups.clients.net.cluster_metadata import DOUBT, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import ELECTION_S, find_offsets, list_offsets, log_range
from kiel_groups.config import FetchConfig, ResetPolicy, check_name, topic_names
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition

__all__ = ["SingleConsumer", "Start", "BEGINNING", "END"]

log = logging.getLogger(__name__)

#: BEGINNING, END, or the next offset of each partition; partitions that are left out start at their beginning.
Start: TypeAlias = StartAt | Mapping[TopicPartition, int]


class SingleConsumer(ConsumerAttributes):
    """
    Reads every partition of its topics; constructed before or while an event loop runs, used on one loop.

    ``async for record in consumer`` hands out records, in order within each partition, and ends when the consumer is
    closed. Partitions that are added to a topic are found within ``metadata_max_age_ms`` and read from their beginning.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string.
        deserializer: Called with the bytes of each value that is not null. A record whose value it cannot take is
            logged, counted (``deserializer_failures``) and passed over. Without one, values stay bytes.
        max_wait_time: How long a broker waits for ``min_bytes`` before it answers, in milliseconds.
        min_bytes: What is worth an answer before that.
        max_bytes: What one answer may hold, shared among its partitions.
        max_message_bytes: A message larger than its share is fetched by itself, up to this size.
        max_decompressed_bytes: What one compressed set may unpack to.
        auto_offset_reset: Where to go on when a log does not have the position (any more): ``"earliest"``,
            ``"latest"``, or ``"none"`` to raise OffsetOutOfRangeError.
        metrics: Where to count; a registry of its own if left out.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the others of ``BrokerConfig``.

    Raises:
        ConfigError: A setting that cannot work.
    """

    BEGINNING: ClassVar[int] = BEGINNING
    END: ClassVar[int] = END

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
        auto_offset_reset: ResetPolicy = "earliest",
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_functions(deserializer=deserializer)
        self.metrics = metrics or Metrics()
        self._fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        self._deserializer = deserializer
        self._deserializing = Deserializer(deserializer, self.metrics)
        self._cluster = ClusterMetadata(broker_config(brokers, **broker_settings), self.metrics)
        self._fetcher = Fetcher(self._cluster, self._fetching, self.metrics, reset=self._reset)
        self._late = StartLookup(self._cluster, self.metrics, self._fetcher.assign)
        self._topics: set[str] = set()
        #: Those of them that are read as a whole.
        self._growing: set[str] = set()
        #: Where ``consume`` is to start a topic, and to go on where its log does not have a position any more.
        self._starts: dict[str, StartAt | None] = {}
        #: Topics whose start positions are being asked for; who waits for them may give up before.
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Future[None] | None = None
        self._left_loop = LeftLoop(abandon=self._deserializing.close)
        #: The batch that is being iterated over, and the index of its next record.
        self._batch: Sequence[Record] = ()
        self._next = 0
        self._watch: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @started
    async def connect(self) -> None:
        """
        Find the cluster.

        Raises:
            NoBrokersError: None of the brokers answers; names them, and why.
        """
        self._left_loop.remember()
        await self._cluster.refresh([], "connect")

    @started
    async def subscribe(
        self, topics: str | Iterable[str], start: Start = END, partitions: Collection[int] | None = None
    ) -> None:
        """
        Read these topics too; returns when their start positions are known, so that END means this moment.

        Args:
            topics: One topic or several; those subscribed already go on as they are.
            start: BEGINNING (-2), END (-1), a datetime (in UTC where it names no zone), a timedelta into the past, or
                offsets by partition. Brokers know times only as exactly as their log segments are cut.
            partitions: The numbers of those to read, in every topic; all of them, also future ones, if left out.

        Raises:
            UnknownTopicError: No broker knows one of the topics.
            ConfigError: A name that is not legal, a start that is none of these, or a partition that does not exist.
            BrokerError: The brokers could not say where to start.
            ClosedError: The consumer was closed.
        """
        fresh = [name for name in topic_names(topics) if name not in self._topics]
        chosen = [TopicPartition(name, p) for name in fresh for p in await self._chosen(name, partitions)]
        positions = await self._start_positions(chosen, start)
        for name in fresh:
            self._read(name, {tp: at for tp, at in positions.items() if tp.topic == name})
        if partitions is None:
            self._growing.update(fresh)

    async def _chosen(self, topic: str, partitions: Collection[int] | None) -> Collection[int]:
        there = await self._cluster.partitions_of(topic)
        for number in partitions or ():
            if number not in there:
                raise ConfigError(f"partitions: {number!r} given; {topic} has {there[0]} to {there[-1]}")
        return there if partitions is None else sorted(set(partitions))

    def _read(self, topic: str, positions: Mapping[TopicPartition, int]) -> None:
        if self._ended.is_set():
            raise ClosedError("the consumer was closed")
        self._topics.add(topic)
        self._fetcher.assign({tp: at for tp, at in positions.items() if tp not in self._fetcher.assignment})
        if self._watch is None:
            self._watch = spawn(self._find_new_partitions(), "watch for new partitions")

    def consume(self, topic: str, start: StartAt | None = END) -> asyncio.Future[list[Any] | None]:
        """
        Values of one topic that are at hand, from all of its partitions.

        Args:
            topic: One that does not exist gives no values until it does.
            start: BEGINNING, END, a datetime (in UTC where it names no zone) or a timedelta into the past; brokers know
                times only as exactly as their log segments are cut. Counts at the first call for a topic, and after a
                position that the log does not have any more. Partitions without a leader keep no others waiting; under
                END they are read from their beginning when they have one.

        Returns:
            Values that the deserialiser made (``json.loads`` without one), [] where none came within
            ``max_wait_time``; a value that it fails on is logged, counted and passed over. None once the consumer is
            closed.

        Raises:
            ConfigError: A start that is none of these, or a name that no topic of Kafka 0.8 can have.
            NoBrokersError: There are none, and 8 metadata requests in a row were not answered. The next call may work.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read. Others go on at the next call.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic, start), "SingleConsumer.consume")
        try:
            check_name(topic, "topic")
            offset_time(start, datetime.now(UTC))
        except ConfigError as error:
            return failed(error, "SingleConsumer.consume")
        self._left_loop.remember()
        return spawn(self._consume(topic, start), "SingleConsumer.consume")

    async def _consume_later(self, topic: str, start: StartAt | None) -> list[Any] | None:
        """What was asked for before the loop ran is answered when it does."""
        return await self.consume(topic, start)

    async def _consume(self, topic: str, start: StartAt | None) -> list[Any] | None:
        self._starts[topic] = start
        values: list[Any] = []
        # An error that stands first is raised without waiting; whoever loops over it must not starve the event loop.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._fetching.max_wait_ms / 1000):
                if topic not in self._topics and not self._ended.is_set():
                    await asyncio.wait({self._look_up(topic)})
                while not (values := self._values_at_hand(topic)) and not self._ended.is_set():
                    await self._fetcher.wait_for_batch(topic)
        except TimeoutError:
            values = self._values_at_hand(topic)
        if self._ended.is_set():
            await self._left_loop.closed.wait()
            return None
        if not values and (unreachable := self._cluster.unreachable) is not None:
            raise unreachable
        return values

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        """Start to read a topic, if that is not under way."""
        if topic not in self._looking:
            self._looking[topic] = spawn(self._find_start(topic), f"start of {topic}")
        return self._looking[topic]

    async def _find_start(self, topic: str) -> None:
        try:
            partitions = [TopicPartition(topic, number) for number in await self._cluster.partitions_of(topic)]
            at = self._time_of(topic)
            offsets = await find_offsets(self._cluster, partitions, at, patience_s=ELECTION_S if at == END else 0.0)
            # Nothing is read yet, so nothing is kept waiting: all of them have one moment.
            found = offsets.found or await list_offsets(self._cluster, partitions, at)
            self._read(topic, found)
            self._growing.add(topic)
            # The end of a log that has a leader again may be later than the moment that was meant.
            missing = offsets.failures.keys() - found.keys()
            self._late.add(dict.fromkeys(missing, BEGINNING if at == END else at))
        except KielGroupsError as error:
            if not self._ended.is_set():
                log.error("%s cannot be consumed yet: %s; the next call tries again", topic, error)
        finally:
            del self._looking[topic]

    def _time_of(self, topic: str) -> int:
        return offset_time(self._starts[topic], datetime.now(UTC))

    def _values_at_hand(self, topic: str) -> list[Any]:
        values: list[Any] = []
        room = self._fetching.max_bytes
        while room > 0 and (batch := self._poll(topic, or_raise=not values)) is not None:
            values += self._deserializing.values(batch.records)
            room -= batch.size_bytes
        return values

    def _poll(self, topic: str, *, or_raise: bool) -> FetchedBatch | None:
        try:
            return self._fetcher.poll(topic)
        except KielGroupsError:
            if or_raise:
                raise
            return None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions being read."""
        return self._fetcher.assignment

    @property
    def allocation(self) -> defaultdict[str, list[int]]:
        """The partitions being read, ascending, per topic; [] of any other."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._fetcher.assignment):
            topics[topic].append(partition)
        return topics

    @property
    def closing(self) -> bool:
        """Whether it was closed."""
        return self._closing is not None

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset that iteration hands out next; None if the partition is not being read."""
        if self._in_hand(topic_partition):
            return self._batch[self._next].offset
        return self._fetcher.position(topic_partition)

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """How many messages of a partition are still to be read, as last heard; None if nothing was heard."""
        return self._fetcher.lag(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """
        Read on from another offset.

        Raises:
            KeyError: The partition is not being read.
        """
        self._fetcher.seek(topic_partition, offset)
        if self._in_hand(topic_partition):
            self._batch = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """
        The next record; waits for one.

        Raises:
            StopAsyncIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read; the error names partition and
                offset. ``seek`` past it and iterate on, or iterate on: the other partitions keep flowing, and the
                error comes again.
        """
        while True:
            while self._next < len(self._batch):
                record = self._batch[self._next]
                self._next += 1
                if (readable := self._deserializing.record(record)) is not None:
                    return readable
            self._batch, self._next = (await self._next_batch()).records, 0

    def close(self) -> asyncio.Future[None]:
        """
        Stop reading and close the connections; iteration ends. Calling it again does nothing.

        Where no event loop runs any more, as after a Ctrl-C, it is done before this returns.
        """
        self._closing = self._left_loop.close(self._closing, self._close, "SingleConsumer.close")
        return self._closing

    @started
    async def wind_down(self) -> None:
        """Nothing: who consumes alone has nothing to give back before a close."""

    async def _close(self) -> None:
        self._ended.set()
        self._batch = ()
        if self._watch is not None:
            self._watch.cancel()
        self._late.close()
        self._fetcher.close()
        self._cluster.close()
        self._deserializing.close()

    # ------------------------------------------------------------------ records

    async def _next_batch(self) -> FetchedBatch:
        # An error that stands first is raised without waiting; whoever loops over it must not starve the event loop.
        await asyncio.sleep(0)
        while not self._ended.is_set():
            batch = self._fetcher.poll()
            if batch is not None:
                return batch
            await self._fetcher.wait_for_batch()
        raise StopAsyncIteration

    def _in_hand(self, topic_partition: TopicPartition) -> bool:
        """Whether the batch that is being iterated over belongs to a partition, and has more records."""
        return self._next < len(self._batch) and self._batch[self._next].topic_partition == topic_partition

    # ------------------------------------------------------------------ positions

    async def _start_positions(self, partitions: list[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        if not isinstance(start, Mapping):
            return await list_offsets(self._cluster, partitions, offset_time(start, datetime.now(UTC)))
        unknown = [str(tp) for tp in start if tp not in partitions]
        if unknown:
            raise ConfigError(f"start: {', '.join(unknown)} given; expected partitions of the topics being subscribed")
        rest = await list_offsets(self._cluster, [tp for tp in partitions if tp not in start], BEGINNING)
        return rest | dict(start)

    async def _reset(self, topic_partition: TopicPartition, position: int) -> int | None:
        # A deposed leader says "out of range" of what its successor has taken since: another broker names the leader.
        await self._cluster.refresh([topic_partition.topic], DOUBT)
        start, end = await log_range(self._cluster, topic_partition)
        if start <= position <= end:
            return None
        if topic_partition.topic in self._starts:
            at = self._time_of(topic_partition.topic)
            return (await list_offsets(self._cluster, [topic_partition], at))[topic_partition]
        policy = self._fetching.auto_offset_reset
        if policy == "none":
            raise OffsetOutOfRangeError(
                f"{topic_partition}: the log does not have offset {position}, it has {start} to {end}, and"
                " auto_offset_reset is 'none'",
                code=1,
            )
        return start if policy == "earliest" else end

    async def _find_new_partitions(self) -> None:
        """Look now and then whether the topics have grown."""
        while not self._ended.is_set():
            try:
                await self._cluster.renew(lambda: self._topics)
            except KielGroupsError as error:
                log.warning("could not look for new partitions: %s", error)
            else:
                self._read_new_partitions()

    def _read_new_partitions(self) -> None:
        known = {TopicPartition(t, p) for t in self._growing for p in self._cluster.known_partitions(t) or ()}
        fresh = {tp for tp in known - self._fetcher.assignment if tp not in self._late}
        if fresh:
            log.info("reading %d new partitions from their beginning", len(fresh))
            self._late.add(dict.fromkeys(fresh, BEGINNING))
