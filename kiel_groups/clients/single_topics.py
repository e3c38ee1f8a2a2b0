"""The topics of a consumer without a group, from the starts that the application chooses, or its own partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from kiel_groups.clients.assigned_consumer import AssignedConsumer
from kiel_groups.clients.calls.arguments import offsets_of, partitions_of
from kiel_groups.clients.calls.callers import ConsumeCall, DeliveryStyle, new_consume_call
from kiel_groups.clients.calls.eager_methods import failed_future, spawn
from kiel_groups.clients.calls.left_loop import running_loop
from kiel_groups.clients.compat import StartAt, offset_time
from kiel_groups.clients.consumer import AssignedPartitions, RecordAccess
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.record_reader import VALUES, ReaderSettings, RecordReader
from kiel_groups.clients.fetch.fetcher import Selection
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import LEADERLESS_PATIENCE_S, find_offsets, list_offsets
from kiel_groups.config import ResetPolicy, check_name, topic_names
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionKind, SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import Batch, TopicPartition
from kiel_groups.wording import counted

__all__ = ["SingleTopics", "Start"]

log = logging.getLogger(__name__)

#: A time (see StartAt), or the next offset of each partition; partitions that are left out start at their beginning.
Start: TypeAlias = StartAt | Mapping[TopicPartition, int]


class SingleTopics(RecordAccess, AssignedPartitions):
    """Subscribes a consumer without a group to topics, or assigns it the partitions that the application chooses."""

    def __init__(self, settings: ReaderSettings) -> None:
        super().__init__()
        self._settings = settings
        self._subscription = SubscriptionState()
        self._connected: AssignedConsumer | None = None
        self._ended = False
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

    # ------------------------------------------------------------------ the connected parts

    def _require_connected(self) -> AssignedConsumer:
        """Return the connected parts; they are made at the first use. Raise ClosedError once the consumer is closed."""
        if self._ended:
            raise ClosedError("the consumer was closed")
        if self._connected is None:
            self._connected = AssignedConsumer(
                self._settings, self._subscription, _no_offsets, self._reset_rule, self._read_new_partitions
            )
        return self._connected

    def _require_reader(self) -> RecordReader:
        return self._require_connected().reader

    def _require_cluster(self) -> ClusterMetadata:
        return self._require_reader().cluster

    def _connected_readers(self) -> list[RecordReader]:
        return [] if self._connected is None else [self._connected.reader]

    def _owned_records(self) -> OwnedRecords | None:
        return None if self._connected is None else self._connected.reader.owned

    async def _await_position(self, partition: TopicPartition) -> None:
        await self._require_connected().await_position(partition)

    # ------------------------------------------------------------------ partitions

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
        if self._ended:
            raise ClosedError("the consumer was closed")
        self._subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self._require_connected().follow()

    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. Nothing is delivered any more.

        It takes effect at the call, so ``assign`` may follow at once. With a listener whose partitions are revoked, it
        takes effect once the listener's hook has returned, because the hook finds the positions: await the future.

        Raises:
            ClosedError: The consumer was closed.
        """
        try:
            connected = self._require_connected()
        except ClosedError as error:
            return failed_future(error, "SingleConsumer.unsubscribe")
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
        self._subscription.unsubscribe()
        connected.follow()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; none with partitions from ``assign``."""
        return self._subscription.topics

    # ------------------------------------------------------------------ topics

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
        cluster, this_round = self._require_cluster(), self._round
        async with self._unsubscribing:
            pass  # The hook of an `unsubscribe` under way ends before topics are added.
        self._subscription.check_kind(SubscriptionKind.TOPICS, "subscribe()")
        fresh = [name for name in topic_names(topics) if name not in self._subscription.topics]
        chosen = [
            TopicPartition(name, number)
            for name in fresh
            for number in _chosen(name, await cluster.partitions_of(name), partitions)
        ]
        positions = await _start_positions(cluster, chosen, start)
        if self._round is this_round:
            self._subscription.listener = listener
            self._add(fresh, positions)
            if partitions is None:
                self._whole_topics.update(fresh)

    def _check_subscribed(self, call: str) -> None:
        if not self._subscribing:
            super()._check_subscribed(call)

    def _add(self, topics: Collection[str], positions: Mapping[TopicPartition, int]) -> None:
        """Add topics, and read those partitions of them whose positions are known."""
        connected = self._require_connected()
        self._subscription.change_subscription(self._subscription.topics | frozenset(topics))
        connected.open(positions)

    def _read_new_partitions(self) -> None:
        connected = self._connected
        if connected is None or self._ended:
            return
        cluster, assigned = connected.reader.cluster, self._subscription.assigned_partitions()
        known = {TopicPartition(t, p) for t in self._whole_topics for p in cluster.known_partitions(t) or ()}
        fresh = {partition for partition in known - assigned if not connected.is_looking_up(partition)}
        if fresh:
            log.info("reading %s from the beginning", counted(fresh, "new partition"))
            connected.look_up(dict.fromkeys(fresh, BEGINNING))

    async def _reset_rule(self, partition: TopicPartition) -> ResetPolicy | int:
        """Resume a topic of ``consume`` where its last call would start it, others as ``auto_offset_reset`` says."""
        if partition.topic not in self._starts:
            return self._settings.fetching.auto_offset_reset
        cluster = self._require_cluster()
        return (await list_offsets(cluster, [partition], self._time_of(partition.topic)))[partition]

    # ------------------------------------------------------------------ values

    def consume(self, topic: str, start: StartAt | None = END) -> asyncio.Future[list[Any] | None]:
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
        if running_loop() is None:
            return spawn(self._consume_later(topic, start), "SingleConsumer.consume")
        try:
            check_name(topic, "topic")
            offset_time(start, datetime.now(UTC))
            self._style.choose(DeliveryStyle.VALUES)
            self._subscription.check_kind(SubscriptionKind.TOPICS, "consume()")
        except KielGroupsError as error:
            return failed_future(error, "SingleConsumer.consume")
        self._left_loop.remember()
        call = new_consume_call(self, topic)
        if self._connected is not None:
            self._connected.reader.values.finish([topic], ())
        return self._start_waiting(self._values(topic, start, call), call, "SingleConsumer.consume", Batch)

    async def _consume_later(self, topic: str, start: StartAt | None) -> list[Any] | None:
        """Call ``consume()`` on the running loop, for an application that called it before a loop ran."""
        return await self.consume(topic, start)

    async def _values(self, topic: str, start: StartAt | None, call: ConsumeCall) -> Batch | None:
        values: Batch | None = None
        if not self._ended:
            self._starts[topic] = start
            now_s = asyncio.get_running_loop().time
            due_s = now_s() + self._settings.fetching.max_wait_ms / 1000
            reader = self._require_reader()
            if topic not in self._subscription.topics:
                await asyncio.wait({self._look_up(topic)}, timeout=due_s - now_s())
            values = await reader.next(
                Selection(topic), VALUES, call, max(0.0, due_s - now_s()), most_bytes=self._settings.fetching.max_bytes
            )
        if values is None:
            await self._left_loop.closed.wait()
        return values

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        """Start to look up a topic's start positions, or return the lookup under way."""
        if topic not in self._lookups:
            self._lookups[topic] = spawn(self._find_start(topic), f"start of {topic}")
        return self._lookups[topic]

    async def _find_start(self, topic: str) -> None:
        connected = self._require_connected()
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
            connected.look_up(dict.fromkeys(missing, BEGINNING if at == END else at))
        except KielGroupsError as error:
            if not self._ended:
                log.error("topic %s cannot be consumed yet: %s; the next call of consume() tries again", topic, error)
        finally:
            del self._lookups[topic]

    def _time_of(self, topic: str) -> int:
        return offset_time(self._starts[topic], datetime.now(UTC))


async def _no_offsets(_: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Return the stored offsets of a consumer without a group: none."""
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
