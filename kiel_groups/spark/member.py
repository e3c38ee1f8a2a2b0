"""Make the driver of a streaming query a member of a consumer group. The member reads in micro-batches."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from kiel_groups.allocators import round_robin
from kiel_groups.clients.calls.eager_methods import shielded
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import GroupBrokers
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError, NoOffsetsError, SessionLostError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import Stall
from kiel_groups.members.brokers.offset_requests import StoredInKafka
from kiel_groups.members.partition_handler import Gate, Work
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.spark.checkpoint import OffsetRange, Span, new_token
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext

log = logging.getLogger(__name__)


# The orderly exit of a query's process at SIGTERM.
#
# When a query ends, Spark sends the signal and closes its channel to the process at the same moment. With Python's
# default handler, the process would exit at once, and the group would wait for the session timeout. The process may
# have seen the closed channel first, and be leaving the group already: an exception from the handler might interrupt
# that. So the handler itself leaves the group, unless the process has already begun to leave.


#: The exit status that shells report for a process ended by SIGTERM.
_STATUS = 128 + signal.SIGTERM


def on_sigterm(leave: Callable[[], bool]) -> None:
    """
    Install a handler of SIGTERM that calls ``leave`` and then exits.

    Do nothing outside the main thread, or if the application has a handler of its own.

    Args:
        leave: Leaves the group. The handler may call it while the main thread executes any code, even ``leave`` itself.
            ``leave`` returns False if an earlier call has started. Then the handler returns without an exit, so that
            the earlier call can complete.
    """

    def handle(number: int, _: FrameType | None) -> None:
        if leave():
            raise SystemExit(_STATUS)

    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)


def default_on_sigterm() -> None:
    """Restore Python's default handler if ``on_sigterm`` replaced it."""
    handler = signal.getsignal(signal.SIGTERM)
    if _in_main_thread() and getattr(handler, "__module__", None) == __name__:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_main_thread() -> bool:
    """Return whether this is the main thread. Python allows only this thread to set signal handlers."""
    return threading.current_thread() is threading.main_thread()


# The PartitionHandler of a member that reads in micro-batches; it runs on the member's loop.
#
# A revoked partition is not part of any new batch. The member releases the partition at once or, if the running batch
# reads it, once that batch is known to be done. If a partition is lost during a batch, the offsets that the batch read
# of it are not committed, because the new owner reads them again.


@dataclass(slots=True)
class _Interval:
    """
    An interval of reading: the query reads a partition from the offset ``begin`` on without a break.

    ``token`` identifies the interval. ``planned`` means that ``begin`` is final, because a batch was planned in the
    interval, or because ``offset_changed`` started the interval.
    """

    begin: int
    token: int
    planned: bool = False


class _Reading(NamedTuple):
    """The range of a partition that the running batch reads: from ``start`` to the end of ``span``."""

    start: int
    span: Span


