"""Run a consumer's member in a group that brokers coordinate. On ZooKeeper, ``GroupMember`` has this role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from kiel_groups.allocators.assignors import Assignor
from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.config import HostPort
from kiel_groups.errors import CommitFailedError, KielGroupsError, SessionLostError
from kiel_groups.group.member_state import GroupRequest
from kiel_groups.group.partition_offsets import PendingReset
from kiel_groups.group.subscription import Subscription, SubscriptionState
from kiel_groups.members.brokers.assignment_planner import TopicSource
from kiel_groups.members.brokers.consumer_hooks import ChosenStarts, ConsumerHooks
from kiel_groups.members.brokers.coordinator import BrokerCoordinator
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.brokers.hooks import CoordinatedContext
from kiel_groups.members.brokers.member import CoordinatedMember
from kiel_groups.members.brokers.renewed_topics import RenewedTopics
from kiel_groups.members.brokers.request_failures import reported
from kiel_groups.members.brokers.start_positions import StartPositions
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.members.topic_matcher import RETRY_S
from kiel_groups.model import TopicPartition
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribeGroupsRequest
from kiel_groups.wording import some
from kiel_groups.zookeeper.tasks import CloseLimit, TaskSet
from kiel_groups.zookeeper.watchdog import Watchdog, caught_up

log = logging.getLogger(__name__)


#: Sends a request to the present coordinator.
Send: TypeAlias = Callable[[DescribeGroupsRequest], Awaitable[tuple[DescribedGroup, ...]]]

#: The state of a group whose members all have their assignments.
_STABLE = "Stable"


async def owner_words(group: str, member_id: str | None, partition: TopicPartition, send: Send) -> str:
    """Return the end of an error text: which member owns the partition instead of this member, and what to do."""
    owner = await _owner(group, member_id, partition, send)
    if owner is None:
        words = "it is assigned, and its start is not known; wait for on_partitions_assigned"
        return f"this member, {member_id}, yet: {words}"
    return f"this member, {member_id}, but {owner}; its owner commits it"


async def _owner(group: str, member_id: str | None, partition: TopicPartition, send: Send) -> str | None:
    """Return the owner of a partition as a phrase, such as "by no member", or None if this member is the owner."""
    try:
        (described,) = await send(DescribeGroupsRequest((group,)))
        if described.error != NO_ERROR:
            return f"by an unknown one ({described.error})"
        if described.state != _STABLE:
            return f"by an unknown one (the group is in the state {described.state})"
        for member in described.members:
            assignment = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}")
            if partition.partition not in assignment.partitions.get(partition.topic, ()):
                continue
            if member.member_id == member_id:
                return None
            return f"by {member.member_id}"
    except KielGroupsError as error:
        return f"by an unknown one ({error})"
    return "by no member"


class ConsumerMember:
    """
    The membership of one consumer in a group that brokers coordinate, from ``start`` to ``close``.

    Args:
        context: The member's settings, transport and runtime.
        handler: The consumer.
        subscription: The topics that the application has subscribed to, and the offsets of the member's partitions.
        topics: The topics of the cluster.
        assignors: The assignors that the member offers, the preferred assignor first.
        on_failure: Called with the error of a member that stops for good.
    """

    def __init__(
        self,
        context: CoordinatedContext,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        topics: TopicSource,
        assignors: Sequence[Assignor],
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._context = context
        self._handler = handler
        self._subscription = subscription
        self._tracker = subscription.offsets
        self._topics = topics
        self._tasks = TaskSet(self._task_failed)
        self._on_failure = on_failure
        self._hooks = ConsumerHooks(context, handler, subscription, topics, assignors, self._tasks)
        self._member = CoordinatedMember(
            context.group,
            context.timing.find_timeout_ms,
            context.metrics,
            context.runtime,
            partial(BrokerCoordinator, context, self._hooks),
            self._hooks,
            on_failure,
        )
        self._offsets = CoordinatorOffsets(context, self._member, self._tracker, topics.seen)
        group, metrics = context.group, context.metrics
        self._owned = OwnedOffsets(group.group, handler, self._tracker, metrics, self._offsets, self._owner_words)
        self._starts = ChosenStarts(group.group, self._offsets, context.timing.find_timeout_ms / 1000)
        self._renewed = RenewedTopics(group.group, handler, self._tracker, self._tasks, metrics, topics, self._offsets)
        self._renewed.on_recreated = lambda topic, number: self._tasks.start(
            self._owned.restart(topic, number, self._renewed.unless_recreated)
        )
        starts = StartPositions(group, handler, self._offsets, metrics, topics)
        self._hooks.attach(starts, self._starts, self._owned, self._renewed)
        self._loop = home_loop()
        self._watchdog: Watchdog | None = None
        self._has_started = False

    # ------------------------------------------------------------------ the membership

    async def start(self) -> None:
        """
        Join the group if the application has subscribed to topics or to a pattern. Otherwise, ``resubscribe`` joins
        later.

        Raises:
            NoBrokersError: No broker has named the coordinator in time.
            GroupConfigError: The members have no assignor in common.
            ConfigError: The coordinator refuses the session timeout or the group's name.
            AllocatorError: This member leads, and its assignor has failed.
            BrokerError: The coordinator refuses the member for another reason, such as missing rights.
        """
        self._watch()
        self._tasks.start(self._follow_topics())
        self._tasks.start(self._follow_pattern())
        self._tasks.start(self._refresh_offsets())
        self._tasks.start(self._renewed.look_regularly(self._context.timing.metadata_max_age_ms / 1000))
        if self._subscription.wanted != Subscription():
            await self._join()

    async def _join(self) -> None:
        self._has_started = True
        self._member.request_rejoin()
        await self._member.ensure_active()
        # The subscription may have changed while the member joined.
        while self._hooks.offered != self._subscription.topics:
            self._member.request_rejoin()
            await self._member.ensure_active()

    def check_subscription(self, topics: Collection[str]) -> None:
        """Accept any topics: brokers set no limit that a member could check."""

    async def resubscribe(self) -> None:
        """
        Join with the present subscription. The errors are those of ``start``. Do nothing if there was never a
        subscription.

        A member that has partitions joins in the background. It first revokes its partitions, and the caller of this
        method may be processing their records.
        """
        if self._member.holds_assignment:
            self._member.request_rejoin()
        elif self._has_started or self._subscription.wanted != Subscription():
            await self._join()

    @property
    def member_id(self) -> str | None:
        """The coordinator's id of this member, or None before the first join."""
        token = self._member.token
        return token.member_id if token else None

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""
        return self._member.leads

    @property
    def settled(self) -> bool:
        """Whether the member owns exactly the partitions of its assignment in the present generation."""
        return not self._member.need_rejoin and self._hooks.settled

    async def brokers(self) -> list[HostPort]:
        """Return an empty list: only a member on ZooKeeper learns the addresses of further brokers."""
        return []

    async def close(self, limit: CloseLimit | None = None) -> None:
        """Drain and commit all partitions, and leave the group; see ``GroupMember.close``."""
        try:
            await self._member.close(limit)
        finally:
            if self._watchdog is not None:
                self._watchdog.stop()
            cancelled = self._tasks.cancel()
        await cancelled

    def abandon(self, timeout_s: float) -> None:
        """Leave the group without an event loop and without a commit. Wait at most ``timeout_s`` for the request."""
        self._member.abandon(timeout_s)
        if self._watchdog is not None:
            self._watchdog.stop()

    # ------------------------------------------------------------------ offsets

    async def commit_on_session(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the offsets of all finished records, with ``metadata`` as their text.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: There is no membership at the moment, or its lease is over.
            CommitFailedError: The coordinator has refused an offset, or has not confirmed it in time.
        """
        group = self._context.group.group
        if self._member.token is None:
            raise SessionLostError(f"group {group}: no membership to commit with at the moment")
        due = self._tracker.due()
        stored = await self._owned.commit(metadata)
        if left := self._tracker.not_stored(due, stored):
            raise CommitFailedError(
                f"group {group}: commit(): {some(left)} not stored: the coordinator has refused it, as the log says"
                + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        return stored

    async def commit_chosen(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store next offsets that the application chose. The errors are those of ``OwnedOffsets.commit_chosen``. Return
        the partitions.

        With the policy ``none``, an assigned partition without an offset of the group starts at the offset stored here.
        Such start offsets are stored after the other offsets, so a failure may leave some offsets stored.
        """
        starts = self._starts.among(offsets)
        others = {partition: offset for partition, offset in offsets.items() if partition not in starts}
        stored = await self._owned.commit_chosen(others) if others else frozenset()
        return stored | await self._starts.commit(starts) if starts else stored

    async def stored_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """
        Read the group's offsets from its coordinator, also of partitions that this member does not own.

        The result lacks the partitions without an offset.

        Raises:
            NoOffsetsError: The coordinator refuses to return the offsets.
            BrokerError: The coordinator has not answered in several tries.
        """
        return dict(await self._offsets.fetch(partitions))

    async def partitions_with_offsets(self) -> list[TopicPartition]:
        """
        Return all partitions of the cluster, because no request lists the partitions in which a group has offsets.

        Raises:
            NoBrokersError: No broker has listed the topics.
        """
        names = await self._topics.all_topics()
        return [TopicPartition(name, n) for name in sorted(names) for n in self._topics.known_partitions(name) or ()]

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """Store the position that a reset chose; see ``OwnedOffsets.store_reset``."""
        return await self._owned.store_reset(partition, reset)

    async def confirm_leaders(self) -> None:
        """
        Ask another broker for the leaders, because a deposed leader may not know yet that it was deposed.

        Also find out whether topics were created again, because the log of a recreated topic may lack the position,
        too.
        """
        await self._renewed.look_at({each.topic for each in self._tracker.open_partitions()})

    async def _owner_words(self, partition: TopicPartition) -> str:
        timeout_s = self._context.timing.find_timeout_ms / 1000
        return await owner_words(
            self._context.group.group,
            self.member_id,
            partition,
            lambda request: self._member.send(GroupRequest.FETCH, self._context.aside(request, timeout_s)),
        )

    async def _refresh_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._context.timing.offset_refresh_ms / 1000)
            try:
                await self._owned.renew(lambda: self._hooks.open_partitions)
            except KielGroupsError as error:
                log.info("group %s: stored offsets were not renewed: %s", self._context.group.group, error)

    # ------------------------------------------------------------------ changes of topics

    async def _follow_topics(self) -> None:
        """While this member leads, rebalance when partitions are added, or missing topics are created."""
        interval_s = self._context.timing.metadata_max_age_ms / 1000
        while True:
            await self._hooks.planner.changed(interval_s)
            if self._member.leads:
                self._member.request_rejoin()
            else:
                self._hooks.planner.forget()

    async def _follow_pattern(self) -> None:
        """
        Join again when the topics that match the application's pattern have changed.

        Compare the topics again when the metadata is old, or shortly after an attempt, such as that of a join, failed.
        """
        age_s, uncompared = self._context.timing.metadata_max_age_ms / 1000, self._hooks.uncompared
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(age_s):
                    await uncompared.wait()
                await asyncio.sleep(min(age_s, RETRY_S))
            try:
                changed = await self._hooks.match_pattern()
            except KielGroupsError as error:
                log.info("group %s: topics are not compared with the pattern: %s", self._context.group.group, error)
                continue
            if changed and self._has_started:
                self._member.request_rejoin()

    # ------------------------------------------------------------------ the watchdog

    def _watch(self) -> None:
        context, handler = self._context, self._handler
        self._watchdog = Watchdog(
            context.group, handler.in_progress, handler.stalled, self._stalled, context.metrics, context.runtime
        )
        self._watchdog.start()

    def _stalled(self, reason: str) -> None:
        """Leave the group because the watchdog's limit is reached. The watchdog's thread calls this method."""
        self._member.give_up()
        # If the loop is closed, the member does not exist any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin_again, reason)

    def _begin_again(self, reason: str) -> None:
        log.warning("group %s: the membership was given up: %s", self._context.group.group, reason)
        self._tasks.start(self._join_after_stall())

    async def _join_after_stall(self) -> None:
        """Join again once the application makes progress. A stalled application would not process new partitions."""
        stalled = self._handler.in_progress()
        self._member.given_up()
        await caught_up(self._handler.in_progress, stalled)
        self._watch()
        if self._has_started:
            self._member.request_rejoin()

    def _task_failed(self, error: BaseException) -> None:
        trace = None if isinstance(error, KielGroupsError) else error
        log.error("group %s: this member failed: %s", self._context.group.group, error, exc_info=trace)
        self._on_failure(reported(self._context.group.group, error))
