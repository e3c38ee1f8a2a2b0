"""The life cycle of a grouped consumer: it connects, joins its group or reads alone, and closes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from types import TracebackType
from typing import Self

from kiel_groups.clients.calls.arguments import check_close_timeout
from kiel_groups.clients.calls.eager_methods import connect_or_close, spawn, suspended_if_left
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat import MemberAttributes
from kiel_groups.clients.connected.assigned_consumer import AssignedConsumer
from kiel_groups.clients.connected.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.connected.record_reader import RecordReader
from kiel_groups.clients.methods.record_access import RecordAccess
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import ClosedError, ConfigError, IllegalStateError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.tasks import CloseLimit, cancelled_by

__all__ = ["GroupMembership"]


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
