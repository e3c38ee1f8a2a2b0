"""
The connected parts of a consumer, in a group or with assigned partitions: deliver records, commit, look up positions.

A consumer's ``Lifecycle`` creates the connected parts, and the consumer's methods use the parts on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from kiel_groups.clients.calls.eager_methods import shielded, spawn
from kiel_groups.clients.coordination import Coordination, Process
from kiel_groups.clients.delivery.listener_calls import ListenerCalls, check_listener
from kiel_groups.clients.delivery.position_reset import ResetRule
from kiel_groups.clients.delivery.record_reader import ReaderSettings, RecordReader
from kiel_groups.clients.net.cluster_metadata import DOUBT, ClusterMetadata
from kiel_groups.clients.net.log_marks import look_at_logs
from kiel_groups.clients.net.offset_lookup import StartLookup
from kiel_groups.clients.net.offset_requests import GroupBrokers
from kiel_groups.config import BROKER_V0, BROKER_V1, GroupConfig, ResetPolicy
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import (
    AuthorizationError,
    ClosedError,
    IllegalStateError,
    KielGroupsError,
    NoOffsetsError,
    SessionLostError,
)
from kiel_groups.group.partition_offsets import PendingReset, StartOrigin
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener, Stall
from kiel_groups.members.brokers.offset_requests import StoredInKafka
from kiel_groups.members.partition_handler import Gate, Work
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some
from kiel_groups.zookeeper.tasks import CloseLimit

log = logging.getLogger(__name__)

T = TypeVar("T")


#: The least time between two commits on request, in seconds. A program that calls ``consume()`` some hundred times a
#: second would otherwise pay for a transaction of ZooKeeper with each call: 0.6 ms, as much as the values of a MiB.
PAUSE_S = 0.1


class AutoCommit:
    """
    Commits finished records every ``auto_commit_interval_ms``.

    A call of the function ``commit`` must complete even if its caller is cancelled.
    """

    def __init__(
        self,
        config: GroupConfig,
        subscription: SubscriptionState,
        commit: Callable[[], Awaitable[object]],
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._subscription = subscription
        self._commit = commit
        self._metrics = metrics
        self._due = asyncio.Event()
        #: Why the last commit failed, or None after a success.
        self._cause: str | None = None

    def commit_soon(self) -> None:
        """Start the next commit before the interval ends, but at least ``PAUSE_S`` seconds after the last commit."""
        self._due.set()

    async def run(self) -> None:
        """
        Commit until the task is cancelled.

        A failed commit is counted, and the next interval's commit retries it. The same cause is logged again only after
        a commit has succeeded.
        """
        interval_s = self._config.auto_commit_interval_ms / 1000
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._due.wait()
                    await asyncio.sleep(next_s - clock())
            self._due.clear()
            next_s = clock() + PAUSE_S
            try:
                if self._subscription.offsets.has_uncommitted():
                    await self._commit()
                    self._cause = None
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count a failed commit, and log its cause unless the last commit failed for the same cause."""
        self._metrics.count("commits_failed")
        cause, self._cause = self._cause, f"{type(error).__name__}: {error}"
        if cause == self._cause or isinstance(error, AuthorizationError):
            return  # The member logs a missing right itself.
        group, interval_s = self._config.group, self._config.auto_commit_interval_ms / 1000
        if isinstance(error, SessionLostError):
            log.warning("group %s: nothing was committed: %s; trying again every %g s", group, error, interval_s)
        elif isinstance(error, KielGroupsError):
            log.error("an automatic commit failed in group %s: %s; trying again every %g s", group, error, interval_s)
        else:
            log.error(
                "an automatic commit failed in group %s; trying again every %g s", group, interval_s, exc_info=error
            )


#: How long, in seconds, a close waits until the values that calls returned are finished. The consumer cannot tell
#: whether the application is still processing them, and a member should leave its group promptly.
VALUES_PATIENCE_S = 2.0

