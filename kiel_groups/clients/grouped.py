"""A consumer that shares its topics with the other members of its group."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from kiel_groups.allocators import Allocator, allocator_of
from kiel_groups.clients.calls.callers import ConsumeCall, consume_calls_here, current_caller, new_consume_call
from kiel_groups.clients.calls.client_arguments import BrokerSettings, broker_config, check_functions
from kiel_groups.clients.calls.consume_future import Values, asking
from kiel_groups.clients.calls.eager_methods import failed, spawn, started
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat.attributes import MemberAttributes
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.config import (
    DebounceConfig,
    FetchConfig,
    GroupConfig,
    ResetPolicy,
    ZooKeeperConfig,
    check_name,
    topic_names,
)
from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["GroupedConsumer"]


class GroupedConsumer(MemberAttributes):
    """
    A member of a consumer group on Kafka 0.8, at least once.

    ``async for record in consumer`` hands out records of the partitions that the group's leader allocates to this
    member. A record is finished when the next one is asked for; what is finished is committed every
    ``auto_commit_interval_ms``, at a hand-over and at the close. Every method returns a future that is already
    started; constructing needs no event loop.

    Args:
        brokers: ``host`` or ``host:port`` (9092) of some brokers; the others are found.
        group: The group's name: letters, digits, ``.``, ``_`` and ``-``.
        zk_hosts: ZooKeeper servers, ``host`` or ``host:port`` (2181), with a chroot after the last where there is one.
        deserializer: Makes a value of a message's bytes; without one, records hold bytes. A message that it raises on
            is logged, counted and passed over.
        partition_allocator: ``fn(members, partitions)``, ``"round_robin"``, ``"sticky"`` or ``"weighted"``, for when
            this member leads; round robin without one.
        autocommit: Whether finished records are committed without being told.
        max_wait_time: How long a broker may wait for ``min_bytes``, in milliseconds.
        min_bytes: How many bytes a broker waits for.
        max_bytes: How many bytes one answer may hold.
        max_message_bytes: How large a single message may be, however small its share of ``max_bytes``.
        max_decompressed_bytes: What one compressed set may unpack to.
        session_timeout_ms: After how long without a sign of life ZooKeeper ends this member; the server may grant
            another one.
        heartbeat_interval_ms: How often this member proves that its session lives; without it, every sixth of the
            granted session timeout; at most every third.
        instance_id: Names this member across restarts: its place in the plan is kept for ``static_grace_ms`` after it
            went, and a restart moves nothing. No two members alive may share it; the later one stops the earlier.
        static_grace_ms: How long that is, where this member leads.
        max_poll_interval_ms: After how long with the same record or values in hand, or in the same hook of the
            listener, this member's session is closed; 0: never.
        loop_stall_ms: After how long a blocked event loop has that effect; 0: never.
        store: Who writes the offsets: ``zookeeper`` (the members, with fences), or ``broker-v0`` (the brokers on
            request, as kiel had them do). All members of a group must agree.
        auto_offset_reset: Where a group without offsets starts, and where one goes on whose offset is not in the log:
            ``earliest``, ``latest`` or ``none``. All members of a group must agree.
        auto_commit_interval_ms: How often finished records are committed.
        debounce_quiet_ms: A leader plans when nothing has changed for so long …
        debounce_bound_ms: … or at the latest so long after the first change.
        debounce_initial_delay_ms: How long a new leader waits for its group to gather.
        drain_alarm_ms: After how long a hand-over that waits for the application is reported.
        reconcile_interval_ms: How often everything is looked at although no watch fired, give or take a third.
        allocator_timeout_ms: How long ``partition_allocator`` may take.
        zk_timeout_ms: How long joining may take at most, from the first connection to the end of the registration.
        listener: Told of partitions that come, go or are lost; where it has a hook ``on_stalled``, of what may soon
            exceed ``max_poll_interval_ms`` or ``loop_stall_ms``.
        metrics: Where to count; a registry of its own without one.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the others of ``BrokerConfig``.

    Raises:
        ConfigError: A setting that cannot work.
    """

    _consuming: ConnectedConsumer | None = None
    _records: weakref.ref[RecordLoop] | None = None
    _connecting: asyncio.Task[None] | None = None
    _closing: asyncio.Future[None] | None = None
    _shut = False

    def __init__(
        self,
        brokers: str | Iterable[str],
        group: str,
        zk_hosts: str | Iterable[str],
        deserializer: Callable[[bytes], Any] | None = None,
        partition_allocator: Allocator | str | None = None,
        autocommit: bool = True,
        max_wait_time: int = 1_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        *,
        max_message_bytes: int = 64 << 20,
        max_decompressed_bytes: int = 64 << 20,
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int | None = None,
        instance_id: str | None = None,
        static_grace_ms: int = 60_000,
        max_poll_interval_ms: int = 300_000,
        loop_stall_ms: int = 300_000,
        store: str = "zookeeper",
        auto_offset_reset: ResetPolicy = "earliest",
        auto_commit_interval_ms: int = 5_000,
        debounce_quiet_ms: int = 100,
        debounce_bound_ms: int = 1_000,
        debounce_initial_delay_ms: int = 300,
        drain_alarm_ms: int = 30_000,
        reconcile_interval_ms: int = 45_000,
        allocator_timeout_ms: int = 30_000,
        zk_timeout_ms: int = 15_000,
        listener: RebalanceListener | None = None,
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_functions(deserializer=deserializer)
        check_listener(listener)
        self.metrics = metrics or Metrics()
        self._deserializer = deserializer
        self._fetching = FetchConfig(
            max_wait_ms=max_wait_time,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_message_bytes=max_message_bytes,
            max_decompressed_bytes=max_decompressed_bytes,
            auto_offset_reset=auto_offset_reset,
        )
        self._settings = ConsumerSettings(
            brokers=broker_config(brokers, **broker_settings),
            fetching=self._fetching,
            group=GroupConfig(
                group=group,
                store=store,
                auto_offset_reset=auto_offset_reset,
                debounce=DebounceConfig(
                    quiet_ms=debounce_quiet_ms,
                    bound_ms=debounce_bound_ms,
                    initial_delay_ms=debounce_initial_delay_ms,
                ),
                auto_commit_interval_ms=auto_commit_interval_ms,
                autocommit=autocommit,
                drain_alarm_ms=drain_alarm_ms,
                reconcile_interval_ms=reconcile_interval_ms,
                allocator_timeout_ms=allocator_timeout_ms,
                instance_id=instance_id,
                static_grace_ms=static_grace_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                loop_stall_ms=loop_stall_ms,
            ),
            zookeeper=ZooKeeperConfig.parse(
                zk_hosts,
                session_timeout_ms=session_timeout_ms,
                connect_timeout_ms=zk_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
            ),
            deserializer=deserializer,
            allocator=allocator_of(partition_allocator, "partition_allocator"),
            listener=listener,
            metrics=self.metrics,
        )
        self._subscription = SubscriptionState()
        self._left_loop = LeftLoop(self._at_exit, self._abandon)
        #: Calls of consume() under way, and all that the coroutine has which made the call.
        self._asking: dict[ConsumeCall, frozenset[ConsumeCall]] = {}

    # ------------------------------------------------------------------ life

    def connect(self) -> asyncio.Future[None]:
        """
        Reach the brokers and join the group; once, however often it is called, and again after an error.

        Raises:
            NoBrokersError: None of the brokers answered, each within twice ``connect_timeout_ms``.
            NoZooKeeperError: ZooKeeper did not answer within ``zk_timeout_ms``; says what was waited for.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group lives by other settings.
            ForeignMemberError: Members that are not ours are alive in the group.
            ClosedError: The consumer was closed.
        """
        if self._shut or self._connecting is None or _failed(self._connecting):
            self._left_loop.remember()
            self._connecting = spawn(self._connect(), "GroupedConsumer.connect")
        return self._connecting

    async def _connect(self) -> None:
        self._check_open()
        consuming = ConnectedConsumer(self._settings, self._subscription)
        try:
            await consuming.start()
        except asyncio.CancelledError:
            # By close(), perhaps: whoever waits for the connection has not cancelled anything.
            self._check_open()
            raise
        self._consuming = consuming
        # A close that came too late to cancel this: close() goes on with what is connected.
        self._check_open()

    def _check_open(self) -> None:
        if self._shut:
            raise ClosedError("the consumer was closed; a new one may join in its place") from None

    def _connected(self) -> ConnectedConsumer:
        self._check_open()
        if self._consuming is None:
            raise ClosedError("the consumer is not connected; use 'async with' or await connect() first")
        return self._consuming

    def close(self, timeout_s: float | None = None) -> asyncio.Future[None]:
        """
        Hand everything back, with what is finished committed, and leave the group.

        What the caller itself has in hand counts as finished, unless an exception is on its way. Others are given the
        time to finish theirs: a loop its record, as long as it takes; who called ``consume()`` its values, until its
        next call, for two seconds.

        Where no event loop runs any more, as after a Ctrl-C, the group is left before this returns, and what was in
        hand is delivered again.

        Args:
            timeout_s: How long to wait for a loop; then the group is left without a commit of its record's partition.
        """
        self._shut = True
        running = running_loop() is not None
        if self._consuming is not None:
            self._let_go(self._consuming.handing_out, running=running)
        under_way = self._connecting is not None and not self._connecting.done()
        work = partial(self._close, self._connecting if under_way else None, timeout_s)
        self._closing = self._left_loop.close(self._closing, work, "GroupedConsumer.close")
        # Shielded: who gives up waiting must not leave a member behind that holds partitions and reads nothing.
        return asyncio.shield(self._closing) if running else self._closing

    def _let_go(self, handing_out: RecordDelivery, *, running: bool) -> None:
        """Nobody will ask for more: this is how what the caller has in hand ends."""
        finished = running and sys.exc_info()[0] is None
        records = self._records() if self._records is not None else None
        if records is None or not running or records.caller is current_caller():
            self._put_down(finished=finished)
        # Who waits for more values is not busy with others.
        handing_out.finish_topics(takers=frozenset().union(*self._asking.values()))
        if finished:
            for taker in consume_calls_here(self):
                taker.passed = True
            handing_out.finish_topics(takers=consume_calls_here(self))
        else:
            handing_out.put_down_taken(consume_calls_here(self) if running else None)

    def _at_exit(self) -> None:
        """The interpreter ends: a close that was begun is finished, on the loop that was left."""
        if self._shut:
            self.close()

    def _abandon(self) -> None:
        """There is no loop to leave on: others get what was in hand, at once and not when the session times out."""
        self._shut = True
        if self._consuming is not None:
            self._consuming.abandon()

    async def _close(self, connecting: asyncio.Task[None] | None, timeout_s: float | None) -> None:
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait({connecting})
            # Who waits for it is told; where nobody does, a close is no failure to log.
            _failed(connecting)
        if self._consuming is not None:
            await self._consuming.close(timeout_s)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._put_down(finished=kind is None)
        await self.close()

    def _put_down(self, *, finished: bool) -> None:
        if self._consuming is None:
            return
        if finished:
            self._consuming.handing_out.finish()
        else:
            self._consuming.handing_out.put_back()

    # ------------------------------------------------------------------ consuming

    @started
    async def subscribe(self, topics: str | Iterable[str]) -> None:
        """
        Replace the subscription; partitions of topics that stay in it keep flowing.

        Of topics that leave it nothing more is delivered; what is in flight is finished and committed as ever.
        A topic that does not exist is logged, and consumed as soon as it does.

        Raises:
            ConfigError: A name that no topic of Kafka 0.8 can have, or more topics than ZooKeeper has room for in one
                member's subscription; what was subscribed to before stays.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        changed = self._change_subscription(topics)
        if changed and self._consuming is not None:
            await self._consuming.member.resubscribe()

    def _change_subscription(self, topics: str | Iterable[str]) -> bool:
        """Whether that changed it; what the group cannot be told of is refused first."""
        wanted = topic_names(topics)
        if self._consuming is None:
            return self._subscription.subscribe(wanted)
        return self._consuming.subscribe(wanted)

    def consume(self, topic: str, start: object = None) -> asyncio.Future[Values]:
        """
        Values of one topic that are at hand, from all of its partitions that this member holds.

        The first call subscribes to the topic. The values that a coroutine got are
        finished when that coroutine asks for the topic again, or when another one does after it has ended. A hand-over
        of their partitions waits for that. Values that came after whoever asked had given up (``asyncio.wait_for``,
        ``gen.with_timeout``) are not: they come again.

        Args:
            topic: One that does not exist gives no values until it does.
            start: Ignored: a group goes on where it was.

        Returns:
            Values that the deserialiser made (``json.loads`` without one), [] where none came within
            ``max_wait_time``; a value that it fails on is logged, counted and passed over. None once the consumer is
            closed. The list's ``parts`` say which records the values are of, and under which claims they were handed
            out (``PartitionBatch.fencing_token``).

        Raises:
            ConfigError: A name that no topic of Kafka 0.8 can have, or the consumer is iterated over.
            NoBrokersError: 8 metadata requests in a row were not answered. The next call may work.
            KielGroupsError: As ``connect()``, which this calls; or messages cannot be read. Others go on at the next.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic), "GroupedConsumer.consume")
        try:
            taker = new_consume_call(self, check_name(topic, "topic"))
        except ConfigError as error:
            return failed(error, "GroupedConsumer.consume")
        if self._consuming is not None:
            self._consuming.finish_topic(topic)
        self._asking[taker] = consume_calls_here(self)
        return asking(self._consume(topic, taker), taker, "GroupedConsumer.consume")

    async def _consume_later(self, topic: str) -> Values:
        """What was asked for before the loop ran is answered when it does."""
        return await self.consume(topic)

    async def _consume(self, topic: str, taker: ConsumeCall) -> Values:
        try:
            values = None if self._shut else await self._values(topic, taker)
        finally:
            del self._asking[taker]
        if values is None:
            await self._left_loop.closed.wait()
        return values

    async def _values(self, topic: str, taker: ConsumeCall) -> Values:
        changed = self._change_subscription(self.subscription | {topic})
        connecting = self.connect()
        await asyncio.wait({connecting})
        if self._shut:
            return None
        connecting.result()
        assert self._consuming is not None
        if changed:
            await self._consuming.member.resubscribe()
        return await self._consuming.next_values(topic, taker)

    def __aiter__(self) -> RecordLoop:
        """
        Records, for as long as the consumer is open; one loop at a time.

        Whoever takes single records by ``anext`` keeps the iterator: one that is dropped other than by ``break``,
        ``return`` or its end leaves the last record unfinished, and it is handed out again.

        Raises:
            ClosedError: The consumer was not connected, or was closed.
            ConfigError: Another loop goes on, or values that ``consume()`` returned are in hand.
        """
        consuming = self._connected()
        consuming.handing_out.enter()
        records = RecordLoop(consuming)
        self._records = weakref.ref(records)
        return records

    @started
    async def commit(self) -> frozenset[TopicPartition]:
        """
        Commit what is finished, and the record in hand.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: The session is over; what was not stored is delivered again.
            ClosedError: The consumer is not connected, or was closed.
        """
        consuming = self._connected()
        consuming.handing_out.count_hand()
        return await consuming.commit_shielded()

    def commit_offsets(self, metadata: str | None = None) -> asyncio.Future[None]:
        """
        Commit what ``consume()`` has returned before this call; it counts as finished.

        Called by a coroutine that consumes, that is what this one got; by any other, as a timer, what all of them got.

        A failure is logged and counted (``commits_failed``); the next commit stores what this one did not.

        Args:
            metadata: A text for stores that have room for one; "committed by" this member where it is left out.
        """
        if self._consuming is not None:
            self._consuming.handing_out.finish_topics(takers=consume_calls_here(self) or None)
        return spawn(self._commit_offsets(metadata), "GroupedConsumer.commit_offsets")

    async def _commit_offsets(self, metadata: str | None) -> None:
        if self._consuming is not None:
            await self._consuming.commit_values(f"committed by {self.name}" if metadata is None else metadata)

    def wind_down(self) -> asyncio.Future[None]:
        """Leave the group: another name of ``close()``."""
        return self.close()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
