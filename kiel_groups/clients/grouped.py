"""The grouped consumer: a member of a group, which shares the partitions of its topics with the other members."""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from kiel_groups.allocators import Allocator, allocator_of
from kiel_groups.clients.calls.callers import ConsumeCall, consume_calls_here, current_caller, new_consume_call
from kiel_groups.clients.calls.client_arguments import BrokerSettings, broker_config, check_functions
from kiel_groups.clients.calls.consume_future import Values, start_consume_call
from kiel_groups.clients.calls.eager_methods import failed_future, spawn, starts_at_call
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.consumer_commits import CommitCallback, ConsumerCommits
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_loop import RecordLoop
from kiel_groups.clients.delivery.value_delivery import ValueDelivery
from kiel_groups.config import (
    DebounceConfig,
    FetchConfig,
    GroupConfig,
    ResetPolicy,
    ZooKeeperConfig,
    check_name,
    topic_names,
)
from kiel_groups.coordination.session.session_tasks import cancelled_by
from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics

__all__ = ["GroupedConsumer"]


class GroupedConsumer(ConsumerCommits):
    """
    A member of a consumer group on Kafka 0.8, with at-least-once delivery.

    ``async for record in consumer`` delivers records of the partitions that the group's leader assigns to this member.
    A record is finished when the loop asks for the next. Finished records are committed every
    ``auto_commit_interval_ms``, before a partition is released, and at close. Methods that do I/O return a future
    whose work has already started; the constructor needs no event loop.

    Args:
        brokers: ``host`` or ``host:port`` (9092) of some brokers; the consumer discovers the others.
        group: The group's name: letters, digits, ``.``, ``_`` and ``-``.
        zk_hosts: ZooKeeper servers, ``host`` or ``host:port`` (2181); a chroot may follow the last one.
        deserializer: Converts a message's bytes to a value. Without a deserializer, records hold bytes. A message on
            which the deserializer raises is logged, counted (``deserializer_failures``) and skipped.
        partition_allocator: ``fn(members, partitions)``, ``"round_robin"`` (the default), ``"sticky"`` or
            ``"weighted"``; used while this member leads the group.
        autocommit: Whether the consumer commits finished records by itself.
        max_wait_time: How long a broker may wait for ``min_bytes`` before it responds, in milliseconds.
        min_bytes: How many bytes a broker waits for.
        max_bytes: How many bytes one response may hold, shared among its partitions.
        max_message_bytes: The size of the largest message that is accepted, even if its share of ``max_bytes`` is less.
        max_decompressed_bytes: How many bytes one compressed message set may unpack to.
        session_timeout_ms: How long ZooKeeper waits for a heartbeat before it expires this member's session. The server
            may grant a different timeout.
        heartbeat_interval_ms: How often this member proves that its session is alive: at least every third of the
            granted session timeout; every sixth by default.
        instance_id: A name for this member that survives restarts. Its assignment is kept for ``static_grace_ms`` after
            it left, so a restart moves no partition. If two live members share a name, the newer stops the older.
        static_grace_ms: How long the assignment of a static member that left is kept, while this member is the leader.
        max_poll_interval_ms: How long the application may process the same record or values, or run the same listener
            hook, before this member's session is closed; 0: no limit.
        loop_stall_ms: How long the event loop may be blocked before this member's session is closed; 0: no limit.
        store: How offsets are written: by the members, with fencing (``zookeeper``), or by the brokers on request, as
            with kiel (``broker-v0``). All members of a group must agree.
        auto_offset_reset: Where a group without offsets starts, and where it resumes if an offset is not in the log:
            ``earliest``, ``latest`` or ``none``. All members of a group must agree.
        auto_commit_interval_ms: How often finished records are committed.
        debounce_quiet_ms: How long the group must be without changes before the leader plans.
        debounce_bound_ms: The longest time between a change and the plan, even if further changes follow.
        debounce_initial_delay_ms: How long a new leader waits for other members before its first plan.
        drain_alarm_ms: How long a revoked partition may wait for the application before the delay is reported.
        reconcile_interval_ms: How often the member reads its assignment and claims even if no watch fired, plus or
            minus a third.
        allocator_timeout_ms: How long ``partition_allocator`` may run.
        zk_timeout_ms: How long joining may take, from the first connection to the end of the registration.
        retry_backoff_ms: The first pause before a join is tried again; it doubles up to 5 s, and varies by half.
        default_offset_commit_callback: The callback of each ``commit_async`` that passes none.
        listener: Notified when partitions are assigned, revoked or lost. If the listener has a hook ``on_stalled``, the
            hook is called when half of ``max_poll_interval_ms`` or ``loop_stall_ms`` has passed.
        metrics: The registry to count in; a new one by default.
        broker_settings: ``client_id``, ``request_timeout_ms`` and the other settings of ``BrokerConfig``.

    Raises:
        ConfigError: A setting is not valid.
    """

    _connected: ConnectedConsumer | None = None
    _records: weakref.ref[RecordLoop] | None = None
    _connecting: asyncio.Task[None] | None = None
    _closing: asyncio.Future[None] | None = None
    _closed = False

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
        retry_backoff_ms: int = 100,
        default_offset_commit_callback: CommitCallback | None = None,
        listener: RebalanceListener | None = None,
        metrics: Metrics | None = None,
        **broker_settings: Unpack[BrokerSettings],
    ) -> None:
        check_functions(deserializer=deserializer, default_offset_commit_callback=default_offset_commit_callback)
        check_listener(listener)
        self.metrics = metrics or Metrics()
        self._deserializer = deserializer
        self._default_callback = default_offset_commit_callback
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
                    quiet_ms=debounce_quiet_ms, bound_ms=debounce_bound_ms, initial_delay_ms=debounce_initial_delay_ms
                ),
                auto_commit_interval_ms=auto_commit_interval_ms,
                autocommit=autocommit,
                drain_alarm_ms=drain_alarm_ms,
                reconcile_interval_ms=reconcile_interval_ms,
                allocator_timeout_ms=allocator_timeout_ms,
                instance_id=instance_id,
                static_grace_ms=static_grace_ms,
                retry_backoff_ms=retry_backoff_ms,
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
        self._subscription = SubscriptionState(self._settings.group)
        self._left_loop = LeftLoop(self._at_exit, self._abandon)
        #: Calls of consume() in progress; for each, the latest calls of its coroutine, one for each topic.
        self._waiting_calls: dict[ConsumeCall, frozenset[ConsumeCall]] = {}

    # ------------------------------------------------------------------ connect and close

    def connect(self) -> asyncio.Future[None]:
        """
        Connect to the brokers and join the group. Further calls return the same future. After an error, they try again.

        Raises:
            NoBrokersError: No broker answered. Each broker has at most twice ``connect_timeout_ms``.
            ConfigError: The store is ``broker-v0``, which these brokers do not support.
            NoZooKeeperError: ZooKeeper did not answer within ``zk_timeout_ms``; the text names the pending step.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The settings that the group has stored are different.
            ForeignMemberError: The group has live members of another library (kiel, pykafka, Java's consumer).
            ClosedError: The consumer was closed.
        """
        if self._closed or self._connecting is None or _has_failed(self._connecting):
            self._left_loop.remember()
            self._connecting = spawn(self._connect(), "GroupedConsumer.connect")
        return self._connecting

    async def _connect(self) -> None:
        self._check_open()
        connected = ConnectedConsumer(self._settings, self._subscription)
        try:
            await connected.start()
        except asyncio.CancelledError:
            # If close() cancelled this task, callers of connect() get a ClosedError, since they did not cancel it.
            self._check_open()
            raise
        self._connected = connected
        # close() may have come too late to cancel this task. It then closes the connected consumer.
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed; a new one may join in its place") from None

    def _require_connected(self) -> ConnectedConsumer:
        self._check_open()
        if self._connected is None:
            raise ClosedError("the consumer is not connected; use 'async with' or await connect() first")
        return self._connected

    def close(self, autocommit: bool = True, timeout_s: float | None = None) -> asyncio.Future[None]:
        """
        Commit finished records, release all partitions and leave the group.

        The first call decides how; further calls return the same outcome.

        The caller's own record or values count as finished, unless an exception is being handled. The close waits for
        other coroutines: for a loop until its record is finished, however long that takes; for a caller of
        ``consume()`` until its next call, but at most two seconds.
        If the event loop does not run any more, as after a Ctrl-C, the member leaves the group before this method
        returns, and records in flight are delivered again.

        Args:
            autocommit: Whether finished records are committed. A consumer with ``autocommit=False`` commits none here.
                A position that ``auto_offset_reset`` chose is stored in any case.
            timeout_s: How long the close may take, in seconds, whether the application or a server delays it. After
                it, the member leaves, unfinished records are not committed, and a session that ZooKeeper does not
                close is left to a thread, or expires.

        Raises:
            ConfigError: An argument is not valid; nothing is closed.
        """
        if not isinstance(autocommit, bool):
            raise ConfigError(f"close(): autocommit: {autocommit!r} given; expected True or False")
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
            raise ConfigError(f"close(): timeout_s: {timeout_s!r} given; expected seconds, at least 0, or None")
        self._closed = True
        running = running_loop() is not None
        if self._connected is not None:
            self._end_in_flight(self._connected.values, running=running)
        under_way = self._connecting is not None and not self._connecting.done()
        work = partial(self._close, self._connecting if under_way else None, autocommit, timeout_s)
        self._closing = self._left_loop.close(self._closing, work, "GroupedConsumer.close")
        # Shielded: a caller that stops waiting must not leave behind a member that owns partitions and reads nothing.
        return asyncio.shield(self._closing) if running else self._closing

    def _end_in_flight(self, values: ValueDelivery, *, running: bool) -> None:
        """Finish the caller's record and values in flight, unless an exception is being handled or no loop runs."""
        finished = running and sys.exc_info()[0] is None
        records = self._records() if self._records is not None else None
        if records is None or not running or records.caller is current_caller():
            self._end_record(finished=finished)
        # A coroutine that waits in consume() has finished the values of its earlier calls.
        values.finish(calls=frozenset().union(*self._waiting_calls.values()))
        if finished:
            for call in consume_calls_here(self):
                call.superseded = True
            values.finish(calls=consume_calls_here(self))
        else:
            values.drop(consume_calls_here(self) if running else None)

    def _at_exit(self) -> None:
        """When the interpreter exits, complete a close that has started, on the loop that was left."""
        if self._closed:
            self.close()

    def _abandon(self) -> None:
        """Close the session without a loop, so that other members need not wait for its timeout."""
        self._closed = True
        if self._connected is not None:
            self._connected.abandon()

    async def _close(self, connecting: asyncio.Task[None] | None, autocommit: bool, timeout_s: float | None) -> None:
        now_s = asyncio.get_running_loop().time
        by_s = math.inf if timeout_s is None else now_s() + timeout_s
        if connecting is not None:
            await cancelled_by({connecting}, by_s)
            # Retrieve the error, so that it is not logged: a caller of connect(), if there is one, gets it, too.
            _has_failed(connecting)
        if self._connected is not None:
            remaining_s = None if timeout_s is None else max(0.0, by_s - now_s())
            await self._connected.close(remaining_s, autocommit=autocommit)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_record(finished=kind is None)
        await self.close()

    def _end_record(self, *, finished: bool) -> None:
        if self._connected is None:
            return
        if finished:
            self._connected.records.finish()
        else:
            self._connected.records.put_back()

    # ------------------------------------------------------------------ consume

    @starts_at_call
    async def subscribe(self, topics: str | Iterable[str]) -> None:
        """
        Replace the subscription. Topics that remain in it are delivered without a pause.

        Topics that leave it are no longer delivered. Their records in flight are finished and committed as usual.
        A topic that does not exist is logged, and consumed as soon as it is created.

        Raises:
            ConfigError: There is no topic, a name is not legal for a topic of Kafka 0.8, or the topics exceed what
                ZooKeeper can store for one member. The previous subscription remains.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        changed = self._change_subscription(topics)
        if changed and self._connected is not None:
            await self._connected.member.resubscribe()

    def _change_subscription(self, topics: str | Iterable[str]) -> bool:
        """Replace the subscription, and return whether it changed. Raise ConfigError if the topics are not allowed."""
        wanted = topic_names(topics)
        if self._connected is None:
            return self._subscription.subscribe(wanted)
        return self._connected.subscribe(wanted)

    def consume(self, topic: str, start: object = None) -> asyncio.Future[Values]:
        """
        Return the available values of one topic, from all of its partitions that this member owns.

        The first call connects and subscribes to the topic. The values that a coroutine received are finished when it
        calls ``consume()`` for the topic again. If the coroutine has ended, its values are finished when another
        coroutine calls ``consume()`` for the topic. The partitions of the values are not released before that. Values
        that arrive after the caller has given up (``asyncio.wait_for``, ``gen.with_timeout``) are delivered again.

        Args:
            topic: The topic's name. As long as the topic does not exist, it has no values.
            start: Ignored: a group resumes at its committed offsets.

        Returns:
            Values that the deserializer made (``json.loads`` by default), or [] if none came within ``max_wait_time``,
            or None once the consumer is closed. A value on which the deserializer raises is logged, counted and
            skipped. The list's ``parts`` hold the values by partition, with their records and ``fencing_token``.

        Raises:
            ConfigError: The name is not legal for a topic of Kafka 0.8, or the consumer has been iterated over.
            NoBrokersError: 8 metadata requests in a row were not answered. The next call may succeed.
            KielGroupsError: ``connect()`` failed, or a partition cannot be read. The next call may get other values.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic), "GroupedConsumer.consume")
        try:
            call = new_consume_call(self, check_name(topic, "topic"))
        except ConfigError as error:
            return failed_future(error, "GroupedConsumer.consume")
        if self._connected is not None:
            self._connected.finish_topic(topic)
        self._waiting_calls[call] = consume_calls_here(self)
        return start_consume_call(self._consume(topic, call), call, "GroupedConsumer.consume")

    async def _consume_later(self, topic: str) -> Values:
        """Call ``consume()`` on the running loop, for an application that called it before a loop ran."""
        return await self.consume(topic)

    async def _consume(self, topic: str, call: ConsumeCall) -> Values:
        try:
            values = None if self._closed else await self._values(topic, call)
        finally:
            del self._waiting_calls[call]
        if values is None:
            await self._left_loop.closed.wait()
        return values

    async def _values(self, topic: str, call: ConsumeCall) -> Values:
        changed = self._change_subscription(self.subscription | {topic})
        connecting = self.connect()
        await asyncio.wait({connecting})
        if self._closed:
            return None
        connecting.result()
        assert self._connected is not None
        if changed:
            await self._connected.member.resubscribe()
        return await self._connected.next_values(topic, call)

    def __aiter__(self) -> RecordLoop:
        """
        Iterate over records until the consumer is closed. Only one loop may be active at a time.

        A caller that takes single records with ``anext`` must keep the iterator. If the iterator is dropped other than
        by ``break``, ``return`` or its end, the last record is not finished and is delivered again.

        Raises:
            ClosedError: The consumer was not connected, or was closed.
            ConfigError: Another loop is active, or values that ``consume()`` returned are in flight.
        """
        connected = self._require_connected()
        connected.records.begin_loop()
        records = RecordLoop(connected.records, connected.next_record)
        self._records = weakref.ref(records)
        return records

    def wind_down(self) -> asyncio.Future[None]:
        """Leave the group: kiel's name for ``close()``."""
        return self.close()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