#: How long a close without an event loop waits for ZooKeeper, in seconds.
ABANDON_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ReaderSettings):
    """
    The settings of a grouped consumer.

    Raises:
        ConfigError: A function or the listener has the wrong type.
    """

    group: GroupConfig
    coordination: Coordination
    listener: RebalanceListener | None = None

    def __post_init__(self) -> None:
        ReaderSettings.__post_init__(self)
        check_listener(self.listener)


class ConnectedConsumer:
    """
    A connected consumer in a group. The object must be constructed on the consumer's event loop.

    The ``reader`` fetches and delivers records. This object adds the member, commits, and position resets that are
    stored. The member controls the delivery through a ``DeliveryHandler``.
    """

    def __init__(self, settings: ConsumerSettings, subscription: SubscriptionState) -> None:
        self._settings = settings
        self._subscription = subscription
        #: Automatic commits and the renewal of metadata, until the close.
        self._background: list[asyncio.Task[None]] = []
        cluster = ClusterMetadata(settings.brokers, settings.metrics, broker_source=lambda: self.member.brokers())
        calls = ListenerCalls(settings.listener, settings.metrics, lambda: subscription.listener)
        self.reader = RecordReader(settings, subscription, calls, cluster)
        self._process = Process(
            settings.group,
            cluster,
            DeliveryHandler(self.reader, settings.group.group, settings.metrics),
            subscription,
            self.reader.end,
            settings.metrics,
            settings.runtime,
        )
        self.member = settings.coordination.new_member(self._process)
        subscription.on_matches = self.reader.owned.follow_subscription
        self.reader.reset_positions(settings.fetching.auto_offset_reset, self.member)
        self._auto_commit = AutoCommit(settings.group, subscription, self.commit_shielded, settings.metrics)

    async def start(self) -> None:
        """Connect to the brokers and join the group. After a failure, close the member and the reader."""
        try:
            await self.reader.cluster.refresh(self._subscription.topics, "connect")
            await self._settings.coordination.check_brokers(self._process)
            await self.member.start()
            # The subscription may have changed while the member joined.
            self.reader.owned.follow_subscription()
        except BaseException:
            try:
                await self.member.close()
            finally:
                self.reader.close()
            raise
        if self._settings.group.autocommit:
            self._background.append(spawn(self._auto_commit.run(), "auto-commit"))
        self._background.append(spawn(self._renew_metadata(), "metadata by age"))

    def subscribe(self, topics: Collection[str], change: Callable[[], T]) -> T:
        """
        Replace the subscription, and stop delivering removed topics.

        Then the caller must call ``member.resubscribe``, to register the new subscription.

        Args:
            topics: The topics of the new subscription; an empty collection to unsubscribe.
            change: Changes the subscription's state.

        Returns:
            The result of ``change``.

        Raises:
            ConfigError: The member cannot register these topics. The subscription stays as it was.
        """
        self.member.check_subscription(topics)
        result = change()
        self.reader.owned.follow_subscription()
        return result

    async def close(self, limit: CloseLimit, *, autocommit: bool = True) -> None:
        """
        Wait for the application to finish records in flight, release all partitions, and leave the group.

        Args:
            limit: When the close must end, even if the application or a server delays it.
            autocommit: If False, finished records are not committed, not even when partitions are released.
        """
        for task in self._background:
            task.cancel()
        self.reader.end(None)
        if not autocommit:
            self._subscription.offsets.stop_autocommit()
        try:
            await self._values_finished(limit)
        except asyncio.CancelledError:
            # The member leaves without waiting for anything else.
            limit = CloseLimit(0.0)
            raise
        finally:
            try:
                await self.member.close(limit)
            finally:
                self.reader.close()

    async def _values_finished(self, limit: CloseLimit) -> None:
        try:
            async with limit.timeout(VALUES_PATIENCE_S, reserves=True):
                await self.reader.values.all_finished()
        except TimeoutError:
            log.warning(
                "group %s: closing although what a call returned is not finished: it is delivered again",
                self._settings.group.group,
            )
            self.reader.values.drop(None)

    def abandon(self) -> None:
        """Leave the group without an event loop, and give up all partitions. Threads close the session."""
        self.reader.owned.end()
        self.member.abandon(ABANDON_S)
        self._subscription.offsets.end(self._subscription.offsets.open_partitions())

    # ------------------------------------------------------------------ offsets

    def finish_topic(self, topic: str) -> None:
        """
        Finish the topic's values whose coroutine has asked for more values, or has ended.

        If some values are finished, and automatic commits are on, commit them soon.
        """
        if self.reader.values.finish([topic], ()):
            self._auto_commit.commit_soon()

    def commit_shielded(self, metadata: str = "") -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit finished records. The future raises the errors of ``GroupMember.commit_on_session``.

        The commit continues even if its caller is cancelled. After an interrupted commit, the next release could
        mistake the stored offset for the offset of another writer.
        """
        return shielded(self.member.commit_on_session(metadata), f"group {self._settings.group.group}: a commit")

    def commit_chosen_shielded(
        self, offsets: Mapping[TopicPartition, int]
    ) -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit offsets that the application chose, even if the caller is cancelled.

        The future raises the errors of ``GroupMember.commit_chosen``.
        """
        name = f"group {self._settings.group.group}: a commit of chosen offsets"
        return shielded(self.member.commit_chosen(offsets), name)

    async def stored_offsets(
        self, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, int | None]:
        """
        Read the stored offsets of ``partitions`` or, if None, of all partitions for which the group has an offset.

        Returns:
            The offset of each partition that has an offset, or None if the stored data is not an offset.

        Raises:
            SessionLostError: The offsets are stored in ZooKeeper, and there is no session at the moment.
            NoOffsetsError, BrokerError, ProtocolError: As ``fetch_offsets``, if brokers store the offsets.
        """
        if partitions is None:
            partitions = await self.member.partitions_with_offsets()
        group, coordination = self._settings.group, self._settings.coordination
        if group.store not in (BROKER_V0, BROKER_V1):
            return await self.member.stored_offsets(partitions)
        return await coordination.group_offsets(self.reader.cluster, group.group, partitions) if partitions else {}

    async def _renew_metadata(self) -> None:
        while True:
            # Needed even if this member owns no partition: its calls of consume() must notice that no broker answers.
            await self.reader.cluster.refresh_when_old(lambda: self._subscription.topics)


