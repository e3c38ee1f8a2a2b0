"""A connected grouped consumer: its member, fetcher, delivery and commits on one event loop, from connect to close."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from kiel_groups.allocators import Allocator, round_robin
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.calls.client_arguments import check_functions, check_on_bad_record
from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.auto_commit import AutoCommit
from kiel_groups.clients.delivery.delivery_handler import DeliveryHandler
from kiel_groups.clients.delivery.deserializer import Deserializer, OnBadRecord
from kiel_groups.clients.delivery.listener_calls import ListenerCalls, check_listener
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.position_reset import PositionReset, ResetBrokers
from kiel_groups.clients.delivery.record_delivery import RecordDelivery
from kiel_groups.clients.delivery.value_delivery import ValueDelivery
from kiel_groups.clients.delivery.values_in_flight import UNCLAIMED_S
from kiel_groups.clients.fetch.fetcher import Fetcher, Selection
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import check_offset_api, fetch_offsets
from kiel_groups.config import BROKER_V0, BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.listeners import RebalanceListener
from kiel_groups.metrics import Metrics
from kiel_groups.model import Batch, Record, TopicPartition

__all__ = ["ConnectedConsumer", "ConsumerSettings"]

log = logging.getLogger(__name__)

_Taken = TypeVar("_Taken")

#: How long a close waits for what calls returned, in seconds. The consumer cannot tell whether the
#: application is still processing them, and a member should leave its group promptly.
VALUES_PATIENCE_S = 2.0

#: How long a close without an event loop waits for ZooKeeper, in seconds.
ABANDON_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """
    The settings of a grouped consumer.

    Raises:
        ConfigError: A function or the listener has the wrong type.
    """

    brokers: BrokerConfig
    fetching: FetchConfig
    group: GroupConfig
    zookeeper: ZooKeeperConfig
    deserializer: Callable[[bytes], Any] | None = None
    key_deserializer: Callable[[bytes], Any] | None = None
    on_bad_record: OnBadRecord = "raise"
    allocator: Allocator = round_robin
    listener: RebalanceListener | None = None
    metrics: Metrics = field(default_factory=Metrics)
    runtime: Runtime = field(default_factory=Runtime)

    def __post_init__(self) -> None:
        check_functions(deserializer=self.deserializer, key_deserializer=self.key_deserializer)
        check_on_bad_record(self.on_bad_record)
        check_listener(self.listener)


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A call that waits, and what it asks for."""

    call: ConsumeCall
    selection: Selection


def _available(callers: Sequence[_Asking], asking: _Asking) -> Selection | None:
    """
    Return what a call may take now, or None for nothing.

    Newer calls get records first: the callers of older ones may have given up.
    """
    newer = [other.selection.partitions for other in callers[callers.index(asking) + 1 :]]
    excluded: set[TopicPartition] = set()
    for partitions in newer:
        if partitions is None:
            return None
        excluded |= partitions
    return replace(asking.selection, excluded=frozenset(excluded)) if excluded else asking.selection


