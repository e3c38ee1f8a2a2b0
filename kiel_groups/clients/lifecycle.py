"""The life cycle of a grouped consumer: it connects, joins its group or reads alone, and closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, TypeVar

from kiel_groups.clients.calls.arguments import check_close_timeout, partitions_of
from kiel_groups.clients.calls.eager_methods import spawn, suspended_if_left
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.connected_consumer import AssignedConsumer, ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_reader import RecordReader
from kiel_groups.config import topic_names
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit, cancelled_by

__all__ = ["GroupLifecycle", "Lifecycle"]

T = TypeVar("T")

Connected: TypeAlias = ConnectedConsumer | AssignedConsumer


class Lifecycle:
    """The connection of a consumer: none before its first use, and none of use after its close."""

    def __init__(self, subscription: SubscriptionState, left_loop: LeftLoop) -> None:
        self.subscription = subscription
        self.left_loop = left_loop
        self.connected: Connected | None = None
        #: The outcome of the close that has begun.
        self.closing: asyncio.Future[None] | None = None
        self._limit = CloseLimit()

    def require_connected(self) -> Connected:
        """Return the connected parts. Raise ClosedError if the consumer is not connected, or was closed."""
        raise NotImplementedError

    def require_reader(self) -> RecordReader:
        """Return the reader of a consumer that is connected. Raise ClosedError for any other consumer."""
        return self.require_connected().reader

    def connections(self) -> list[Connected]:
        """Return the present connection, and the former ones that are being closed."""
        return [] if self.connected is None else [self.connected]

    def check_chosen(self, call: str) -> None:
        """Raise IllegalStateError if no record can ever come: the consumer has neither topics nor partitions."""
        self.subscription.check_chosen(call)

    def _check_close(self, timeout_s: float | None) -> bool:
        """Check that ``close()`` may be called, limit its time, and return whether a loop runs."""
        check_close_timeout(timeout_s)
        running = running_loop() is not None
        if running:
            for connected in self.connections():
                connected.reader.calls.check_outside("close()")
            # Without a running loop, nothing tells when the time begins.
            self._limit.shorten(timeout_s)
        return running


class GroupLifecycle(Lifecycle):
    """
    Connects a consumer to its group, or to the partitions that the application assigns, and closes it.

    Args:
        settings: The consumer's settings.
        at_exit: Closes the consumer if necessary; see ``LeftLoop``.
    """

    def __init__(self, settings: ConsumerSettings, at_exit: Callable[[], None]) -> None:
        super().__init__(SubscriptionState(settings.group), LeftLoop(at_exit, self._abandon))
        self.settings = settings
        self.closed = False
        self._connecting: asyncio.Task[None] | None = None
        #: The closes of former connections, which ``assign`` or ``subscribe`` has replaced.
        self._leaving: dict[asyncio.Task[None], Connected] = {}

    # ------------------------------------------------------------------ the connection

    def connect(self) -> asyncio.Future[None]:
        """Connect to the brokers, and join the group unless the application has assigned partitions."""
        if self.closed or self._connecting is None or _has_failed(self._connecting):
            self.left_loop.remember()
            self._connecting = spawn(suspended_if_left(self._connect), "GroupedConsumer.connect")
        return self._connecting

    async def _connect(self) -> None:
        self.check_open()
        connected = self._new_connected()
        await self._start_parts(connected)
        self.connected = connected
        # close() may have come too late to cancel this task. It then closes the connected consumer.
        self.check_open()
        if isinstance(connected, AssignedConsumer) is not self.subscription.is_manual():
            # The application has called assign() meanwhile, or subscribe().
            await self._reconnect()

    def _new_connected(self) -> Connected:
        if not self.subscription.is_manual():
            return ConnectedConsumer(self.settings, self.subscription)
        coordination, group = self.settings.coordination, self.settings.group
        return AssignedConsumer(
            self.settings,
            self.subscription,
            lambda cluster, partitions: coordination.group_offsets(cluster, group.group, partitions),
            group.auto_offset_reset,
        )

    async def _start_parts(self, connected: Connected) -> None:
        try:
            await connected.start()
        except asyncio.CancelledError:
            # If close() cancelled this task, callers of connect() get a ClosedError, since they did not cancel it.
            self.check_open()
            raise

    def _reconnect(self) -> asyncio.Task[None]:
        """
        Leave the group for an assignment of the application, or end that to join the group, and return the connect.

        Loops and calls under way raise an IllegalStateError; the next ones use the new connection at once.
        """
        old = self.connected
        assert old is not None
        new = self.connected = self._new_connected()
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

    async def _leave(self, connected: Connected, starting: asyncio.Task[None] | None) -> None:
        limit = self._limit
        try:
            if starting is not None and not starting.done():
                await cancelled_by({starting}, limit)
        except asyncio.CancelledError:
            limit = CloseLimit(0.0)
            raise
        finally:
            await connected.close(limit)

    async def _start_next(self, connected: Connected) -> None:
        try:
            if isinstance(connected, ConnectedConsumer) and self._leaving:
                # A former member may still release partitions that the new one would claim.
                await asyncio.wait(set(self._leaving))
            await self._start_parts(connected)
        except BaseException:
            if self.connected is not connected:
                # Replaced meanwhile by another call of assign() or subscribe(), which has cancelled this task.
                return
            if not self.closed:
                self.connected = None
            raise

    def check_open(self) -> None:
        """Raise ClosedError once the consumer was closed."""
        if self.closed:
            raise ClosedError("the consumer was closed; a new one may join in its place") from None

    def _check_not_left(self) -> None:
        """Raise ClosedError once the close has ended. Until then, a hook may commit and ask for offsets."""
        if self.connected is None or self.closing is None or self.closing.done():
            self.check_open()

    def require_connected(self) -> Connected:
        self._check_not_left()
        if self.connected is None:
            raise ClosedError("the consumer is not connected; use 'async with' or await connect() first")
        return self.connected

    def require_reader(self) -> RecordReader:
        self.check_open()
        return self.require_connected().reader

    def require_member(self, call: str) -> ConnectedConsumer:
        """
        Return the connected member, for ``call``, which commits.

        Raises:
            IllegalStateError: The application has assigned the partitions.
            ClosedError: The consumer is not connected, or was closed.
        """
        self._check_not_left()
        if self.subscription.is_manual() or isinstance(self.connected, AssignedConsumer):
            raise IllegalStateError(
                f"{call}: the partitions come from assign(): no claim protects a commit from other members and readers;"
                " get partitions by subscribe(), or store position() yourself"
            )
        connected = self.require_connected()
        assert not isinstance(connected, AssignedConsumer)
        return connected

    def connections(self) -> list[Connected]:
        return [*super().connections(), *self._leaving.values()]

    # ------------------------------------------------------------------ topics and partitions

    def subscribe(
        self, topics: str | Iterable[str], pattern: str | None, listener: RebalanceListener | None
    ) -> asyncio.Future[None]:
        """Replace the subscription; the future is done once the member has registered it."""
        self.check_open()
        if pattern is not None:
            raise ConfigError(
                f"subscribe(): pattern {pattern!r} given; the group's leader cannot match topics yet: subscribe to"
                " names, such as those of topics() that match"
            )
        check_listener(listener)
        wanted = topic_names(topics)
        changed = self._change(wanted, lambda: self.subscription.subscribe(wanted, listener=listener))
        return self._registered(changed, "GroupedConsumer.subscribe")

    def unsubscribe(self) -> asyncio.Future[None]:
        """Have no topics and no partitions; the future is done once the member has registered that."""
        self.check_open()
        changed = bool(self.subscription.topics)
        if self.subscription.is_manual():
            self.subscription.unsubscribe()
            self._follow_assignment()
        else:
            self._change([], self.subscription.unsubscribe)
        return self._registered(changed, "GroupedConsumer.unsubscribe")

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions alone, without the group."""
        self.check_open()
        self.subscription.assign_from_user(partitions_of(partitions, "assign()"))
        self._follow_assignment()

    def _follow_assignment(self) -> None:
        if isinstance(self.connected, AssignedConsumer):
            self.connected.follow()
        elif self.connected is not None:
            self._reconnect()

    async def read_topic(self, topic: str) -> tuple[RecordReader, float] | None:
        """
        Connect and subscribe to a topic if necessary, as ``consume()`` does.

        Returns:
            The reader, and how long the call may wait for values, in seconds; None once the consumer was closed.
        """
        return None if self.closed else await self._read_topic(topic)

    async def _read_topic(self, topic: str) -> tuple[RecordReader, float] | None:
        changed = self._add_topic(topic)
        connecting = self.connect()
        if not connecting.done():
            await asyncio.wait({connecting})
        if self.closed:
            return None
        connecting.result()
        if changed:
            await self._registered(changed, "GroupedConsumer.consume")
        return self.require_reader(), self.settings.fetching.max_wait_ms / 1000

    def _add_topic(self, topic: str) -> bool:
        """Add a topic to the subscription; the listener stays. Return whether it is new."""
        if topic in self.subscription.topics:
            # Most calls. A check of the whole subscription takes as long as the values of a hundred records.
            return False
        wanted = self.subscription.topics | {topic}
        return self._change(wanted, lambda: self.subscription.change_subscription(wanted))

    def _registered(self, changed: bool, name: str) -> asyncio.Future[None]:
        """
        Have the member register the subscription if it has changed; join the group if the consumer has left it.

        The consumer leaves an assignment at the call, because another call may assign partitions before a task runs.
        """
        has_left = isinstance(self.connected, AssignedConsumer) and not self.subscription.is_manual()
        joining = self._reconnect() if changed and has_left else None
        return spawn(self._register(joining, self.connected if changed else None), name)

    async def _register(self, joining: asyncio.Task[None] | None, connected: Connected | None) -> None:
        if joining is not None:
            await asyncio.shield(joining)
        # A former member does not register what the application has chosen since.
        elif isinstance(connected, ConnectedConsumer) and self.connected is connected:
            await connected.member.resubscribe()

    def _change(self, topics: Iterable[str], change: Callable[[], T]) -> T:
        """Replace the subscription by what ``change`` does. Raise ConfigError if the topics are not allowed."""
        if self.connected is None or isinstance(self.connected, AssignedConsumer):
            return change()
        return self.connected.subscribe(frozenset(topics), change)

    # ------------------------------------------------------------------ the end

    def close(
        self, autocommit: bool, timeout_s: float | None, end_in_flight: Callable[[bool], None]
    ) -> asyncio.Future[None]:
        """
        Commit finished records, release all partitions and leave the group.

        ``end_in_flight`` settles what the caller has in flight; it is called with whether a loop runs.
        """
        if not isinstance(autocommit, bool):
            raise ConfigError(f"close(): autocommit: {autocommit!r} given; expected True or False")
        running = self._check_close(timeout_s)
        self.closed = True
        end_in_flight(running)
        under_way = self._connecting is not None and not self._connecting.done()
        work = partial(self._close, self._connecting if under_way else None, autocommit, timeout_s)
        self.closing = self.left_loop.close(self.closing, work, "GroupedConsumer.close")
        # Shielded: a caller that stops waiting must not leave behind a member that owns partitions and reads nothing.
        return asyncio.shield(self.closing) if running else self.closing

    def _abandon(self) -> None:
        """Close the session without a loop, so that other members need not wait for its timeout."""
        self.closed = True
        for connected in self.connections():
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
            if self.connected is not None:
                await self.connected.close(self._limit, autocommit=autocommit)
        finally:
            if self._leaving:
                # Each keeps to the limit by itself. None is cancelled: before its first turn, it would close nothing.
                await asyncio.wait(set(self._leaving))


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
