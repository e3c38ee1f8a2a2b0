"""A connected grouped consumer: its member, fetcher, delivery and commits on one event loop, from connect to close."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kiel_groups.allocators import Allocator, round_robin
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.auto_commit import AutoCommit
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.position_reset import PositionReset
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.delivery.values_in_flight import UNCLAIMED_S
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import log_range, policy_offsets
from kiel_groups.clients.net.offset_requests import check_offset_api, commit_offsets, fetch_offsets
from kiel_groups.config import BROKER_V0, BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.partition_handler import LogOffsets, Work
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import KielGroupsError, NoOffsetsError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener, Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition

__all__ = ["ConnectedConsumer", "ConsumerSettings"]

log = logging.getLogger(__name__)

#: How long a close waits for values that consume() returned, in seconds. The consumer cannot tell whether the
#: application is still processing them, and a member should leave its group promptly.
VALUES_PATIENCE_S = 2.0

#: How long a close without an event loop waits for ZooKeeper, in seconds.
ABANDON_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings of a grouped consumer."""

    brokers: BrokerConfig
    fetching: FetchConfig
    group: GroupConfig
    zookeeper: ZooKeeperConfig
    deserializer: Callable[[bytes], Any] | None = None
    allocator: Allocator = round_robin
    listener: RebalanceListener | None = None
    metrics: Metrics = field(default_factory=Metrics)
    runtime: Runtime = field(default_factory=Runtime)


