"""A grouped consumer at work: its member, fetcher and committer on one event loop, from connecting to closing."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kiel_groups.allocators import Allocator, round_robin
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.in_flight import UNCLAIMED_S
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.position_reset import PositionReset
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.fetch.fetcher import Fetcher
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import log_range, policy_offsets
from kiel_groups.clients.net.offset_requests import check_offset_api, commit_offsets, fetch_offsets
from kiel_groups.config import BROKER_V0, BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.partition_handler import LogOffsets, Work
from kiel_groups.errors import KielGroupsError, NoOffsetsError, SessionLostError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener, Stall
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition
from kiel_groups.wire.api.list_offsets_v0 import EARLIEST, LATEST

__all__ = ["ConnectedConsumer", "ConsumerSettings"]

log = logging.getLogger(__name__)

#: How long a close waits for values that consume() returned, in seconds. Whether somebody is still busy with them
#: cannot be seen, and a group is to be left promptly.
VALUES_PATIENCE_S = 2.0

#: How long to wait for ZooKeeper where no event loop is left to wait on, in seconds.
ABANDON_S = 2.0

_TIMES = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything that a grouped consumer was constructed with."""

    brokers: BrokerConfig
    fetching: FetchConfig
    group: GroupConfig
    zookeeper: ZooKeeperConfig
    deserializer: Callable[[bytes], Any] | None = None
    allocator: Allocator = round_robin
    listener: RebalanceListener | None = None
    metrics: Metrics = field(default_factory=Metrics)


