"""The single consumer: reads all partitions of its topics from a chosen start, without a group or stored offsets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, TypeAlias, Unpack

from kiel_groups.clients.calls.client_arguments import BrokerSettings, broker_config, check_functions
from kiel_groups.clients.calls.eager_methods import failed_future, spawn, starts_at_call
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat.attributes import ConsumerAttributes
from kiel_groups.clients.compat.start_arguments import StartAt, offset_time
from kiel_groups.clients.delivery.deserializer import Deserializer
from kiel_groups.clients.fetch.fetcher import FetchedBatch, Fetcher, Selection
from kiel_groups.clients.fetch.start_lookup import StartLookup
from kiel_groups.clients.methods.cluster_queries import ClusterQueries
from kiel_groups.clients.net.cluster_metadata import DOUBT, ClusterMetadata
from kiel_groups.clients.net.offset_lookup import LEADERLESS_PATIENCE_S, find_offsets, list_offsets, log_range
from kiel_groups.config import FetchConfig, ResetPolicy, check_name, topic_names
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError, OffsetOutOfRangeError
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wording import counted

__all__ = ["SingleConsumer", "Start", "BEGINNING", "END"]

log = logging.getLogger(__name__)

#: A time (see StartAt), or the next offset of each partition; partitions that are left out start at their beginning.
Start: TypeAlias = StartAt | Mapping[TopicPartition, int]


class SingleConsumer(ConsumerAttributes, ClusterQueries):
    """
    A consumer that reads every partition of its topics and belongs to no group.

    ``async for record in consumer`` delivers records, in order within each partition, and ends when the consumer is
    closed. Partitions that are added to a topic are found within ``metadata_max_age_ms`` and read from their beginning.
    Construct the consumer before or while an event loop runs, and use it on one loop only.

    Args:
        brokers: ``host`` or ``host:port`` (9092), in a list or a comma-separated string.
        deserializer: Converts a value's bytes. Without a deserializer, iteration keeps bytes, and ``consume()`` decodes
            JSON. A record on which it raises is logged, counted (``deserializer_failures``) and skipped.
        max_wait_time: How long a broker waits for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: How many bytes a broker waits for.
        max_bytes: How many bytes one response may hold, shared among its partitions.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        auto_offset_reset: Where to resume if a position is not in the log (any more): ``"earliest"``, ``"latest"``, or
            ``"none"`` to raise OffsetOutOfRangeError.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid.
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
        self._deserializing = Deserializer(deserializer, self.metrics, time.monotonic)
        self._cluster = ClusterMetadata(broker_config(brokers, **broker_settings), self.metrics)
        self._fetcher = Fetcher(self._cluster, self._fetching, self.metrics, reset=self._reset)
        self._start_lookup = StartLookup(self._cluster, self.metrics, self._fetcher.assign)
        self._topics: set[str] = set()
        #: The subscribed topics of which all partitions are read, including partitions that are added later.
        self._whole_topics: set[str] = set()
        #: Where ``consume`` starts each topic, and where it resumes if a position is not in the log any more.
        self._starts: dict[str, StartAt | None] = {}
        #: Lookups of start positions, by topic. A call of ``consume`` may time out before its lookup ends.
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Future[None] | None = None
        self._left_loop = LeftLoop(abandon=self._deserializing.close)
        #: The batch that iteration delivers from, and the index of its next record.
        self._batch: Sequence[Record] = ()
        self._next = 0
        self._watch: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @starts_at_call
    async def connect(self) -> None:
        """
        Connect to a broker and read the cluster's metadata.

        Raises:
            NoBrokersError: No broker answered. The text gives the errors of the first five.
        """
        self._left_loop.remember()
        await self._cluster.refresh([], "connect")

    @starts_at_call
    async def subscribe(
        self, topics: str | Iterable[str], start: Start = END, partitions: Collection[int] | None = None
    ) -> None:
        """
        Add topics. The future is done once their start positions are known: with END, later records are delivered.

        Args:
            topics: One topic or several; topics that are subscribed already are not changed.
            start: BEGINNING (-2), END (-1), a datetime (in UTC if it has no time zone), a timedelta into the past, or
                offsets by partition. Brokers resolve a time only to the start of a log segment.
            partitions: The partition numbers to read in every topic; by default all, including partitions added later.

        Raises:
            UnknownTopicError: No broker knows one of the topics.
            ConfigError: A name is not legal, the start is invalid, or a partition does not exist.
            BrokerError: The brokers could not look up the start positions.
            ClosedError: The consumer was closed.
        """
        fresh = [name for name in topic_names(topics) if name not in self._topics]
        chosen = [TopicPartition(name, p) for name in fresh for p in await self._partition_numbers(name, partitions)]
        positions = await self._start_positions(chosen, start)
        for name in fresh:
            self._read(name, {tp: at for tp, at in positions.items() if tp.topic == name})
        if partitions is None:
            self._whole_topics.update(fresh)

    def _require_cluster(self) -> ClusterMetadata:
        if self._ended.is_set():
            raise ClosedError("the consumer was closed")
        return self._cluster

    async def _partition_numbers(self, topic: str, partitions: Collection[int] | None) -> Collection[int]:
        known = await self._cluster.partitions_of(topic)
        for number in partitions or ():
            if number not in known:
                raise ConfigError(f"partitions: {number!r} given; {topic} has {known[0]} to {known[-1]}")
        return known if partitions is None else sorted(set(partitions))

    def _read(self, topic: str, positions: Mapping[TopicPartition, int]) -> None:
        if self._ended.is_set():
            raise ClosedError("the consumer was closed")
        self._topics.add(topic)
        self._fetcher.assign({tp: at for tp, at in positions.items() if tp not in self._fetcher.assignment})
        if self._watch is None:
            self._watch = spawn(self._find_new_partitions(), "watch for new partitions")

    def consume(self, topic: str, start: StartAt | None = END) -> asyncio.Future[list[Any] | None]:
        """
        Return the available values of one topic, from all of its partitions. The first call subscribes to it.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: BEGINNING, END, a datetime (in UTC if it has no time zone) or a timedelta into the past. Brokers
                resolve a time only to the start of a log segment. The start applies to the first call for a topic, and
                when a position is not in the log any more. A partition without a leader delays no other; with END, it
                is read from its beginning once it has a leader.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if none came within ``max_wait_time``,
            or None once the consumer is closed. A value on which the deserializer raises is logged, counted and
            skipped.

        Raises:
            ConfigError: The start is invalid, or the name is not legal for a topic of Kafka 0.8.
            NoBrokersError: No values came, and 8 metadata requests in a row were not answered. The next call may
                succeed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read. The next call may read other
                partitions.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic, start), "SingleConsumer.consume")
        try:
            check_name(topic, "topic")
            offset_time(start, datetime.now(UTC))
        except ConfigError as error:
            return failed_future(error, "SingleConsumer.consume")
        self._left_loop.remember()
        return spawn(self._consume(topic, start), "SingleConsumer.consume")

    async def _consume_later(self, topic: str, start: StartAt | None) -> list[Any] | None:
        """Call ``consume()`` on the running loop, for an application that called it before a loop ran."""
        return await self.consume(topic, start)

    async def _consume(self, topic: str, start: StartAt | None) -> list[Any] | None:
        self._starts[topic] = start
        values: list[Any] = []
        # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(self._fetching.max_wait_ms / 1000):
                if topic not in self._topics and not self._ended.is_set():
                    await asyncio.wait({self._look_up(topic)})
                while not (values := self._buffered_values(topic)) and not self._ended.is_set():
                    await self._fetcher.ready.wait(Selection(topic))
        except TimeoutError:
            values = self._buffered_values(topic)
        if self._ended.is_set():
            await self._left_loop.closed.wait()
            return None
        if not values and (unreachable := self._cluster.unreachable) is not None:
            raise unreachable
        return values

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        """Start to look up a topic's start positions, or return the lookup under way."""
        if topic not in self._lookups:
            self._lookups[topic] = spawn(self._find_start(topic), f"start of {topic}")
        return self._lookups[topic]

    async def _find_start(self, topic: str) -> None:
        try:
            partitions = [TopicPartition(topic, number) for number in await self._cluster.partitions_of(topic)]
            at = self._time_of(topic)
            offsets = await find_offsets(
                self._cluster, partitions, at, patience_s=LEADERLESS_PATIENCE_S if at == END else 0.0
            )
            # While no partition has a position, retrying delays none, and all partitions get the same start time.
            found = offsets.found or await list_offsets(self._cluster, partitions, at)
            self._read(topic, found)
            self._whole_topics.add(topic)
            # Once a missing partition has a leader, its end may lie after records that were written since this call.
            missing = offsets.failures.keys() - found.keys()
            self._start_lookup.add(dict.fromkeys(missing, BEGINNING if at == END else at))
        except KielGroupsError as error:
            if not self._ended.is_set():
                log.error("topic %s cannot be consumed yet: %s; the next call of consume() tries again", topic, error)
        finally:
            del self._lookups[topic]

    def _time_of(self, topic: str) -> int:
        return offset_time(self._starts[topic], datetime.now(UTC))

    def _buffered_values(self, topic: str) -> list[Any]:
        values: list[Any] = []
        room = self._fetching.max_bytes
        while room > 0 and (batch := self._poll(topic, or_raise=not values)) is not None:
            values += self._deserializing.values(batch.records)
            room -= batch.size_bytes
        return values

    def _poll(self, topic: str, *, or_raise: bool) -> FetchedBatch | None:
        try:
            return self._fetcher.poll(Selection(topic))
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
        """The partitions being read, by topic, in ascending order. Any other topic maps to []."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._fetcher.assignment):
            topics[topic].append(partition)
        return topics

    @property
    def closing(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closing is not None

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset that iteration delivers next, or None if the partition is not being read."""
        if self._is_current(topic_partition):
            return self._batch[self._next].offset
        return self._fetcher.position(topic_partition)

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """
        Return the number of messages after the last delivered batch of a partition.

        Return None before the partition's first fetch, or if the partition is not being read.
        """
        return self._fetcher.lag(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """
        Resume a partition at another offset.

        Raises:
            KeyError: The partition is not being read.
        """
        self._fetcher.seek(topic_partition, offset)
        if self._is_current(topic_partition):
            self._batch = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """
        Wait for the next record.

        Raises:
            StopAsyncIteration: The consumer was closed.
            MessageTooLargeError, ProtocolError, BrokerError: A partition cannot be read; the error names partition and
                offset. Iteration may continue with the other partitions. The error recurs until ``seek`` moves the
                partition past the offset.
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
        Stop reading, end iteration, and close the connections. Further calls do nothing.

        If the event loop does not run any more, as after a Ctrl-C, the close is complete when this method returns.
        """
        self._closing = self._left_loop.close(self._closing, self._close, "SingleConsumer.close")
        return self._closing

    @starts_at_call
    async def wind_down(self) -> None:
        """Do nothing; kept for programs written for kiel. Without a group, there is nothing to release."""

    async def _close(self) -> None:
        self._ended.set()
        self._batch = ()
        if self._watch is not None:
            self._watch.cancel()
        self._start_lookup.close()
        self._fetcher.close()
        self._cluster.close()
        self._deserializing.close()

    # ------------------------------------------------------------------ records

    async def _next_batch(self) -> FetchedBatch:
        # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
        await asyncio.sleep(0)
        while not self._ended.is_set():
            batch = self._fetcher.poll()
            if batch is not None:
                return batch
            await self._fetcher.ready.wait()
        raise StopAsyncIteration

    def _is_current(self, topic_partition: TopicPartition) -> bool:
        """Whether iteration delivers from a batch of this partition that has more records."""
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
        # A deposed leader answers "out of range" for offsets that its successor has appended since. Therefore another
        # broker is asked for the leader before the log's range is believed.
        await self._cluster.refresh([topic_partition.topic], DOUBT)
        found = await log_range(self._cluster, topic_partition)
        if found.start <= position <= found.end:
            return None
        if topic_partition.topic in self._starts:
            at = self._time_of(topic_partition.topic)
            return (await list_offsets(self._cluster, [topic_partition], at))[topic_partition]
        policy = self._fetching.auto_offset_reset
        if policy == "none":
            raise OffsetOutOfRangeError(
                f"{topic_partition}: the log does not have offset {position}, it has {found.start} to {found.end}, and"
                " auto_offset_reset is 'none'",
                code=1,
            )
        return found.start if policy == "earliest" else found.end

    async def _find_new_partitions(self) -> None:
        """Renew the metadata every ``metadata_max_age_ms``, and read partitions that were added to the topics."""
        while not self._ended.is_set():
            try:
                await self._cluster.refresh_when_old(lambda: self._topics)
            except KielGroupsError as error:
                log.warning("could not look for new partitions: %s", error)
            else:
                self._read_new_partitions()

    def _read_new_partitions(self) -> None:
        known = {TopicPartition(t, p) for t in self._whole_topics for p in self._cluster.known_partitions(t) or ()}
        fresh = {tp for tp in known - self._fetcher.assignment if tp not in self._start_lookup}
        if fresh:
            log.info("reading %s from the beginning", counted(fresh, "new partition"))
            self._start_lookup.add(dict.fromkeys(fresh, BEGINNING))
