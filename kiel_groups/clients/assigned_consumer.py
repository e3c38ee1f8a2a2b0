"""A connected consumer without a member: it reads partitions that the application has chosen, and commits nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import ClassVar, TypeAlias

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers, ResetRule
from kiel_groups.clients.delivery.record_reader import ReaderSettings, RecordReader
from kiel_groups.clients.fetch.start_lookup import StartLookup
from kiel_groups.clients.net.cluster_metadata import DOUBT, ClusterMetadata
from kiel_groups.config import ResetPolicy
from kiel_groups.constants import BEGINNING, END
from kiel_groups.errors import ClosedError, KielGroupsError, NoOffsetsError
from kiel_groups.group.partition_offsets import PendingReset, StartOrigin
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some
from kiel_groups.zookeeper.tasks import CloseLimit

__all__ = ["AssignedConsumer", "StoredOffsets"]

log = logging.getLogger(__name__)

#: Returns the offsets at which some partitions were left, without those that have none.
StoredOffsets: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]

_TIMES = {"earliest": BEGINNING, "latest": END}


class AssignedConsumer:
    """
    A connected consumer whose partitions the application chooses.

    There is no claim that would exclude other readers, so nothing is committed. The listener of a subscription to
    topics is notified of partitions that are read from now on, and of their end. Each partition starts where the
    application seeks, else at its stored offset, else as ``auto_offset_reset`` says.

    Args:
        settings: How to read.
        subscription: The state of the consumer's partitions.
        stored: Returns stored offsets.
        reset: The policy, or a rule, for positions that a log does not have.
        on_metadata: Called after each renewal of the metadata.
    """

    #: There is none; see ``ConnectedConsumer``.
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
        self.calls = ListenerCalls(None, settings.metrics, lambda: self._listener)
        self.reader = RecordReader(settings, subscription, self.calls, cluster, self._reset)
        self.reader.owned.gate = _OpenGate()
        self._position_reset = PositionReset(
            reset,
            ResetBrokers.of(cluster),
            subscription,
            self.reader.owned,
            _NoMember(cluster, subscription),
            self._settings.metrics,
        )
        self._start_lookup = StartLookup(cluster, settings.metrics, self.open)
        self._look_up: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        #: Why partitions have no position; each is looked up again.
        self._failures: dict[TopicPartition, KielGroupsError] = {}

    async def start(self) -> None:
        """Connect to the brokers, and read the assigned partitions. If no broker answers, close everything again."""
        try:
            await self.reader.cluster.refresh(self._topics(), "connect")
        except BaseException:
            self.reader.close()
            raise
        self.follow()

    def follow(self) -> None:
        """
        Follow a change of the assigned partitions: drop those that have left, and read those that have come.

        Partitions that stay are not affected. Once the consumer was closed, nothing happens.
        """
        if self.reader.is_over:
            return
        owned = self.reader.owned
        assigned, ready = self._subscription.assigned_partitions(), frozenset(owned.ready)
        gone = (ready | self._subscription.offsets.open_partitions()) - assigned
        owned.ready.remove(gone)
        owned.drop(gone)
        owned.in_flight.stop_counting(gone)
        self._subscription.offsets.end(gone)
        self._start_lookup.discard(gone)
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
        Read partitions from these offsets. Those that have a position already keep it.

        Partitions of subscribed topics become assigned. Others are left out unless the application has assigned them.
        """
        state = self._subscription
        if self.reader.is_over:
            return
        if not state.is_manual() and (covered := frozenset(filter(state.covers, starts))):
            state.assign_from_subscribed(state.assigned_partitions() | covered)
        opened = state.open_unclaimed(starts, origin)
        for partition in opened:
            self._failures.pop(partition, None)
        if opened and self._listener is not None:
            spawn(self.reader.owned.ready.assigned(opened), "on_partitions_assigned")
        else:
            self.reader.owned.ready.add(opened)
        self._keep_metadata_fresh()

    def look_up(self, times: Mapping[TopicPartition, int]) -> None:
        """Look up start positions in the background, and read the partitions from there; see ``StartLookup``."""
        self._start_lookup.add(times)

    def is_looking_up(self, partition: TopicPartition) -> bool:
        """Return whether the start position of a partition is being looked up by ``look_up``."""
        return partition in self._start_lookup

    async def await_position(self, partition: TopicPartition) -> None:
        """
        Wait until an assigned partition has a position, or is not assigned any more.

        Raises:
            KielGroupsError: No start position can be chosen for the partition.
            ClosedError: The consumer was closed.
        """
        is_missing = self._subscription.missing_fetch_positions
        await self.reader.owned.progress.until(
            lambda: self.reader.is_over or partition not in is_missing() or partition in self._failures
        )
        if partition in is_missing():
            raise self._failures.get(partition) or ClosedError("the consumer was closed")

    @property
    def _listener(self) -> RebalanceListener | None:
        """The listener of the subscription to topics; partitions of ``assign`` have none."""
        return None if self._subscription.is_manual() else self._subscription.listener

    @property
    def must_revoke(self) -> bool:
        """Whether there is a listener to notify, before the partitions of topics may leave."""
        return bool(self._subscription.assigned_partitions()) and self._listener is not None

    async def revoke(self) -> None:
        """Stop the delivery of topics, and notify the listener. Positions remain until its hook has returned."""
        if self.must_revoke:
            owned, assigned = self.reader.owned, self._subscription.assigned_partitions()
            owned.ready.remove(assigned)
            owned.drop(assigned)
            await self.calls.revoked(assigned)

    async def close(self, limit: CloseLimit, *, autocommit: bool = True) -> None:
        """
        Stop reading, notify the listener, and close the connections.

        Nothing is committed, so records in flight delay nothing. A hook that runs beyond the limit is cancelled.
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
            self._start_lookup.close()
            self.reader.close()
            self._subscription.offsets.end(frozenset(self.reader.owned.ready))

    def finish_topic(self, topic: str) -> None:
        """Finish the topic's values whose coroutine has asked again or ended."""
        self.reader.values.finish([topic], ())

    def abandon(self) -> None:
        """Stop reading, without an event loop."""
        self.reader.owned.end()

    # ------------------------------------------------------------------ positions

    def _look_up_starts(self) -> None:
        """Look up the positions of all partitions without one, again also of those whose look-up runs."""
        if self._look_up is not None:
            self._look_up.cancel()
        if self._unopened():
            self._look_up = spawn(self._find_starts(), "look-up of stored offsets")

    def _unopened(self) -> list[TopicPartition]:
        missing = self._subscription.missing_fetch_positions()
        return sorted(partition for partition in missing if partition not in self._start_lookup)

    async def _find_starts(self) -> None:
        backoff = self.reader.cluster.new_backoff()
        while missing := self._unopened():
            try:
                self.open(await self._stored(missing), StartOrigin.STORED)
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
            self.look_up(dict.fromkeys(missing, _TIMES[policy]))
        for partition in missing if policy == "none" else ():
            error = NoOffsetsError(
                f"assign(): {partition} has no committed offset, and auto_offset_reset is 'none'; seek() to an offset,"
                " or choose 'earliest' or 'latest'"
            )
            self._failed([partition], error)

    def _failed(self, partitions: Collection[TopicPartition], error: KielGroupsError) -> None:
        """Log and count a failed look-up. The application is notified if only it can heal the cause."""
        if any(partition not in self._failures for partition in partitions):
            log.warning("%s cannot be read yet: %s; trying again", some(sorted(partitions)), error)
        self._settings.metrics.count("start_lookups_failed")
        if not error.retriable:
            self._failures |= dict.fromkeys(partitions, error)
            for topic in {partition.topic for partition in partitions}:
                self.reader.owned.refuse(topic, error)
            self.reader.owned.progress.notify()

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self._position_reset(partition, position)

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
    """The gate of a consumer without a session: it is always open."""

    def is_open(self, now_s: float) -> bool:
        return True


class _NoMember:
    """Takes the place of a member in ``PositionReset``: it confirms leaders with another broker, and stores nothing."""

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