class ConnectedConsumer:
    """
    The parts of one connected consumer; made on its event loop.

    It is the PartitionHandler of its member: what the group decides goes to the fetcher and to what is handed out.
    """

    def __init__(self, settings: ConsumerSettings, subscription: SubscriptionState) -> None:
        self._settings = settings
        self._subscription = subscription
        self._over: asyncio.Future[KielGroupsError | None] = asyncio.get_running_loop().create_future()
        #: What goes on in the background until the close.
        self._background: list[asyncio.Task[None]] = []
        #: Calls for values under way, by topic, the newest one last.
        self._callers: defaultdict[str, list[ConsumeCall]] = defaultdict(list)
        self._commit_now = asyncio.Event()
        self._cluster = ClusterMetadata(settings.brokers, settings.metrics, broker_source=self._registered_brokers)
        self.fetcher = Fetcher(self._cluster, settings.fetching, settings.metrics, reset=self._reset)
        self.member = GroupMember(
            settings.group,
            settings.zookeeper,
            self,
            subscription,
            settings.allocator,
            settings.metrics,
            self._failed,
        )
        self._calls = ListenerCalls(settings.listener, settings.metrics)
        self.handing_out = RecordDelivery(
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
            subscription,
            self.handing_out,
            self.member,
            settings.metrics,
        )

    async def start(self) -> None:
        """Reach the brokers, join the group; leaves nothing behind where one of them fails."""
        try:
            await self._cluster.refresh(self._subscription.subscription, "connect")
            if self._settings.group.store == BROKER_V0:
                await check_offset_api(self._cluster, self._settings.group.group)
            await self.member.start()
            # What was subscribed to while it joined.
            self.handing_out.follow_subscription()
        except BaseException:
            await self.member.close()
            self.fetcher.close()
            self._cluster.close()
            raise
        if self._settings.group.autocommit:
            self._background.append(spawn(self._commit_regularly(), "auto-commit"))
        self._background.append(spawn(self._renew_metadata(), "metadata by age"))

    def subscribe(self, topics: Collection[str]) -> bool:
        """
        Replace the subscription, of which the group is to be told; nothing more is delivered of what left it.

        Returns:
            Whether it changed.

        Raises:
            ConfigError: The group cannot be told of these topics; nothing changes.
        """
        self.member.check_subscription(topics)
        changed = self._subscription.subscribe(topics)
        self.handing_out.follow_subscription()
        return changed

    async def close(self, timeout_s: float | None) -> None:
        """Let the application finish, hand everything back, leave."""
        for task in self._background:
            task.cancel()
        self.end(None)
        try:
            async with asyncio.timeout(VALUES_PATIENCE_S):
                await self.handing_out.topics_finished()
        except TimeoutError:
            log.warning("values that consume() returned are not finished: they are delivered again")
            self.handing_out.put_down_taken(None)
        await self.member.close(timeout_s)
        self.fetcher.close()
        self._cluster.close()

    def abandon(self) -> None:
        """Leave without an event loop: the session is closed by its threads, and nothing is held any more."""
        self.handing_out.end()
        self.member.abandon(ABANDON_S)
        self._subscription.unassign(self._subscription.assigned_partitions())

    def end(self, error: KielGroupsError | None) -> None:
        """No more records: loops end, or raise this error."""
        if not self._over.done():
            self._over.set_result(error)
            self.handing_out.end()

    def _failed(self, error: KielGroupsError) -> None:
        self.end(error)

    async def next_record(self) -> Record | None:
        """
        The next record, however long it takes; None at the end.

        Raises:
            KielGroupsError: What stopped the member for good, or what its fetcher cannot get past.
        """
        while not self._over.done():
            record = self.handing_out.take()
            if record is not None:
                return record
            await self._wait(None)
        self.handing_out.finish()
        self._raise_failure()
        return None

    async def next_values(self, topic: str, taker: ConsumeCall) -> Batch | None:
        """
        Values of one topic, [] where none came within ``max_wait_ms`` or nobody waits for them; None at the end.

        Raises:
            NoBrokersError: None came, and ``UNREACHABLE_AFTER`` metadata requests in a row were not answered.
            KielGroupsError: What stopped the member for good, or what its fetcher cannot get past.
        """
        callers = self._callers[topic]
        callers.append(taker)
        try:
            values = await self._take_values(topic, taker, callers)
        finally:
            callers.remove(taker)
        if values is None:
            self._raise_failure()
        return values

    async def _take_values(self, topic: str, taker: ConsumeCall, callers: Sequence[ConsumeCall]) -> Batch | None:
        loop = asyncio.get_running_loop()
        fetching = self._settings.fetching
        give_up_s = loop.time() + fetching.max_wait_ms / 1000
        # An error that stands first is raised without waiting; whoever loops over it must not starve the event loop.
        await asyncio.sleep(0)
        while not self._over.done():
            # The newest call takes first: nobody may be waiting for an older one any more.
            newest = callers[-1] is taker and not taker.passed
            values = self.handing_out.take_topic(topic, fetching.max_bytes, taker) if newest else Batch()
            remaining_s = give_up_s - loop.time()
            if values or taker.passed or remaining_s <= 0:
                if not values and not taker.passed and (unreachable := self._cluster.unreachable) is not None:
                    raise unreachable
                return values
            unclaimed = self.handing_out.give_up_unclaimed(topic)
            await self._wait(topic, min(remaining_s, UNCLAIMED_S) if unclaimed else remaining_s)
        return None

    async def _wait(self, topic: str | None, timeout_s: float | None = None) -> None:
        """Wait until there may be something to hand out, or nothing ever again."""
        waiting = asyncio.ensure_future(self.handing_out.wait(topic))
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
        """Who asks for a topic is done with what it had of it: with autocommit that is committed, in the background."""
        if self.handing_out.finish_topics([topic], ()):
            self._commit_now.set()

    def commit_shielded(self, metadata: str = "") -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit what is finished. Errors as ``GroupMember.commit_on_session``.

        Once begun it goes on, although who waits for it be cancelled: the release that follows would take an offset
        that is on its way for somebody else's doing.
        """
        return asyncio.shield(spawn(self.member.commit_on_session(metadata), "commit"))

    async def commit_values(self, metadata: str) -> None:
        """Commit what is finished; a failure is logged and counted."""
        try:
            await self.commit_shielded(metadata)
        except KielGroupsError as error:
            log.error("the offsets of group %s were not committed: %s", self._settings.group.group, error)
            self._settings.metrics.count("commits_failed")

    async def _commit_regularly(self) -> None:
        interval_s = self._settings.group.auto_commit_interval_ms / 1000
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._commit_now.wait()
            self._commit_now.clear()
            try:
                if self._subscription.all_consumed_offsets():
                    await self.commit_shielded()
            except SessionLostError as error:
                log.warning("nothing was committed: %s", error)
                self._settings.metrics.count("commits_failed")
            except KielGroupsError as error:
                log.error("an automatic commit failed: %s", error)
                self._settings.metrics.count("commits_failed")
            except Exception:
                log.exception("an automatic commit failed; again in %.1f s", interval_s)
                self._settings.metrics.count("commits_failed")

    async def _renew_metadata(self) -> None:
        while True:
            # Also where this member owns nothing: its calls of consume() are to notice that all brokers are gone.
            await self._cluster.renew(lambda: self._subscription.subscription)

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self._position_reset(partition, position)

    async def _registered_brokers(self) -> list[HostPort]:
        return await self.member.brokers()

    # ------------------------------------------------------------------ as the member's PartitionHandler

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up first ("earliest") or next ("latest") offsets of partitions, as far as leaders tell them."""
        return await policy_offsets(self._cluster, partitions, policy)

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Committed offsets, as the brokers read them."""
        return await fetch_offsets(self._cluster, self._settings.group.group, partitions)

    def refused(self, topic: str, error: NoOffsetsError) -> None:
        """Raise this to who asks for the topic next."""
        self.handing_out.refused(topic, error)

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Have the brokers store next offsets."""
        await commit_offsets(self._cluster, self._settings.metrics, self._settings.group.group, offsets, metadata)

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Hand these out from now on."""
        return self.handing_out.assigned(partitions)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Hand out no more of these; returns those with a record in hand."""
        return self.handing_out.stop(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Ends when the application has finished what it has of these."""
        await self.handing_out.drained(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop everything of these at once."""
        self.handing_out.lost(partitions)
        self._cluster.doubt(partitions)

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Hand out from another offset."""
        self.handing_out.moved(partition, offset)

    def leaders(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Fetch from these leaders, whatever brokers say."""
        self._cluster.believe(leaders, brokers)

    def in_progress(self) -> list[Work]:
        """What the application is busy with; for any thread."""
        return self.handing_out.in_progress()

    def stalled(self, stall: Stall) -> None:
        """Tell the listener that something does not get on; for any thread."""
        self._calls.stalled(stall)