class ConnectedConsumer:
    """
    The parts of one connected consumer. The object must be constructed on the consumer's event loop.

    The application's calls reach the parts ``records``, ``values`` and ``member`` from here. The member controls the
    delivery through its ``DeliveryHandler``.
    """

    def __init__(self, settings: ConsumerSettings, subscription: SubscriptionState) -> None:
        self._settings = settings
        self._subscription = subscription
        self._over: asyncio.Future[KielGroupsError | None] = asyncio.get_running_loop().create_future()
        #: Automatic commits and the renewal of metadata, until the close.
        self._background: list[asyncio.Task[None]] = []
        #: Calls of ``next_values`` under way, by topic, and of ``next_records``, under None; the newest last.
        self._callers: defaultdict[str | None, list[_Asking]] = defaultdict(list)
        self.cluster = ClusterMetadata(settings.brokers, settings.metrics, broker_source=self._registered_brokers)
        self.fetcher = Fetcher(
            self.cluster,
            settings.fetching,
            settings.metrics,
            reset=self._reset,
            watermark=subscription.set_highwater,
        )
        calls = ListenerCalls(settings.listener, settings.metrics, lambda: subscription.listener)
        deserializer = Deserializer(
            settings.deserializer,
            settings.metrics,
            settings.runtime.boot_time_s,
            key_deserializer=settings.key_deserializer,
            on_bad_record=settings.on_bad_record,
        )
        self.owned = OwnedRecords(self.fetcher, subscription, calls, deserializer, settings.runtime, settings.metrics)
        self.records = RecordDelivery(self.owned)
        self.values = ValueDelivery(self.owned, settings.metrics)
        self.member = GroupMember(
            ProcessContext(settings.group, settings.zookeeper, settings.allocator, settings.metrics, settings.runtime),
            DeliveryHandler(self.owned, self.values, calls, self.cluster, settings.group.group, settings.metrics),
            subscription,
            self.end,
        )
        self._position_reset = PositionReset(
            settings.fetching.auto_offset_reset,
            ResetBrokers.of(self.cluster),
            subscription,
            self.owned,
            self.member,
            settings.metrics,
        )
        self._auto_commit = AutoCommit(settings.group, subscription, self.commit_shielded, settings.metrics)

    async def start(self) -> None:
        """Connect to the brokers and join the group. If either fails, close everything again."""
        try:
            await self.cluster.refresh(self._subscription.topics, "connect")
            if self._settings.group.store == BROKER_V0:
                await check_offset_api(self.cluster, self._settings.group.group)
            await self.member.start()
            # The subscription may have changed while the member joined.
            self.owned.follow_subscription()
        except BaseException:
            await self.member.close()
            self.fetcher.close()
            self.cluster.close()
            raise
        if self._settings.group.autocommit:
            self._background.append(spawn(self._auto_commit.run(), "auto-commit"))
        self._background.append(spawn(self._renew_metadata(), "metadata by age"))

    def subscribe(self, topics: Collection[str], change: Callable[[], bool]) -> bool:
        """
        Replace the subscription, and stop delivering the topics that are not in it any more.

        The caller must then have the member register the new subscription.

        Args:
            topics: The topics of the new subscription; none to unsubscribe.
            change: Changes the subscription's state, and returns whether that changed.

        Returns:
            Whether the subscription changed.

        Raises:
            ConfigError: The member cannot register these topics; nothing changes.
        """
        self.member.check_subscription(topics)
        changed = change()
        self.owned.follow_subscription()
        return changed

    async def close(self, timeout_s: float | None, *, autocommit: bool = True) -> None:
        """
        Wait for the application to finish records in flight, release all partitions, and leave the group.

        Args:
            timeout_s: How long the close may take, whether the application or a server delays it. None: no limit.
            autocommit: Whether the releases commit finished records, if the consumer commits by itself.
        """
        for task in self._background:
            task.cancel()
        self.end(None)
        if not autocommit:
            self._subscription.offsets.stop_autocommit()
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        try:
            async with asyncio.timeout(VALUES_PATIENCE_S if timeout_s is None else min(VALUES_PATIENCE_S, timeout_s)):
                await self.values.all_finished()
        except TimeoutError:
            log.warning(
                "group %s: closing although what a call returned is not finished: it is delivered again",
                self._settings.group.group,
            )
            self.values.drop(None)
        await self.member.close(None if timeout_s is None else max(0.0, timeout_s - (now_s() - began_s)))
        self.owned.bad.close()
        self.fetcher.close()
        self.cluster.close()

    def abandon(self) -> None:
        """Leave the group without an event loop: the session's threads close the session. Give up all partitions."""
        self.owned.end()
        self.member.abandon(ABANDON_S)
        self._subscription.offsets.end(self._subscription.offsets.open_partitions())

    def end(self, error: KielGroupsError | None) -> None:
        """Stop all deliveries. Loops end, or raise ``error`` if an error is given."""
        if not self._over.done():
            self._over.set_result(error)
            self.owned.end()

    async def next_record(self) -> Record | None:
        """
        Wait for the next record, however long it takes. Return None once the consumer is closed.

        Raises:
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        record = await self._take_else_wait(self.records.take, self.records.wait)
        if record is None:
            self._raise_failure()
        return record

    async def next_values(self, topic: str, call: ConsumeCall) -> Batch | None:
        """
        Return values of one topic, or None once the consumer is closed.

        The result is [] if no values came within ``max_wait_ms``, or if the caller's coroutine has called again.

        Raises:
            NoBrokersError: No values came, and ``UNREACHABLE_AFTER`` metadata requests in a row were not answered.
            KielGroupsError: The member stopped for good, or a partition cannot be read.
        """
        most_bytes, timeout_s = self._settings.fetching.max_bytes, self._settings.fetching.max_wait_ms / 1000
        return await self._next(
            _Asking(call, Selection(topic)), timeout_s, lambda _: self.values.take(topic, most_bytes, call), Batch
        )

    async def next_records(
        self,
        call: ConsumeCall,
        partitions: frozenset[TopicPartition] | None,
        most_records: int | None,
        timeout_s: float | None,
    ) -> dict[TopicPartition, list[Record]] | None:
        """
        Return records of these partitions (None: of all), or None once the consumer is closed.

        The result is {} if no records came within ``timeout_s`` (None: no limit), or if the caller's coroutine has
        called again.

        Raises:
            NoBrokersError: As ``next_values``.
            KielGroupsError: As ``next_values``.
        """
        return await self._next(
            _Asking(call, Selection(None, partitions)),
            timeout_s,
            lambda selection: self.values.take_records(selection, most_records, call),
            dict,
        )

    async def _next(
        self,
        asking: _Asking,
        timeout_s: float | None,
        take: Callable[[Selection], _Taken],
        nothing: Callable[[], _Taken],
    ) -> _Taken | None:
        """Call ``take`` until it returns something, or the time is up; return None once the consumer is closed."""
        loop, call, topic = asyncio.get_running_loop(), asking.call, asking.selection.topic
        callers = self._callers[topic]
        give_up_s = float("inf") if timeout_s is None else loop.time() + timeout_s

        def take_now() -> _Taken | None:
            selection = None if call.superseded else _available(callers, asking)
            taken = nothing() if selection is None else take(selection)
            if taken or call.superseded:
                return taken
            if loop.time() < give_up_s:
                return None
            if self.cluster.unreachable is not None:
                raise self.cluster.unreachable
            return taken

        def patience_s() -> float | None:
            remaining_s = None if timeout_s is None else give_up_s - loop.time()
            if not self.values.redeliver_unclaimed(topic):
                return remaining_s
            return UNCLAIMED_S if remaining_s is None else min(remaining_s, UNCLAIMED_S)

        callers.append(asking)
        try:
            # A buffered error is raised without a wait. A caller that retries in a loop must not starve the event loop.
            await asyncio.sleep(0)
            taken = await self._take_else_wait(take_now, partial(self.owned.wait, asking.selection), patience_s)
        finally:
            callers.remove(asking)
        if taken is None:
            self._raise_failure()
        return taken

    async def _take_else_wait(
        self,
        take: Callable[[], _Taken | None],
        wait: Callable[[], Coroutine[Any, Any, None]],
        patience_s: Callable[[], float | None] = lambda: None,
    ) -> _Taken | None:
        """
        Call ``take`` until it does not return None, and return its result; return None once the consumer has ended.

        Between two tries, wait until ``wait`` returns, the consumer ends, or ``patience_s()`` seconds have passed.
        """
        while not self._over.done():
            taken = take()
            if taken is not None:
                return taken
            timeout_s = patience_s()
            waiting = asyncio.ensure_future(wait())
            either: set[asyncio.Future[Any]] = {waiting, self._over}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=timeout_s)
            finally:
                waiting.cancel()
        return None

    def _raise_failure(self) -> None:
        error = self._over.result()
        if error is not None:
            raise error

    # ------------------------------------------------------------------ offsets

    def finish_topic(self, topic: str) -> None:
        """Finish the topic's values whose coroutine has asked again or ended. With autocommit, commit them soon."""
        if self.values.finish([topic], ()):
            self._auto_commit.commit_soon()

    def finish_records(self) -> None:
        """Finish the records of ``next_records`` whose coroutine has asked again or ended."""
        self.values.finish([None], ())

    def commit_shielded(self, metadata: str = "") -> asyncio.Future[frozenset[TopicPartition]]:
        """
        Commit finished records. The future raises the errors of ``GroupMember.commit_on_session``.

        The commit continues even if its caller is cancelled. If the commit were interrupted, the next release would
        mistake the stored offset for that of another writer.
        """
        return asyncio.shield(spawn(self.member.commit_on_session(metadata), "commit"))

    def commit_chosen_shielded(
        self, offsets: Mapping[TopicPartition, int]
    ) -> asyncio.Future[frozenset[TopicPartition]]:
        """Commit offsets that the application chose. The future raises the errors of ``GroupMember.commit_chosen``."""
        return asyncio.shield(spawn(self.member.commit_chosen(offsets), "commit of chosen offsets"))

    async def stored_offsets(
        self, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, int | None]:
        """
        Read the group's offsets from its store; None stands for all partitions that have an offset.

        Returns:
            The offset of each partition that has one, or None where the stored data is no offset.

        Raises:
            SessionLostError: There is no session at the moment, and the offsets are read from ZooKeeper.
            NoOffsetsError, BrokerError, ProtocolError: As ``fetch_offsets``, if brokers store the offsets.
        """
        if partitions is None:
            partitions = await self.member.partitions_with_offsets()
        if self._settings.group.store == BROKER_V0:
            return await fetch_offsets(self.cluster, self._settings.group.group, partitions) if partitions else {}
        return await self.member.stored_offsets(partitions)

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
            await self.cluster.refresh_when_old(lambda: self._subscription.topics)

    async def _reset(self, partition: TopicPartition, position: int) -> int | None:
        return await self._position_reset(partition, position)

    async def _registered_brokers(self) -> list[HostPort]:
        return await self.member.brokers()
