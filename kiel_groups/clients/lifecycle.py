"""
Connect a grouped consumer, follow its subscription or assigned partitions, commit its offsets, and close it.

After ``assign``, the consumer reads without its group, and does not commit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from kiel_groups.clients.calls.arguments import is_partition, offsets_of, partition_of, partitions_of
from kiel_groups.clients.calls.eager_methods import cancels_this_task, failed_future, spawn, suspended_if_left
from kiel_groups.clients.calls.left_loop import LeftLoop, running_loop
from kiel_groups.clients.connected_consumer import AssignedConsumer, ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.delivery.listener_calls import check_listener
from kiel_groups.clients.delivery.record_reader import RecordReader
from kiel_groups.clients.record_calls import Connected, Lifecycle, RecordCalls
from kiel_groups.config import topic_names
from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, IllegalStateError, KielGroupsError
from kiel_groups.group.subscription import Subscription, SubscriptionKind, SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wording import some
from kiel_groups.zookeeper.tasks import CloseLimit, cancelled_by

log = logging.getLogger(__name__)

T = TypeVar("T")


class GroupLifecycle(Lifecycle):
    """
    The lifecycle of a grouped consumer: connect, join or leave the group, follow ``assign``, and close.

    Args:
        settings: The consumer's settings.
        at_exit: Closes the consumer at the interpreter's exit if necessary; see ``LeftLoop``.
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
        """
        Connect to the brokers, and join the group unless the application has assigned partitions.

        Return the future of the attempt that runs or has succeeded, if there is one.
        """
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
        Replace the connection: leave the group to follow ``assign``, or join the group after ``unsubscribe``.

        Loops and calls under way raise an IllegalStateError; new loops and calls use the new connection at once.
        Return the task that connects.
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
        """Raise ClosedError if the close has ended. While the close runs, a hook may commit and ask for offsets."""
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
        Return the connected member. ``call`` names the method that commits, for errors.

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
        self, topics: str | Iterable[str], pattern: str | re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> asyncio.Future[None]:
        """Replace the subscription; the future is done once the member has registered the new subscription."""
        self.check_open()
        check_listener(listener)
        wanted = topic_names(topics)
        changed = self._change(wanted, lambda: self.subscription.subscribe(wanted, pattern, listener))
        return self._registered(changed, "GroupedConsumer.subscribe")

    def unsubscribe(self) -> asyncio.Future[None]:
        """Drop all topics and partitions; the future is done once the member has registered that it has no topics."""
        self.check_open()
        changed = self.subscription.wanted != Subscription()
        if self.subscription.is_manual():
            self.subscription.unsubscribe()
            self._follow_assignment()
        else:
            self._change([], self.subscription.unsubscribe)
        return self._registered(changed, "GroupedConsumer.unsubscribe")

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read only these partitions, without the group. A consumer that is in the group leaves it."""
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
        """Add a topic to the subscription, without a change of the listener. Return whether the topic is new."""
        if topic in self.subscription.topics:
            # Most calls. A check of the whole subscription takes as long as the values of a hundred records.
            return False
        self.subscription.check_kind(SubscriptionKind.TOPICS, "consume()")
        wanted = self.subscription.topics | {topic}
        return self._change(wanted, lambda: self.subscription.change_subscription(wanted))

    def _registered(self, changed: bool, name: str) -> asyncio.Future[None]:
        """
        Ask the member to register a changed subscription. If the consumer has left the group, join the group first.

        The former connection is replaced before this method returns, because another call may assign partitions before
        a task runs.
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
        """Replace the subscription by calling ``change``. Raise ConfigError if the topics are not allowed."""
        if self.connected is None or isinstance(self.connected, AssignedConsumer):
            return change()
        return self.connected.subscribe(frozenset(topics), change)

    # ------------------------------------------------------------------ the end

    def close(
        self, autocommit: bool, timeout_s: float | None, end_in_flight: Callable[[bool], None]
    ) -> asyncio.Future[None]:
        """
        Commit finished records, release all partitions and leave the group.

        ``end_in_flight`` finishes or drops the caller's records in flight. The argument of ``end_in_flight`` is whether
        an event loop runs.
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
                # Each close observes the limit by itself. The closes are not cancelled: a task that is cancelled before
                # its first step would close nothing.
                await asyncio.wait(set(self._leaving))


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


#: Offsets as applications pass them: the next offset to read, alone or with a text, by partition.
Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]

#: Called with the offsets of an asynchronous commit, and the partitions that were stored, or the error.
CommitCallback: TypeAlias = Callable[[dict[TopicPartition, OffsetAndMetadata], Any], object]

#: A commit that has begun, and the partitions whose offsets it has stored.
_Committing: TypeAlias = asyncio.Future[frozenset[TopicPartition]]


class Commits:
    """Commits the offsets of one grouped consumer, and reads the offsets that its group has committed."""

    def __init__(self, lifecycle: GroupLifecycle, calls: RecordCalls, default_callback: CommitCallback | None) -> None:
        self._lifecycle = lifecycle
        self._calls = calls
        self._default_callback = default_callback
        self._group = lifecycle.settings.group.group
        #: Set when the callback of the last ``commit_async`` is called; the next callback waits for it.
        self._called: asyncio.Event | None = None

    # ------------------------------------------------------------------ commits

    def commit(self, offsets: Offsets | None) -> _Committing:
        """Start a commit: of chosen offsets or, if None, of all finished offsets and the caller's records in flight."""
        return self._begin(None if offsets is None else offsets_of(offsets, "commit()"))

    def _begin(self, chosen: Mapping[TopicPartition, OffsetAndMetadata] | None) -> _Committing:
        """Start a commit. Unless the offsets are chosen, first finish the caller's records in flight."""
        self._lifecycle.left_loop.check_thread()
        connected = self._lifecycle.require_member("commit()")
        if chosen is None:
            # Counted at the call: the task of the commit has a context of its own, without the caller's calls.
            self._calls.count_record()
            connected.reader.values.finish(calls=self._calls.calls_here())
            return spawn(self._commit_finished(connected), "GroupedConsumer.commit")
        numbers = {partition: value.offset for partition, value in chosen.items()}
        # If no loop runs yet, the commit begins with the loop.
        return spawn(suspended_if_left(partial(connected.commit_chosen_shielded, numbers)), "GroupedConsumer.commit")

    async def _commit_finished(self, connected: ConnectedConsumer) -> frozenset[TopicPartition]:
        tracker = self._lifecycle.subscription.offsets
        due = tracker.due()
        stored = await connected.commit_shielded()
        left = tracker.not_stored(due, stored)
        if left and tracker.rules.asks_brokers:
            raise CommitFailedError(
                f"group {self._group}: commit(): {some(left)} not stored: brokers did not confirm it in"
                f" time, or refused it as the log says; they may still store it. Commit again"
                + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        return stored

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> _Committing:
        """Start a commit, and report its outcome to a callback, after the callbacks of earlier commits."""
        notify = callback or self._default_callback
        reported: dict[TopicPartition, OffsetAndMetadata] = {}
        try:
            chosen = None if offsets is None else offsets_of(offsets, "commit_async()")
            committing = self._begin(chosen)
            reported = self._finished() if chosen is None else chosen
        except KielGroupsError as error:
            committing = failed_future(error, "GroupedConsumer.commit_async")
        if notify is None:
            return committing
        before, self._called = self._called, asyncio.Event()
        notified = spawn(
            self._notify(committing, reported, notify, before, self._called), "GroupedConsumer.commit_async"
        )
        # The callback has the error.
        notified.add_done_callback(lambda done: done.cancelled() or done.exception())
        return notified

    def _finished(self) -> dict[TopicPartition, OffsetAndMetadata]:
        commits = self._lifecycle.subscription.offsets.commits()
        return {partition: OffsetAndMetadata(commit.offset) for partition, commit in commits.items()}

    async def _notify(
        self,
        committing: _Committing,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback,
        before: asyncio.Event | None,
        called_now: asyncio.Event,
    ) -> frozenset[TopicPartition]:
        """Call a callback after its commit has ended, and after the callback of the previous commit was called."""
        try:
            await asyncio.wait({committing})
            if before is not None:
                await before.wait()
        finally:
            called_now.set()
        error = committing.exception()
        try:
            called = callback(offsets, committing.result() if error is None else error)
            if inspect.isawaitable(called):
                await called
        except (Exception, asyncio.CancelledError) as failure:
            if cancels_this_task(failure):
                raise
            log.exception("group %s: the callback of a commit failed", self._group)
            self._lifecycle.settings.metrics.count("commit_callbacks_failed")
        return committing.result()

    def commit_offsets(self, metadata: Callable[[], str]) -> asyncio.Future[None]:
        """
        Finish the caller's values, or all received values if the caller does not consume, and start a commit.

        A failure is logged and counted.
        """
        self._lifecycle.left_loop.check_thread()
        connected = self._lifecycle.connected
        if connected is not None:
            try:
                connected = self._lifecycle.require_member("commit_offsets()")
            except ClosedError:
                connected = cast(ConnectedConsumer, connected)
            connected.reader.values.finish(calls=self._calls.calls_here() or None)
        return spawn(self._commit_values(metadata), "GroupedConsumer.commit_offsets")

    async def _commit_values(self, metadata: Callable[[], str]) -> None:
        connected = self._lifecycle.connected
        if connected is None or isinstance(connected, AssignedConsumer):
            return
        try:
            await connected.commit_shielded(metadata())
        except KielGroupsError as error:
            log.error("the offsets of group %s were not committed: %s", self._group, error)
            self._lifecycle.settings.metrics.count("commits_failed")

    # ------------------------------------------------------------------ what is committed

    def committed(
        self, partition: TopicPartition | Iterable[TopicPartition]
    ) -> asyncio.Future[int | None] | asyncio.Future[dict[TopicPartition, int | None]]:
        """Return the group's committed offset of a partition, or a dict of offsets for several partitions."""
        if is_partition(partition):
            return spawn(self._of_one(partition), "GroupedConsumer.committed")
        return spawn(self._of_all(partition), "GroupedConsumer.committed")

    async def _of_one(self, partition: object) -> int | None:
        asked = partition_of(partition, "committed()")
        return (await self._lifecycle.require_connected().stored_offsets([asked])).get(asked)

    async def _of_all(self, partitions: object) -> dict[TopicPartition, int | None]:
        asked = partitions_of(partitions, "committed()")
        found = await self._lifecycle.require_connected().stored_offsets(asked)
        return {partition: found.get(partition) for partition in asked}

    async def fetch_committed(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """
        Return the group's committed offsets of these partitions. Leave out partitions without an offset.

        None as ``partitions`` means all partitions for which the group has an offset.
        """
        asked = None if partitions is None else partitions_of(partitions, "fetch_committed_offsets()")
        found = await self._lifecycle.require_connected().stored_offsets(asked)
        return {partition: OffsetAndMetadata(offset) for partition, offset in found.items() if offset is not None}
