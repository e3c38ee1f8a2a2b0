"""The life cycle of a grouped consumer: it connects, joins its group, and leaves it."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import Self

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.compat.attributes import MemberAttributes
from kiel_groups.clients.delivery.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_tasks import cancelled_by
from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.group.member.subscription import SubscriptionState

__all__ = ["GroupMembership"]


class GroupMembership(MemberAttributes):
    """Connects a consumer to its group, and closes it. Other methods reach the connected parts from here."""

    _connected: ConnectedConsumer | None = None
    _connecting: asyncio.Task[None] | None = None
    _closing: asyncio.Future[None] | None = None
    _closed = False

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._subscription = SubscriptionState(settings.group)
        self._left_loop = LeftLoop(self._at_exit, self._abandon)
        self._limit = CloseLimit()

    def _end_in_flight(self, connected: ConnectedConsumer, *, running: bool) -> None:
        """At a close, finish what the caller has in flight, unless an exception is being handled or no loop runs."""
        raise NotImplementedError

    def _end_record(self, *, finished: bool) -> None:
        """Finish the record in flight of a loop, or deliver it again."""
        raise NotImplementedError

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
        """
        if not isinstance(autocommit, bool):
            raise ConfigError(f"close(): autocommit: {autocommit!r} given; expected True or False")
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
            raise ConfigError(f"close(): timeout_s: {timeout_s!r} given; expected seconds, at least 0, or None")
        self._closed = True
        running = running_loop() is not None
        if running:
            self._limit.shorten(timeout_s)
        if self._connected is not None:
            self._end_in_flight(self._connected, running=running)
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
        if self._connected is not None:
            self._connected.abandon()

    async def _close(self, connecting: asyncio.Task[None] | None, autocommit: bool, timeout_s: float | None) -> None:
        # Without a running loop, ``close`` could not tell when the time began.
        self._limit.shorten(timeout_s)
        if connecting is not None:
            await cancelled_by({connecting}, self._limit)
            # Retrieve the error, so that it is not logged: a caller of connect(), if there is one, gets it, too.
            _has_failed(connecting)
        if self._connected is not None:
            await self._connected.close(self._limit, autocommit=autocommit)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_record(finished=kind is None)
        await self.close()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