class BatchHandler(GroupBrokers):
    """
    The PartitionHandler of a member that reads in batches, one at a time.

    Args:
        group: The group's name.
        cluster: The brokers that look up and store offsets.
        subscription: The member's state. For a partition, its ``finished`` is the end of the last batch that is done.
        metrics: Counts commits that brokers refuse.
    """

    def __init__(self, group: str, cluster: ClusterMetadata, subscription: SubscriptionState, metrics: Metrics) -> None:
        super().__init__(cluster, group, metrics, StoredInKafka(cluster, group, metrics))
        self._subscription = subscription
        self._intervals: dict[TopicPartition, _Interval] = {}
        self._stopped: set[TopicPartition] = set()
        self._batch: dict[TopicPartition, _Reading] = {}
        self._batch_ended = asyncio.Event()
        self._refused: dict[str, NoOffsetsError] = {}
        #: The gate of the member's current session: it is open while the member may read. It is shut before the first
        #: session.
        self.gate: Gate = DeliveryGate()

    # ------------------------------------------------------------------ the query's side

    def finish(self, reached: Mapping[TopicPartition, Span] | None) -> list[OffsetRange]:
        """
        End the batch. If it ran, mark the offsets that it read as finished.

        Args:
            reached: The query's position. It shows whether the batch ran. None means that the batch ran.

        Returns:
            The ranges that must not be committed, because their partitions were lost, or their offsets were changed,
            during the batch.
        """
        unfenced = []
        for partition, reading in self._batch.items():
            if reached is not None and not _is_same(reached.get(partition), reading.span):
                continue
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
            if interval is not None and state is not None and interval.token == reading.span.token:
                state.finished = state.position = max(state.finished, reading.span.to)
            elif reading.span.to > reading.start:
                unfenced.append(OffsetRange(partition, reading.start, reading.span.to))
        self.drop_batch()
        return unfenced

    def drop_batch(self) -> None:
        """Forget the batch, done or not, so that the member can release the revoked partitions of the batch."""
        self._batch = {}
        self._batch_ended.set()

    def resume(self, wanted: Mapping[TopicPartition, Span]) -> bool:
        """
        Advance the starts of new intervals to the query's own positions, as returned by ``positions``.

        The caller must have checked that the logs reach these positions.

        Returns:
            Whether any start was advanced.
        """
        found = False
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
            if interval is None or state is None or interval.planned or interval.token != span.token:
                continue
            if span.begin > state.finished:
                interval.begin = state.finished = state.position = span.begin
                found = True
        return found

    def restart(self, firsts: Mapping[TopicPartition, int]) -> None:
        """Restart recreated partitions at the first offsets of their new logs. The caller commits these offsets."""
        for partition, first in firsts.items():
            if partition in self._intervals and self._subscription.offsets.is_open(partition):
                self._subscription.offsets.seek(partition, first)
                self.offset_changed(partition, first)

    def positions(self, known: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Return the position of every partition that may be read.

        A newly claimed partition continues at the query's own position if no other member has committed since the
        query planned its last batch. So a restarted query reads no record twice. Then ``resume`` advances the group's
        offsets.

        Args:
            known: The query's position. All records before this position are done.

        Raises:
            NoOffsetsError: The start position of a topic is unknown; see ``start_unknown``.
        """
        if self._refused:
            raise self._refused.popitem()[1]
        spans = {}
        for partition, interval in self._intervals.items():
            state = self._subscription.offsets.of(partition)
            if state is None or partition in self._stopped:
                continue
            before = known.get(partition)
            if before is not None and before.token == interval.token:
                spans[partition] = before
                continue
            span = Span(interval.begin, state.finished, interval.token, state.committed)
            if before is not None and not interval.planned and before.group == state.committed and before.to > span.to:
                span = span._replace(begin=before.to, to=before.to, incarnation=before.incarnation)
            spans[partition] = span
        return spans

    def plan(self, wanted: Mapping[TopicPartition, Span], *, may_read: bool) -> dict[TopicPartition, Span]:
        """
        Start a batch of the partitions in ``wanted`` that the member still owns and that are not revoked.

        Args:
            wanted: The span to read of each partition. A span starts at the position that ``positions`` has returned.
            may_read: Whether the member's gate is open. If not, the batch reads nothing.

        Returns:
            The position of each of these partitions after the batch.
        """
        spans = {}
        for partition, span in wanted.items():
            interval, state = self._intervals.get(partition), self._subscription.offsets.of(partition)
            if interval is None or state is None or partition in self._stopped or interval.token != span.token:
                continue
            if not may_read:
                span = span._replace(to=state.finished)
            if span.to > state.finished:
                span = span._replace(group=state.committed)
                state.position = span.to
                interval.planned = True
                self._batch[partition] = _Reading(state.finished, span)
            spans[partition] = span
        return spans

    def _in_flight(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(partition for partition in partitions if partition in self._batch)

    # ------------------------------------------------------------------ the group's side

    def gate_changed(self, gate: Gate) -> None:
        """
        Use the gate of the member's new session.

        The gate is open while the session permits reading. A batch that is planned while the gate is not open reads
        nothing.
        """
        self.gate = gate

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Include these partitions in new batches, and start an interval of reading in each partition."""
        self._stopped.difference_update(partitions)
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None:
                # Only ZooKeeper coordinates queries, so the token is the number of a claim.
                assert isinstance(state.token, int)
                self._intervals[partition] = _Interval(state.position, state.token)
        return _no_wait()

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Exclude these partitions from new batches. Return those of them that the running batch reads."""
        self._stopped.update(partitions)
        return self._in_flight(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until the running batch reads none of these partitions, and end their intervals."""
        while self._in_flight(partitions):
            self._batch_ended.clear()
            await self._batch_ended.wait()
        for partition in partitions:
            self._intervals.pop(partition, None)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions whose claims were lost, because another member may own the partitions already."""
        for partition in partitions:
            self._intervals.pop(partition, None)
            self._stopped.discard(partition)
        self._cluster.drop_overrides(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """
        Start a new interval at ``offset``. Do nothing if the member does not own the partition.

        Another client has committed this offset, or it is the start of a recreated log.
        """
        if partition in self._intervals:
            self._intervals[partition] = _Interval(offset, new_token(), planned=True)

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Make a later call of ``positions`` raise ``error``: the start position of the topic is unknown."""
        self._refused[topic] = error

    def in_progress(self) -> tuple[Work, ...]:
        """
        Return no work, because a batch may take any time.

        If a batch delays other members, the group's leader logs an alarm.
        """
        return ()

    def stalled(self, stall: Stall) -> None:
        """Do nothing, because the watchdog of the event loop itself logs that the loop is blocked."""


def _is_same(reached: Span | None, planned: Span) -> bool:
    return reached is not None and (reached.token, reached.to) == (planned.token, planned.to)


async def _no_wait() -> None:
    """Do nothing. ``assigned`` returns this coroutine, because it has nothing to wait for."""


# The group member of a query's driver.
#
# Only the driver is a member and owns partitions; executors read the ranges that it plans. A batch is planned from the
# partitions owned at that moment, and committed, under the member's fencing, once it is known to be done.


#: How long the first batch waits for the member's assignment, in seconds: other members may have to finish their work
#: first, and partitions that arrive later are read by a later batch.
SETTLE_S = 10.0

#: How often to poll for the assignment, in seconds: the member notifies of claims, but not of an empty assignment.
POLL_S = 0.02

#: How long leaving may take, in seconds: Spark kills a process soon after its SIGTERM.
CLOSE_S = 5.0


class SparkMember:
    """
    The group member of one query. Its methods run on one event loop.

    Args:
        cluster: The brokers, used on that loop.
        config: The group, and the names of this member.
        zookeeper: The ZooKeeper of the group.
        fail_on_commit_error: Whether the query ends if a batch could not be committed.
    """

    def __init__(
        self, cluster: ClusterMetadata, config: GroupConfig, zookeeper: ZooKeeperConfig, *, fail_on_commit_error: bool
    ) -> None:
        #: Counts ``batches_not_committed``, besides the member's own metrics.
        self.metrics = Metrics()
        self._group = config.group
        self._fail_on_commit_error = fail_on_commit_error
        self._subscription = SubscriptionState(config)
        self._handler = BatchHandler(config.group, cluster, self._subscription, self.metrics)
        self._failure: KielGroupsError | None = None
        self._runtime = Runtime()
        process = ProcessContext(config, zookeeper, self.metrics, self._runtime)
        self._member = GroupMember(process, self._handler, self._subscription, round_robin, self._failed, cluster)

    @property
    def member_id(self) -> str | None:
        """The member's id in the group, or None while there is none. It changes after a lost session."""
        return self._member.member_id

    async def start(self, topics: Collection[str]) -> None:
        """
        Join the group, and wait until this member owns all partitions assigned to it, at most ``SETTLE_S`` seconds.

        After that time, log a warning and return.

        Raises:
            GroupConfigError: The group has other settings.
            CoordinationError: ZooKeeper did not answer or refused, or the group has foreign members.
        """
        self._subscription.change_subscription(topics)
        await self._member.start()
        loop = asyncio.get_running_loop()
        patient_until_s = loop.time() + SETTLE_S
        while not (self._member.settled or self._failure) and loop.time() < patient_until_s:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        if not self._member.settled:
            log.warning(
                "group %s: other members have not released all partitions assigned to this query; they follow later",
                self._group,
            )

    def _failed(self, error: KielGroupsError) -> None:
        self._failure = error

    async def next_batch(
        self,
        topics: Collection[str],
        reached: Mapping[TopicPartition, Span] | None,
        known: Mapping[TopicPartition, Span],
    ) -> dict[TopicPartition, Span]:
        """
        End and commit the previous batch, and return the positions from which the next batch may read.

        Args:
            topics: The topics to subscribe to from now on.
            reached: The query's position. It shows whether the previous batch ran. None means that the batch ran.
            known: The query's position, as far as it is known.

        Returns:
            The position of each partition that this member owns, without revoked partitions.

        Raises:
            NoOffsetsError: The start position of a topic is unknown.
            KielGroupsError: The member has stopped for good, or the previous batch could not be committed. If
                ``fail_on_commit_error`` is not set, a retriable failure to commit is only logged.
        """
        if self._failure is not None:
            raise self._failure
        self._member.check_subscription(topics)
        # A query's pattern may match no topic for a while, which subscribe() refuses.
        if self._subscription.change_subscription(topics):
            await self._member.resubscribe()
        unfenced = self._handler.finish(reached)
        await self._commit()
        if unfenced:
            self._report(
                SessionLostError(
                    f"a batch was done after this query had lost {len(unfenced)} of its partitions, first"
                    f" {unfenced[0].topic_partition} (offsets {unfenced[0].start} to {unfenced[0].end}): that is not"
                    " committed, and their present owners read it again"
                )
            )
        return self._handler.positions(known)

    async def _commit(self) -> None:
        if not self._subscription.offsets.has_uncommitted():
            return
        try:
            # A SIGTERM must not cancel a commit in flight: whether it had been stored would be unknown.
            await shielded(self._member.commit_on_session(), f"group {self._group}: a commit")
        except KielGroupsError as error:
            if not error.retriable:
                raise
            self._report(error)

    def _report(self, error: KielGroupsError) -> None:
        """Count an uncommitted batch. Raise the error if ``fail_on_commit_error`` is set. Otherwise, log the error."""
        self.metrics.count("batches_not_committed")
        if self._fail_on_commit_error:
            raise error
        log.error("group %s: %s", self._group, error)

    async def plan(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Span]:
        """
        Start a batch that reads partitions, each up to the end of its span.

        Args:
            wanted: The span of each partition. A span starts at the position that ``next_batch`` has returned.

        Returns:
            The spans that the batch may read, without partitions that were revoked meanwhile. The member keeps these
            partitions until the next call of ``next_batch`` or ``close``, unless it loses its session.
        """
        if self._handler.resume(wanted):
            await self._commit()
        return self._handler.plan(wanted, may_read=self._handler.gate.is_open(self._runtime.boot_time_s()))

    async def restart(
        self, firsts: Mapping[TopicPartition, int], known: Mapping[TopicPartition, Span]
    ) -> dict[TopicPartition, Span]:
        """
        Restart recreated partitions at the first offsets of their new logs, and commit these offsets.

        Args:
            firsts: The first offsets of the new logs.
            known: The query's position, as far as it is known.

        Returns:
            The new position of each partition in ``firsts``, without partitions that were revoked meanwhile.
        """
        self._handler.restart(firsts)
        await self._commit()
        return {each: span for each, span in self._handler.positions(known).items() if each in firsts}

    async def close(self, done: Mapping[TopicPartition, Span]) -> None:
        """
        Leave the group. Before that, commit the last batch if ``done`` shows that the batch is done.

        After ``CLOSE_S`` seconds, close the session without a further commit. The end of the session deletes the claims
        of this member.

        Args:
            done: The end of the last batch, or empty if the batch is not known to be done.
        """
        self._handler.finish(done)
        await self._member.close(CloseLimit(CLOSE_S))
