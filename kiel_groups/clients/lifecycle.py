"""The life cycle of a grouped consumer: it connects, joins its group or reads alone, and closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import TracebackType
from typing import Self

from kiel_groups.clients.assigned_consumer import AssignedConsumer
from kiel_groups.clients.calls.arguments import check_close_timeout, partitions_of
from kiel_groups.clients.calls.callers import ConsumeCall, DeliveryStyle, new_consume_call
from kiel_groups.clients.calls.eager_methods import Values, connect_or_close, failed_future, spawn, suspended_if_left
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat import MemberAttributes
from kiel_groups.clients.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.consumer import RecordAccess
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_reader import VALUES, RecordReader
from kiel_groups.clients.fetch.fetcher import Selection
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import check_name, topic_names
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import Batch, TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit, cancelled_by

__all__ = [
    "GroupMembership",
    "TopicSubscription",
    "GroupValues",
]


class GroupMembership(RecordAccess, MemberAttributes):
    """Connects a consumer to its group, and closes it. Other methods reach the connected parts from here."""

    _connected: ConnectedConsumer | AssignedConsumer | None = None
    _connecting: asyncio.Task[None] | None = None
    _closing: asyncio.Future[None] | None = None
    _closed = False

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__()
        self._settings = settings
        self._subscription = SubscriptionState(settings.group)
        self._left_loop = LeftLoop(self._at_exit, self._abandon)
        #: The closes of former connections, which ``assign`` or ``subscribe`` has replaced.
        self._leaving: dict[asyncio.Task[None], ConnectedConsumer | AssignedConsumer] = {}
        self._limit = CloseLimit()

    def connect(self) -> asyncio.Future[None]:
        """
        Connect to the brokers and join the group. Further calls return the same future, or try again after an error.

        With partitions from ``assign``, the consumer only connects to the brokers.

        Raises:
            NoBrokersError: No broker answered. Each broker has at most twice ``connect_timeout_ms``.
            ConfigError: The store is ``broker-v0`` or ``broker-v1``, which these brokers do not support.
            NoZooKeeperError: ZooKeeper did not answer within ``zk_timeout_ms``; the text names the pending step.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The settings that the group has stored are different.
            ForeignMemberError: The group has live members of another library (kiel, pykafka, Java's consumer).
            ClosedError: The consumer was closed.
        """
        if self._closed or self._connecting is None or _has_failed(self._connecting):
            self._left_loop.remember()
            self._connecting = spawn(suspended_if_left(self._connect), "GroupedConsumer.connect")
        return self._connecting

    async def _connect(self) -> None:
        self._check_open()
        connected = self._new_connected()
        await self._start_parts(connected)
        self._connected = connected
        # close() may have come too late to cancel this task. It then closes the connected consumer.
        self._check_open()
        if isinstance(connected, AssignedConsumer) is not self._subscription.is_manual():
            # The application has called assign() meanwhile, or subscribe().
            await self._reconnect()

    def _new_connected(self) -> ConnectedConsumer | AssignedConsumer:
        if not self._subscription.is_manual():
            return ConnectedConsumer(self._settings, self._subscription)
        policy = self._settings.fetching.auto_offset_reset
        return AssignedConsumer(self._settings, self._subscription, self._stored_offsets, policy)

    async def _start_parts(self, connected: ConnectedConsumer | AssignedConsumer) -> None:
        try:
            await connected.start()
        except asyncio.CancelledError:
            # If close() cancelled this task, callers of connect() get a ClosedError, since they did not cancel it.
            self._check_open()
            raise

    def _reconnect(self) -> asyncio.Task[None]:
        """
        Leave the group for an assignment of the application, or end that to join the group, and return the connect.

        Loops and calls under way raise an IllegalStateError; the next ones use the new connection at once.
        """
        old = self._connected
        assert old is not None
        new = self._connected = self._new_connected()
        what = "assign()" if isinstance(new, AssignedConsumer) else "subscribe() after assign()"
        old.reader.end(
            IllegalStateError(f"{what} has changed how the consumer gets partitions; start another loop or call")
        )
        # The connect that is about to end calls this method itself, and must not wait for its own end.
        is_own = running_loop() is not None and self._connecting is asyncio.current_task()
        starting = None if is_own else self._connecting
        leaving = spawn(self._leave(old, starting), "GroupedConsumer: end of the former assignment")
        self._leaving[leaving] = old
        leaving.add_done_callback(self._leaving.pop)
        self._connecting = spawn(suspended_if_left(partial(self._start_next, new)), "GroupedConsumer.connect")
        return self._connecting

    async def _leave(
        self, connected: ConnectedConsumer | AssignedConsumer, starting: asyncio.Task[None] | None
    ) -> None:
        limit = self._limit
        try:
            if starting is not None and not starting.done():
                await cancelled_by({starting}, limit)
        except asyncio.CancelledError:
            limit = CloseLimit(0.0)
            raise
        finally:
            await connected.close(limit)

    async def _start_next(self, connected: ConnectedConsumer | AssignedConsumer) -> None:
        try:
            if isinstance(connected, ConnectedConsumer) and self._leaving:
                # A former member may still release partitions that the new one would claim.
                await asyncio.wait(set(self._leaving))
            await self._start_parts(connected)
        except BaseException:
            if self._connected is not connected:
                # Replaced meanwhile by another call of assign() or subscribe(), which has cancelled this task.
                return
            if not self._closed:
                self._connected = None
            raise

    async def _stored_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Ask the brokers for the group's offsets, as a consumer without a session does.

        Raises:
            KielGroupsError: As ``Coordination.group_offsets``.
        """
        connected = self._require_connected()
        assert isinstance(connected, AssignedConsumer)
        return await self._settings.coordination.group_offsets(connected.reader.cluster, self.group_name, partitions)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer was closed; a new one may join in its place") from None

    def _check_not_left(self) -> None:
        """Raise ClosedError once the close has ended. Until then, a hook may commit and ask for offsets."""
        if self._connected is None or self._closing is None or self._closing.done():
            self._check_open()

    def _require_connected(self) -> ConnectedConsumer | AssignedConsumer:
        self._check_not_left()
        if self._connected is None:
            raise ClosedError("the consumer is not connected; use 'async with' or await connect() first")
        return self._connected

    def _require_reader(self) -> RecordReader:
        self._check_open()
        return self._require_connected().reader

    def _connected_readers(self) -> list[RecordReader]:
        return [connected.reader for connected in self._connections()]

    def _connections(self) -> list[ConnectedConsumer | AssignedConsumer]:
        """Return the present connection, and the former ones that are being closed."""
        return [*([] if self._connected is None else [self._connected]), *self._leaving.values()]

    def _require_cluster(self) -> ClusterMetadata:
        return self._require_connected().reader.cluster

    def _require_member(self, call: str) -> ConnectedConsumer:
        """
        Return the connected member, for ``call``, which commits.

        Raises:
            IllegalStateError: The application has assigned the partitions.
            ClosedError: The consumer is not connected, or was closed.
        """
        self._check_not_left()
        if self._subscription.is_manual() or isinstance(self._connected, AssignedConsumer):
            raise IllegalStateError(
                f"{call}: the partitions come from assign(): no claim protects a commit from other members and readers;"
                " get partitions by subscribe(), or store position() yourself"
            )
        connected = self._require_connected()
        assert not isinstance(connected, AssignedConsumer)
        return connected

    def close(self, autocommit: bool = True, timeout_s: float | None = None) -> asyncio.Future[None]:
        """
        Commit finished records, release all partitions and leave the group.

        The first call decides how; further calls return the same outcome. Their ``timeout_s`` may end the close
        earlier, and no later.

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
            IllegalStateError: A hook of the listener that is a coroutine has called this; nothing is closed.
        """
        if not isinstance(autocommit, bool):
            raise ConfigError(f"close(): autocommit: {autocommit!r} given; expected True or False")
        check_close_timeout(timeout_s)
        running = running_loop() is not None
        if running:
            for connected in self._connections():
                connected.calls.check_outside("close()")
        self._closed = True
        if running:
            self._limit.shorten(timeout_s)
        self._end_in_flight(running=running)
        under_way = self._connecting is not None and not self._connecting.done()
        work = partial(self._close, self._connecting if under_way else None, autocommit, timeout_s)
        self._closing = self._left_loop.close(self._closing, work, "GroupedConsumer.close")
        # Shielded: a caller that stops waiting must not leave behind a member that owns partitions and reads nothing.
        return asyncio.shield(self._closing) if running else self._closing

    def _at_exit(self) -> None:
        """When the interpreter exits, complete a close that has started, on the loop that was left."""
        if self._closed:
            self.close()

    def _abandon(self) -> None:
        """Close the session without a loop, so that other members need not wait for its timeout."""
        self._closed = True
        for connected in self._connections():
            connected.abandon()

    async def _close(self, connecting: asyncio.Task[None] | None, autocommit: bool, timeout_s: float | None) -> None:
        # Without a running loop, ``close`` could not tell when the time began.
        self._limit.shorten(timeout_s)
        try:
            if connecting is not None:
                await cancelled_by({connecting}, self._limit)
                # Retrieve the error, so that it is not logged: a caller of connect(), if there is one, gets it, too.
                _has_failed(connecting)
        except asyncio.CancelledError:
            # A program that cancels all tasks leaves no time.
            self._limit.shorten(0.0)
            raise
        finally:
            await self._close_connections(autocommit)

    async def _close_connections(self, autocommit: bool) -> None:
        try:
            if isinstance(self._connected, ConnectedConsumer):
                await self._connected.close(self._limit, autocommit=autocommit)
            elif self._connected is not None:
                await self._connected.close(self._limit)
        finally:
            if self._leaving:
                # Each keeps to the limit by itself. None is cancelled: before its first turn, it would close nothing.
                await asyncio.wait(set(self._leaving))

    async def __aenter__(self) -> Self:
        await connect_or_close(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_record(finished=kind is None)
        await self.close()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class TopicSubscription(GroupMembership):
    """Subscribes a consumer to topics, and registers the subscription with its group."""

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> asyncio.Future[None]:
        """
        Replace the subscription at the call. The future is done once the member has registered it. If brokers
        coordinate the group, it is done once the member has joined, or, if it has partitions, at once: it joins again
        when their records in flight are finished.

        Topics that remain in it are delivered without a pause, unless brokers coordinate the group.

        Topics that leave it are no longer delivered. Their records in flight are finished and committed as usual.
        A topic that does not exist is logged, and consumed as soon as it is created.

        Args:
            topics: One topic or several.
            pattern: Not supported yet.
            listener: Notified of assigned, revoked and lost partitions until the next call of ``subscribe``, in place
                of the constructor's listener. By default, the constructor's. ``consume()`` changes no listener.

        Raises:
            ConfigError: There is no topic, a name is not legal for a topic of Kafka 0.8, a pattern is given, or the
                topics exceed what ZooKeeper can store for one member. The previous subscription remains. Or the
                coordinator refuses the member's settings.
            ArgumentTypeError: The listener is not an object with hooks. It is a TypeError and a ConfigError.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            KielGroupsError: After ``assign`` and ``unsubscribe``, the consumer joins the group: the errors of
                ``connect``.
            ClosedError: The consumer was closed.
        """
        try:
            self._check_open()
            if pattern is not None:
                raise ConfigError(
                    f"subscribe(): pattern {pattern!r} given; the group's leader cannot match topics yet: subscribe to"
                    " names, such as those of topics() that match"
                )
            check_listener(listener)
            wanted = topic_names(topics)
            changed = self._change(wanted, lambda: self._subscription.subscribe(wanted, listener=listener))
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.subscribe")
        return self._registered(changed, "GroupedConsumer.subscribe")

    def unsubscribe(self) -> asyncio.Future[None]:
        """
        Leave all topics, or end an assignment of ``assign``. Nothing is delivered after the call.

        The future is done once the member has registered that it has no topics. A member remains in its group. Its
        records in flight are finished and committed as usual, and then their partitions are released.

        Raises:
            ClosedError: The consumer was closed.
        """
        try:
            self._check_open()
            changed = self._leave_all()
        except KielGroupsError as error:
            return failed_future(error, "GroupedConsumer.unsubscribe")
        return self._registered(changed, "GroupedConsumer.unsubscribe")

    def _leave_all(self) -> bool:
        """Have no topics and no partitions. Return whether the member must register that."""
        if self._subscription.is_manual():
            self._subscription.unsubscribe()
            self._follow_assignment()
            return False

        def change() -> bool:
            changed = bool(self._subscription.topics)
            self._subscription.unsubscribe()
            return changed

        return self._change([], change)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """
        Read these partitions alone, without the group: no member, no claims, no commits, and no calls of the listener.

        It takes effect at the call, so ``seek`` and ``pause`` may follow at once. Members of the group, if there are
        any, read the same records. A partition starts where the application seeks, else at the group's committed
        offset, else as ``auto_offset_reset`` says. Another call replaces the partitions: those that stay keep their
        position, pause and high watermark. A consumer that has joined its group leaves it; ``assign`` before
        ``connect`` never joins.

        Commits raise an IllegalStateError, because no claim protects them. The group's offsets are read through the
        brokers, which Kafka 0.8.0 cannot do: seek there.

        Args:
            partitions: At least one. A partition that does not exist yet is read once it does.

        Raises:
            ArgumentTypeError: The argument is not a list of partitions. It is a TypeError and a ConfigError.
            ConfigError: There is no partition, or one has no legal topic and number.
            IllegalStateError: The consumer has subscribed to topics, or has not released one of the partitions yet.
            ClosedError: The consumer was closed.
        """
        self._check_open()
        self._subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self._follow_assignment()

    def _follow_assignment(self) -> None:
        if isinstance(self._connected, AssignedConsumer):
            self._connected.follow()
        elif self._connected is not None:
            self._reconnect()

    async def _await_position(self, partition: TopicPartition) -> None:
        connected = self._require_connected()
        assert isinstance(connected, AssignedConsumer)
        await connected.await_position(partition)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics; none with partitions from ``assign``."""
        return self._subscription.topics

    def _add_topic(self, topic: str) -> bool:
        """Add a topic to the subscription, as ``consume()`` does; the listener stays. Return whether it is new."""
        if topic in self._subscription.topics:
            # Most calls. A check of the whole subscription takes as long as the values of a hundred records.
            return False
        wanted = self._subscription.topics | {topic}
        return self._change(wanted, lambda: self._subscription.change_subscription(wanted))

    def _registered(self, changed: bool, name: str) -> asyncio.Future[None]:
        """
        Have the member register the subscription if it has changed; join the group if the consumer has left it.

        The consumer leaves an assignment at the call, because another call may assign partitions before a task runs.
        """
        has_left = isinstance(self._connected, AssignedConsumer) and not self._subscription.is_manual()
        joining = self._reconnect() if changed and has_left else None
        return spawn(self._register(joining, self._connected if changed else None), name)

    async def _register(
        self, joining: asyncio.Task[None] | None, connected: ConnectedConsumer | AssignedConsumer | None
    ) -> None:
        if joining is not None:
            await asyncio.shield(joining)
        # A former member does not register what the application has chosen since.
        elif isinstance(connected, ConnectedConsumer) and self._connected is connected:
            await connected.member.resubscribe()

    def _change(self, topics: Iterable[str], change: Callable[[], bool]) -> bool:
        """Replace the subscription, and return whether it changed. Raise ConfigError if the topics are not allowed."""
        if self._connected is None or isinstance(self._connected, AssignedConsumer):
            return change()
        return self._connected.subscribe(frozenset(topics), change)


class GroupValues(TopicSubscription):
    """Delivers values by ``consume()``, which connects and subscribes by itself."""

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
            skipped, unless ``on_bad_record`` is a function, which is then called. The list's ``parts`` hold the values
            by partition, with their records and ``fencing_token``.

        Raises:
            ConfigError: The name is not legal for a topic of Kafka 0.8, or the consumer is used in
                another style, such as iteration.
            IllegalStateError: The application has assigned partitions; call ``unsubscribe()`` first.
            NoBrokersError: 8 metadata requests in a row were not answered. The next call may succeed.
            KielGroupsError: ``connect()`` failed, or a partition cannot be read. The next call may get other values.
        """
        if running_loop() is None:
            return spawn(self._consume_later(topic), "GroupedConsumer.consume")
        try:
            check_name(topic, "topic")
            self._style.choose(DeliveryStyle.VALUES)
        except ConfigError as error:
            return failed_future(error, "GroupedConsumer.consume")
        call = new_consume_call(self, topic)
        if isinstance(self._connected, ConnectedConsumer):
            self._connected.finish_topic(topic)
        return self._start_waiting(self._consume(topic, call), call, "GroupedConsumer.consume", Batch)

    async def _consume_later(self, topic: str) -> Values:
        """Call ``consume()`` on the running loop, for an application that called it before a loop ran."""
        return await self.consume(topic)

    async def _consume(self, topic: str, call: ConsumeCall) -> Values:
        values = None if self._closed else await self._values(topic, call)
        if values is None:
            await self._left_loop.closed.wait()
        return values

    async def _values(self, topic: str, call: ConsumeCall) -> Values:
        changed = self._add_topic(topic)
        connecting = self.connect()
        if not connecting.done():
            await asyncio.wait({connecting})
        if self._closed:
            return None
        connecting.result()
        if changed:
            await self._registered(changed, "GroupedConsumer.consume")
        fetching = self._settings.fetching
        return await self._require_reader().next(
            Selection(topic), VALUES, call, fetching.max_wait_ms / 1000, most_bytes=fetching.max_bytes
        )