class ConnectedConsumer:
    """
    The parts of one connected consumer. The object must be constructed on the consumer's event loop.

    It is the PartitionHandler of its member: it passes the group's decisions on to the fetcher and the delivery.
    """

    def __init__(self, settings: ConsumerSettings, subscription: SubscriptionState) -> None:
        self._settings = settings
        self._subscription = subscription
        self._over: asyncio.Future[KielGroupsError | None] = asyncio.get_running_loop().create_future()
        #: Automatic commits and the renewal of metadata, until the close.
        self._background: list[asyncio.Task[None]] = []
        #: Calls of ``next_values`` under way, by topic, the newest last.
        self._callers: defaultdict[str, list[ConsumeCall]] = defaultdict(list)
        self.member = GroupMember(
            ProcessContext(settings.group, settings.zookeeper, settings.allocator, settings.metrics, settings.runtime),
            self,
            subscription,
            self.end,
        )
        self._cluster = ClusterMetadata(settings.brokers, settings.metrics, broker_source=self.member.brokers)
        self.fetcher = Fetcher(self._cluster, settings.fetching, settings.metrics, reset=self._reset)
        self._calls = ListenerCalls(settings.listener, settings.metrics)
        self.delivery = RecordDelivery(
            self.fetcher,
            subscription,
            self._calls,
            self.member,
            settings.deserializer,
            settings.metrics,
        )
        self._position_reset = PositionReset(
            settings.fetching.auto_offset_reset,
            self._cluster,
            partial(log_range, self._cluster),
            self.delivery,
            self.member,
            settings.metrics,
        )
        self._auto_commit = AutoCommit(settings.group, subscription, self.commit_shielded, settings.metrics)

    async def start(self) -> None:
        """Connect to the brokers and join the group. If either fails, close everything again."""
        try:
            await self._cluster.refresh(self._subscription.topics, "connect")
            if self._settings.group.store == BROKER_V0:
                await check_offset_api(self._cluster, self._settings.group.group)
            await self.member.start()
            # The subscription may have changed while the member joined.
            self.delivery.follow_subscription()
        except BaseException:
            await self.member.close()
            self.fetcher.close()
            self._cluster.close()
            raise
        if self._settings.group.autocommit:
            self._background.append(spawn(self._auto_commit.run(), "auto-commit"))
        self._background.append(spawn(self._renew_metadata(), "metadata by age"))

    def subscribe(self, topics: Collection[str]) -> bool:
        """
        Replace the subscription, and stop delivering the topics that are not in it any more.

        The caller must then have the member register the new subscription.

        Returns:
            Whether the subscription changed.

        Raises:
            ConfigError: The member cannot register these topics; nothing changes.
        """
        self.member.check_subscription(topics)
        changed = self._subscription.subscribe(topics)
        self.delivery.follow_subscription()
        return changed

    async def close(self, timeout_s: float | None) -> None:
        """Wait for the application to finish records in flight, release all partitions, and leave the group."""
        for task in self._background:
            task.cancel()
        self.end(None)
        try:
            async with asyncio.timeout(VALUES_PATIENCE_S):
                await self.delivery.topics_finished()
        except TimeoutError:
            log.warning(
                "group %s: closing although values that consume() returned are not finished: they are delivered again",
                self._settings.group.group,
            )
            self.delivery.drop_values(None)
        await self.member.close(timeout_s)
        self.fetcher.close()
        self._cluster.close()

    def abandon(self) -> None:
        """Leave the group without an event loop: the session's threads close the session. Give up all partitions."""
        self.delivery.end()
        self.member.abandon(ABANDON_S)
        self._subscription.offsets.end(self._subscription.offsets.open_partitions())

    def end(self, error: KielGroupsError | None) -> None:
        """Stop all deliveries. Loops end, or raise ``error`` if an error is given."""
        if not self._over.done():
            self._over.set_result(error)
            self.delivery.end()

    async def next_record(self) -> Record | None:
        """
        Wait for the next record, however long it takes. Return None once the consumer is closed.

        Raises:
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        while not self._over.done():
            record = self.delivery.take()
            if record is not None:
                return record
            await self._wait(None)
        self.delivery.finish()
        self._raise_failure()
        return None

    async def next_values(self, topic: str, call: ConsumeCall) -> Batch | None:
        """
        Return values of one topic, or None once the consumer is closed.

        The result is [] if no values came within ``max_wait_ms``, or if the caller's coroutine has called again.

        Raises:
            NoBrokersError: No values came, and ``UNREACHABLE_AFTER`` metadata requests in a row were not answered.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        callers = self._callers[topic]
        callers.append(call)
        try:
            values = await self._take_values(topic, call, callers)
        finally:
            callers.remove(call)
        if values is None:
            self._raise_failure()
        return values

    async def _take_values(self, topic: str, call: ConsumeCall, callers: Sequence[ConsumeCall]) -> Batch | None:
        loop = asyncio.get_running_loop()
        fetching = self._settings.fetching
        give_up_s = loop.time() + fetching.max_wait_ms / 1000
        # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
        await asyncio.sleep(0)
        while not self._over.done():
            # Only the newest call receives values: the callers of older ones may have given up.
            newest = callers[-1] is call and not call.superseded
            values = self.delivery.take_topic(topic, fetching.max_bytes, call) if newest else Batch()
            remaining_s = give_up_s - loop.time()
            if values or call.superseded or remaining_s <= 0:
                if not values and not call.superseded and (unreachable := self._cluster.unreachable) is not None:
                    raise unreachable
                return values
            unclaimed = self.delivery.redeliver_unclaimed(topic)
            await self._wait(topic, min(remaining_s, UNCLAIMED_S) if unclaimed else remaining_s)
        return None

    async def _wait(self, topic: str | None, timeout_s: float | None = None) -> None:
        """Wait until there may be records to deliver, the consumer has ended, or ``timeout_s`` seconds have passed."""
        waiting = asyncio.ensure_future(self.delivery.wait(topic))
        either: set[asyncio.Future[Any]] = {waiting, self._over}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
        finally:
            waiting.cancel()

    def _raise_failure(self) -> None:
        error = self._over.result()
        if error is not None:
            raise error

    # ------------------------------------------------------------------ offsets

    def finish_topic(self, topic: str) -> None:
        """Finish the topic's values whose coroutine has asked again or ended. With autocommit, commit them soon."""
        if self.delivery.finish_topics([topic], ()):
            self._auto_commit.commit_soon()

    def commit_shielded(self, metadata: str = "") -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit finished records. The future raises the errors of ``GroupMember.commit_on_session``.

        The commit continues even if its caller is cancelled. If the commit were interrupted, the next release would
        mistake the stored offset for that of another writer.
        """
        return asyncio.shield(spawn(self.member.commit_on_session(metadata), "commit"))

    async def commit_values(self, metadata: str) -> None:
        """Commit finished values; log and count a failure."""
        try:
            await self.commit_shielded(metadata)
        except KielGroupsError as error:
            log.error("the offsets of group %s were not committed: %s", self._settings.group.group, error)
            self._settings.metrics.count("commits_failed")

    async def _renew_metadata(self) -> None:
        while True:
            # Needed even if this member owns no partition: its calls of consume() must notice that no broker answers.
            await self._cluster.refresh_when_old(lambda: self._subscription.topics)

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self._position_reset(partition, position)

    # ------------------------------------------------------------------ as the member's PartitionHandler

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up the first ("earliest") or next ("latest") offsets of partitions, as far as leaders answer."""
        return await policy_offsets(self._cluster, partitions, policy)

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Fetch committed offsets from the brokers."""
        return await fetch_offsets(self._cluster, self._settings.group.group, partitions)

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Raise ``error`` at the application's next request for the topic, whose start position is unknown."""
        self.delivery.start_unknown(topic, error)

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Have the brokers store next offsets."""
        await commit_offsets(self._cluster, self._settings.metrics, self._settings.group.group, offsets, metadata)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Run the listener's assigned hook, then fetch and deliver these partitions."""
        return self.delivery.assigned(partitions)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions, and return the partitions with records in flight."""
        return self.delivery.stop(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until these partitions have no records in flight, then notify the listener of the revocation."""
        await self.delivery.drained(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the buffered records of these partitions, stop counting those in flight, and notify the listener."""
        self.delivery.lost(partitions)
        self._cluster.drop_overrides(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Resume at ``offset`` once the assigned hook has ended. Stop counting the partition's records in flight."""
        self.delivery.offset_changed(partition, offset)

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Fetch from the leaders that ZooKeeper names, even if brokers name others."""
        self._cluster.override_leaders(leaders, brokers)

    def in_progress(self) -> list[Work]:
        """Return the work that the application is busy with. Safe on any thread."""
        return self.delivery.in_progress()

    def stalled(self, stall: Stall) -> None:
        """Notify the listener of a stall, on the calling thread."""
        self._calls.stalled(stall)