class DeliveryHandler(GroupBrokers):
    """
    The PartitionHandler of a grouped consumer.

    The handler starts and stops the delivery of partitions, and notifies the listener.
    """

    def __init__(self, reader: RecordReader, group: str, metrics: Metrics) -> None:
        super().__init__(reader.cluster, group, metrics, StoredInKafka(reader.cluster, group, metrics))
        self._fetcher = reader.fetcher
        self._owned = reader.owned
        self._values = reader.values
        self._calls = reader.calls

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        """Return how the logs of these partitions compare with the records that were read from them."""
        return await look_at_logs(self._cluster, self._fetcher.read_logs(positions))

    def gate_changed(self, gate: Gate) -> None:
        """Follow a new session: deliver only while its gate is open, that is, while the session permits delivery."""
        self._owned.gate = gate

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Return a coroutine that runs the assigned hook, then fetches these partitions.

        A partition for which ``stop`` or ``lost`` is called before the hook ends is not fetched.
        """
        self._owned.accept(partitions)
        return self._owned.ready.assigned(partitions)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions, and return the partitions with records in flight."""
        self._owned.ready.remove(partitions)
        self._owned.drop(partitions)
        return self._owned.in_flight.in_flight_of(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until these partitions have no records in flight, then notify the listener of the revocation."""
        dropping = spawn(self._values.drop_unclaimed({tp.topic for tp in partitions}), "drop of unclaimed values")
        try:
            await self._owned.progress.until(lambda: not self._owned.in_flight.in_flight_of(partitions))
        finally:
            dropping.cancel()
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """
        Stop delivering lost partitions, and notify the listener.

        Drop the buffered records of the partitions, and stop tracking their records in flight. Also drop the leaders
        that ZooKeeper named for these partitions.
        """
        self._owned.ready.remove(partitions)
        self._owned.drop(partitions)
        self._owned.in_flight.stop_counting(partitions)
        self._calls.lost(partitions)
        self._cluster.drop_overrides(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Resume at ``offset`` once the assigned hook has ended. Stop tracking the partition's records in flight."""
        self._owned.resume_at(partition, offset)

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Raise ``error`` at the application's next request for the topic, whose start position is unknown."""
        self._owned.refuse(topic, error)

    def in_progress(self) -> list[Work]:
        """Return the records, values and hook that the application is processing. Any thread may call this method."""
        return self._calls.in_progress() + self._owned.in_flight.works()

    def stalled(self, stall: Stall) -> None:
        """Notify the listener of a stall, on the calling thread."""
        self._calls.stalled(stall)


#: Asks brokers for the offsets at which some partitions were left. Partitions without an offset have no entry.
StoredOffsets: TypeAlias = Callable[
    [ClusterMetadata, Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]
]

_TIMES = {"earliest": BEGINNING, "latest": END}


class AssignedConsumer:
    """
    A connected consumer whose partitions the application chooses.

    No claim excludes other readers, so no offset is committed. If the application has subscribed to topics, its
    listener is notified before records of a partition are delivered, and when the delivery ends. Each partition starts
    where the application seeks. Without a seek, the partition starts at its stored offset. Without a stored offset,
    ``auto_offset_reset`` decides.

    Args:
        settings: The consumer's settings.
        subscription: The state of the consumer's partitions.
        stored: Returns stored offsets.
        reset: The policy, or a rule, for positions that are not in the log.
        on_metadata: Called after each renewal of the metadata.
    """

    #: This consumer has no member; see ``ConnectedConsumer``.
    member: ClassVar[None] = None

    def __init__(
        self,
        settings: ReaderSettings,
        subscription: SubscriptionState,
        stored: StoredOffsets,
        reset: ResetPolicy | ResetRule,
        on_metadata: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._subscription = subscription
        self._stored = stored
        self._on_metadata = on_metadata
        cluster = ClusterMetadata(settings.brokers, settings.metrics)
        calls = ListenerCalls(None, settings.metrics, lambda: self._listener)
        self.reader = RecordReader(settings, subscription, calls, cluster)
        self.reader.reset_positions(reset, _NoMember(cluster, subscription))
        self.reader.owned.gate = _OpenGate()
        #: Looks up start positions in the background, and has the partitions read from there.
        self.start_lookup = StartLookup(cluster, settings.metrics, self.open)
        self._look_up: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        #: Why partitions have no position; each is looked up again.
        self._failures: dict[TopicPartition, KielGroupsError] = {}
        #: The partitions that this consumer has opened. A member that is leaving the group may have others open.
        self._opened: set[TopicPartition] = set()

    async def start(self) -> None:
        """Connect to the brokers, and read the assigned partitions. If no broker answers, close the reader."""
        try:
            await self.reader.cluster.refresh(self._topics(), "connect")
        except BaseException:
            self.reader.close()
            raise
        self.follow()

    def follow(self) -> None:
        """
        Follow a change of the assigned partitions: drop removed partitions, and read added partitions.

        Partitions that stay are not affected. Once the consumer was closed, this method does nothing.
        """
        if self.reader.owned.ended:
            return
        owned = self.reader.owned
        assigned, ready = self._subscription.assigned_partitions(), frozenset(owned.ready)
        gone = (ready | self._opened) - assigned
        self._opened -= gone
        owned.ready.remove(gone)
        owned.drop(gone)
        owned.in_flight.stop_counting(gone)
        self._subscription.offsets.end(gone)
        self.start_lookup.discard(gone)
        for partition in gone:
            self._failures.pop(partition, None)
        owned.follow_subscription()
        if self._subscription.is_manual():
            owned.ready.add(assigned - ready)
        self._look_up_starts()
        self._keep_metadata_fresh()
        owned.progress.notify()

    def open(self, starts: Mapping[TopicPartition, int], origin: StartOrigin = StartOrigin.FIRST) -> None:
        """
        Read partitions from these offsets. A partition that has a position already keeps the position.

        Partitions of subscribed topics become assigned. Other partitions are ignored, unless the application has
        assigned them.
        """
        state = self._subscription
        if self.reader.owned.ended:
            return
        if not state.is_manual() and (covered := frozenset(filter(state.covers, starts))):
            state.assign_from_subscribed(state.assigned_partitions() | covered)
        opened = state.open_unclaimed(starts, origin)
        self._opened.update(opened)
        for partition in opened:
            self._failures.pop(partition, None)
        if opened and self._listener is not None:
            spawn(self.reader.owned.ready.assigned(opened), "on_partitions_assigned")
        else:
            self.reader.owned.ready.add(opened)
        self._keep_metadata_fresh()

    async def await_position(self, partition: TopicPartition) -> None:
        """
        Wait until an assigned partition has a position, or is not assigned any more.

        Raises:
            KielGroupsError: No start position can be chosen for the partition.
            ClosedError: The consumer was closed.
        """
        is_missing = self._subscription.missing_fetch_positions
        await self.reader.owned.progress.until(
            lambda: self.reader.owned.ended or partition not in is_missing() or partition in self._failures
        )
        if partition in is_missing():
            raise self._failures.get(partition) or ClosedError("the consumer was closed")

    @property
    def _listener(self) -> RebalanceListener | None:
        """The listener of the subscription to topics, or None after ``assign``."""
        return None if self._subscription.is_manual() else self._subscription.listener

    @property
    def must_revoke(self) -> bool:
        """Whether a listener must be notified before the partitions of topics are dropped."""
        return bool(self._subscription.assigned_partitions()) and self._listener is not None

    async def revoke(self) -> None:
        """Stop the delivery of topics, and notify the listener. Positions remain until the hook returns."""
        if self.must_revoke:
            owned, assigned = self.reader.owned, self._subscription.assigned_partitions()
            owned.ready.remove(assigned)
            owned.drop(assigned)
            await self.reader.calls.revoked(assigned)

    async def close(self, limit: CloseLimit, *, autocommit: bool = True) -> None:
        """
        Stop reading, notify the listener, and close the connections.

        Nothing is committed, so the close does not wait for records in flight. A hook that runs beyond the limit is
        cancelled.
        """
        self.reader.end(None)
        try:
            async with limit.timeout():
                await self.revoke()
        except TimeoutError:
            log.warning("closing although the listener's on_partitions_revoked has not returned: it was cancelled")
        finally:
            for task in (self._look_up, self._renewal):
                if task is not None:
                    task.cancel()
            self.start_lookup.close()
            self.reader.close()
            self._subscription.offsets.end(frozenset(self.reader.owned.ready))

    def finish_topic(self, topic: str) -> None:
        """Finish the topic's values whose coroutine has asked for more values, or has ended."""
        self.reader.values.finish([topic], ())

    def abandon(self) -> None:
        """Stop reading, without an event loop."""
        self.reader.owned.end()

    # ------------------------------------------------------------------ positions

    async def stored_offsets(self, partitions: Collection[TopicPartition] | None) -> Mapping[TopicPartition, int]:
        """
        Return the offset of each partition with a stored offset.

        Raises:
            IllegalStateError: ``partitions`` is None: without a session, the group's partitions cannot be listed.
            KielGroupsError: The brokers did not return the offsets.
        """
        if partitions is None:
            raise IllegalStateError(
                "fetch_committed_offsets(): without a session, a consumer after assign() cannot list the group's"
                " offsets; name the partitions"
            )
        return await self._stored(self.reader.cluster, partitions) if partitions else {}

    def _look_up_starts(self) -> None:
        """Look up the positions of all partitions without a position. A look-up that still runs is replaced."""
        if self._look_up is not None:
            self._look_up.cancel()
        if self._unopened():
            self._look_up = spawn(self._find_starts(), "look-up of stored offsets")

    def _unopened(self) -> list[TopicPartition]:
        missing = self._subscription.missing_fetch_positions()
        return sorted(partition for partition in missing if partition not in self.start_lookup)

    async def _find_starts(self) -> None:
        backoff = self.reader.cluster.new_backoff()
        while missing := self._unopened():
            try:
                self.open(await self.stored_offsets(missing), StartOrigin.STORED)
            except KielGroupsError as error:
                self._failed(missing, error)
            else:
                self._start_without_offsets(missing)
            if self._unopened():
                await asyncio.sleep(backoff.next_s())

    def _start_without_offsets(self, partitions: Collection[TopicPartition]) -> None:
        missing = self._subscription.missing_fetch_positions().intersection(partitions)
        policy = self._settings.fetching.auto_offset_reset
        if policy != "none":
            self.start_lookup.add(dict.fromkeys(missing, _TIMES[policy]))
        for partition in missing if policy == "none" else ():
            error = NoOffsetsError(
                f"assign(): {partition} has no committed offset, and auto_offset_reset is 'none'; seek() to an offset,"
                " or choose 'earliest' or 'latest'"
            )
            self._failed([partition], error)

    def _failed(self, partitions: Collection[TopicPartition], error: KielGroupsError) -> None:
        """Log and count a failed look-up. If a retry cannot help, raise the error at the application's next request."""
        if any(partition not in self._failures for partition in partitions):
            log.warning("%s cannot be read yet: %s; trying again", some(sorted(partitions)), error)
        self._settings.metrics.count("start_lookups_failed")
        if not error.retriable:
            self._failures |= dict.fromkeys(partitions, error)
            for topic in {partition.topic for partition in partitions}:
                self.reader.owned.refuse(topic, error)
            self.reader.owned.progress.notify()

    # ------------------------------------------------------------------ metadata

    def _keep_metadata_fresh(self) -> None:
        if self._renewal is None and self._topics():
            self._renewal = spawn(self._renew_metadata(), "metadata by age")

    def _topics(self) -> frozenset[str]:
        return self._subscription.topics | {each.topic for each in self._subscription.assigned_partitions()}

    async def _renew_metadata(self) -> None:
        while True:
            try:
                await self.reader.cluster.refresh_when_old(self._topics)
            except ClosedError:
                return
            self._on_metadata()


class _OpenGate:
    """The delivery gate of a consumer without a session: delivery is always permitted."""

    def is_open(self, now_s: float) -> bool:
        return True


class _NoMember:
    """Takes the place of the member in ``PositionReset``: asks another broker for the leaders, and stores no offset."""

    def __init__(self, cluster: ClusterMetadata, subscription: SubscriptionState) -> None:
        self._cluster = cluster
        self._subscription = subscription

    async def confirm_leaders(self) -> None:
        # A deposed leader answers "out of range" for offsets that its successor has appended since. Therefore another
        # broker is asked for the leader before the log's range is believed.
        await self._cluster.refresh({each.topic for each in self._subscription.assigned_partitions()}, DOUBT)

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        offsets = self._subscription.offsets
        return offsets.complete_reset(partition) if offsets.reset_applies(partition, reset) else None
