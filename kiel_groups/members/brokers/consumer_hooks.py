"""The hooks of a consumer in a broker-coordinated group: open assigned partitions, drain revoked partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from kiel_groups.allocators.assignors import Assignor
from kiel_groups.backoff import Backoff
from kiel_groups.errors import CommitFailedError, KielGroupsError, NoBrokersError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.alarms import UnopenedClaims, report_slow_drain
from kiel_groups.members.brokers.assignment_planner import AssignmentPlanner, TopicSource
from kiel_groups.members.brokers.coordinator_commits import CoordinatorOffsets
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext, JoinedGroup
from kiel_groups.members.brokers.renewed_topics import RenewedTopics
from kiel_groups.members.brokers.start_positions import Positions, StartPositions
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.members.topic_matcher import TopicMatcher
from kiel_groups.model import TopicPartition
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.tasks import TaskSet

log = logging.getLogger(__name__)


# Let the application choose where assigned partitions start, if the group has no offsets and may reset none.
#
# With ``auto_offset_reset="none"``, a partition without an offset of the group is not opened. The application commits
# an offset for it, as with other clients, and it is opened there.


class ChosenStarts:
    """
    Tracks assigned partitions that have no start position until the application commits an offset.

    A look-up of start positions passes these partitions to ``lack``. A commit stores the offset in the present
    generation, and ends the ``pause`` of the look-up, so that the look-up finds the offset at once.

    Args:
        group: The group's name.
        offsets: Stores the offsets.
        timeout_s: How long a commit waits until its partitions are open, in seconds.
    """

    def __init__(self, group: str, offsets: CoordinatorOffsets, timeout_s: float) -> None:
        self._group = group
        self._offsets = offsets
        self._timeout_s = timeout_s
        #: For each partition without a start, an event that is set once it is open, or no longer assigned.
        self._lacking: dict[TopicPartition, asyncio.Event] = {}
        #: Set, and replaced, when the application has chosen starts.
        self._chosen = asyncio.Event()

    def lack(self, partitions: Collection[TopicPartition]) -> None:
        """Accept commits of start offsets for these partitions from now on, because they have no start position."""
        for partition in partitions:
            self._lacking.setdefault(partition, asyncio.Event())

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Accept no further commits for these partitions: they are open, or no longer assigned."""
        for partition in partitions:
            if (event := self._lacking.pop(partition, None)) is not None:
                event.set()

    def next_choice(self) -> asyncio.Event:
        """
        Return an event that the next ``commit`` sets. A look-up takes the event before the look-up asks the
        coordinator.
        """
        return self._chosen

    async def pause(self, choice: asyncio.Event, seconds: float) -> None:
        """Wait before the next look-up, until the event ``choice`` is set, but for at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await choice.wait()

    def among(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the given offsets whose partitions have no start position."""
        return {partition: offset for partition, offset in offsets.items() if partition in self._lacking}

    async def commit(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store start offsets that ``among`` has returned, and return the partitions.

        Wait, for at most ``timeout_s``, until the partitions are open, or no longer assigned.

        Raises:
            SessionLostError: The membership, or its generation, is over.
            CommitFailedError: The coordinator has refused a start, or has not confirmed it in time.
        """
        opened = [self._lacking[partition] for partition in starts if partition in self._lacking]
        stored = await self._offsets.store(starts)
        self._chosen.set()
        self._chosen = asyncio.Event()
        if refused := sorted(starts.keys() - stored):
            raise CommitFailedError(
                f"group {self._group}: commit(): {some(refused)} not stored: the coordinator has refused it, as the log"
                " says" + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                for event in opened:
                    await event.wait()
        return stored


# The hooks of a consumer in a group that brokers coordinate.
#
# A generation's partitions are opened at their start positions, delivered by the handler, and in the next rebalance
# drained and committed. The records in flight of a partition that is not drained in time are lost, with an error in the
# log.


#: The first and the longest pause before start positions are looked up again, in seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0

#: The share of the session timeout that a drain leaves for the last commit.
_RESERVE_SHARE = 0.1

#: The share of the session timeout for which a join waits for the topics that match a pattern.
_METADATA_SHARE = 1 / 6

#: How often a drain checks the gate, in seconds.
_LOOK_S = 1.0


class ConsumerHooks:
    """
    The hooks of a consumer; see ``MemberHooks``.

    Args:
        context: The member's settings and runtime.
        handler: The consumer.
        subscription: The topics that the application has subscribed to, and the offsets of the member's partitions.
        topics: The topics of the cluster.
        assignors: The assignors that the member offers, the preferred assignor first.
        tasks: Runs the application's hooks. A hook may outlast a cancelled ``complete``.
    """

    def __init__(
        self,
        context: CoordinatedContext,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        topics: TopicSource,
        assignors: Sequence[Assignor],
        tasks: TaskSet,
    ) -> None:
        self._context = context
        self._group = context.group.group
        self._metrics = context.metrics
        self._handler = handler
        self._subscription = subscription
        self._tracker = subscription.offsets
        self._topics = topics
        self._assignors = assignors
        self._tasks = tasks
        self._unopened = UnopenedClaims(self._group, context.metrics, handler)
        #: Compares the topics with the application's pattern.
        self._matcher = TopicMatcher(self._group, context.metrics, context.runtime)
        #: Set while some topics are not compared with that pattern, because the last attempt failed or was late.
        self.uncompared = asyncio.Event()
        self.planner = AssignmentPlanner(context, assignors, topics)
        #: The partitions of the present assignment; None between two assignments.
        self.assigned: frozenset[TopicPartition] | None = None
        #: The topics of the last join.
        self.offered: frozenset[str] = frozenset()
        #: The partitions of the last assignment, which an assignor may want to keep here.
        self._owned: frozenset[TopicPartition] = frozenset()
        #: Whether this member may lead the next generation: it has led the last one, or may be the group's first one.
        self._may_lead = True
        #: The partitions that the application had paused when they were given back.
        self._paused: frozenset[TopicPartition] = frozenset()

    def attach(self, starts: StartPositions, chosen: ChosenStarts, owned: OwnedOffsets, renewed: RenewedTopics) -> None:
        """Add the parts that need the member. The member itself is created after these hooks."""
        self._starts = starts
        self._chosen = chosen
        self._offsets = owned
        self._renewed = renewed

    # ------------------------------------------------------------------ the join

    @property
    def protocol_type(self) -> str:
        """
        The protocol type of consumers. Java consumers have the same type, so a group can have both kinds of members.
        """
        return PROTOCOL_TYPE

    async def protocols(self) -> Sequence[GroupProtocol]:
        """
        Return the assignors, each with this member's subscription.

        A member that may lead also requests the topics' partitions now, so that its assignment need not wait for the
        answer. Before Kafka 0.10.1, every member does so, to notice deleted topics.
        """
        await self._match_for_join()
        self.offered = self._subscription.topics
        # Coordinators of 0.9 keep the offsets of deleted topics, so find out which topics are missing now.
        if self._may_lead or not self._context.has_rebalance_timeout:
            self._tasks.start(self.planner.ask_ahead(self.offered))
        else:
            self.planner.drop_ahead()
        topics = tuple(sorted(self.offered))
        return [
            GroupProtocol(
                assignor.name, ConsumerSubscription(topics, assignor.metadata(topics, sorted(self._owned))).encode()
            )
            for assignor in self._assignors
        ]

    async def match_pattern(self) -> bool:
        """
        If the application subscribes to a pattern, ask for all topics, and subscribe to those that match.

        Return whether the topics changed. Raise NoBrokersError if no broker lists the topics.
        """
        pattern = self._subscription.wanted.pattern
        self.uncompared.clear()
        if pattern is None:
            return False
        is_complete = False
        try:
            topics = await self._topics.all_topics()
            if not topics:
                # A cluster whose brokers coordinate groups has at least the topic of their offsets.
                raise NoBrokersError("the broker lists no topic; it may have just started")
            found = await self._matcher.matches([pattern], topics)
            is_complete = self._matcher.is_complete
        finally:
            if not is_complete:
                self.uncompared.set()
        changed = self._subscription.set_matches(pattern, found[pattern].topics)
        if changed:
            # Records of these topics are delivered from now on, if the member still owns the partitions.
            self._assign()
        return changed

    async def _match_for_join(self) -> None:
        """
        Find the topics that match now. Otherwise, each member of the group would notice a new topic by itself, and
        cause a rebalance for it. If brokers do not answer soon, keep the topics that are known.
        """
        try:
            async with asyncio.timeout(self._context.timing.session_timeout_ms / 1000 * _METADATA_SHARE):
                await self.match_pattern()
        except (KielGroupsError, TimeoutError) as error:
            log.info("group %s: joining with the topics that matched before: %s", self._group, error or "no answer")

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        """
        Return the assignments of all members. The leader calls this method. The errors are those of the planner's
        ``plan``.
        """
        return await self.planner.plan(joined)

    # ------------------------------------------------------------------ the assignment

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Open the assigned partitions at their start positions. The errors are those of ``MemberHooks.complete``."""
        self._may_lead = joined.leader_id == gate.token.member_id
        read = ConsumerAssignment.parse(assignment, "the assignment of this member")
        partitions = self._accepted(TopicPartition(topic, n) for topic, ns in read.partitions.items() for n in ns)
        self.assigned = self._owned = partitions
        self._paused &= partitions
        self._handler.gate_changed(gate)
        # Thousands of topics must not take the event loop for seconds: the partitions are divided once.
        by_topic = {topic: frozenset(each) for topic, each in groupby(sorted(partitions), attrgetter("topic"))}
        self._renewed.identify(list(by_topic))
        await asyncio.gather(*(self._open(topic, gate, each) for topic, each in by_topic.items()))

    def _accepted(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """
        Return the partitions whose topics this member has named in its join. Count and log the other partitions.

        If the application has unsubscribed from a topic since the join, its partitions are left out, too. The next join
        reports that to the leader.
        """
        found = frozenset(partitions)
        others = [partition for partition in found if partition.topic not in self.offered]
        if others:
            self._metrics.count("assignments_of_unsubscribed_topics", len(others))
            log.error(
                "group %s: the leader has assigned %s, whose topic this member does not subscribe to; refused",
                self._group,
                some(sorted(others)),
            )
        return frozenset(each for each in found.difference(others) if each.topic in self._subscription.topics)

    async def _open(self, topic: str, gate: GenerationGate, assigned: frozenset[TopicPartition]) -> None:
        """Open a topic's assigned partitions. Repeat the look-up of start positions until all are open."""
        waiting = assigned
        backoff, clock = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S), asyncio.get_running_loop().time
        alarm_s = self._context.group.drain_alarm_ms / 1000
        alarm_at_s = clock() + alarm_s
        try:
            while waiting:
                choice = self._chosen.next_choice()
                count = 1 + max((*(self._topics.known_partitions(topic) or ()), *(p.partition for p in waiting)))
                try:
                    found = await self._starts.find(waiting, {topic: count}, gate)
                except KielGroupsError as error:
                    # A broker did not answer in time, or refused. A heartbeat will show whether the membership is over.
                    failures: Mapping[TopicPartition, KielGroupsError] = dict.fromkeys(waiting, error)
                else:
                    failures = found.failures
                    self._chosen.lack(found.lacking)
                    waiting -= found.found.keys()
                    self._deliver(topic, found)
                if not waiting:
                    break
                self._unopened.attempt_failed(topic, failures)
                if clock() >= alarm_at_s:
                    self._unopened.alarm(topic, waiting, alarm_s)
                    alarm_at_s = clock() + alarm_s
                await self._chosen.pause(choice, backoff.next_s())
        finally:
            self._unopened.forget(assigned)
            self._chosen.forget(waiting)

    def _deliver(self, topic: str, positions: Positions) -> None:
        starts = positions.found
        if not starts:
            return
        self._tracker.open(starts)
        # The topic may have been created again since the offsets were read.
        self._renewed.announce(topic)
        self._assign()
        # The topic may have been unsubscribed while its starts were looked up.
        for partition in starts.keys() & self._paused & self._subscription.assigned_partitions():
            self._subscription.pause(partition)
        listed = some(f"{each} at {start.offset} ({start.origin.value})" for each, start in sorted(starts.items()))
        log.info("group %s: opened %s: %s", self._group, counted(starts, "partition"), listed)
        self._unopened.forget(starts)
        self._tasks.start(self._handler.assigned(frozenset(starts)))
        self._chosen.forget(starts)

    def _assign(self) -> None:
        """
        Assign the open partitions of subscribed topics to the consumer, including partitions that are being drained.

        Without a subscription, assign nothing. Update the gauge ``assigned_partitions``.
        """
        if self._subscription.partitions_auto_assigned():
            topics = self._subscription.topics
            self._subscription.assign_from_subscribed(each for each in self.open_partitions if each.topic in topics)
        self._metrics.gauge("assigned_partitions", len(self._subscription.assigned_partitions()))

    @property
    def open_partitions(self) -> frozenset[TopicPartition]:
        """The open partitions of the last assignment. The tracker may have further open partitions."""
        return self._tracker.open_partitions() & self._owned

    @property
    def settled(self) -> bool:
        """Whether all assigned partitions are open."""
        return self.assigned is not None and self.open_partitions == self.assigned

    # ------------------------------------------------------------------ giving back

    async def prepare(self, gate: GenerationGate) -> None:
        """
        Drain the partitions, and commit their finished records.

        A partition is lost if its records are still in flight shortly before the gate closes. If the gate is closed
        already, all partitions are lost.
        """
        self.assigned = None
        partitions = self.open_partitions
        if not partitions:
            return
        started_s = self._context.runtime.boot_time_s()
        if not gate.is_open(started_s):
            log.error(
                "group %s: %s, first %s, were not committed before the rebalance: the coordinator had not confirmed the"
                " membership for half the session timeout; records since the last commit are delivered again",
                self._group,
                counted(partitions, "partition"),
                min(partitions),
            )
            self.lost(gate)
            return
        busy = self._handler.stop(partitions)
        parts = [part for part in (partitions - busy, busy) if part]
        late = await self._drain(gate, parts)
        if late:
            seconds = self._context.runtime.boot_time_s() - started_s
            log.error(
                "group %s: %s, first %s, were not given back within %.1f s: the application is still processing their"
                " records, which other members will process, too",
                self._group,
                counted(late, "partition"),
                min(late),
                seconds,
            )
            self._lose(late)
        await self._commit_last(partitions - late)
        # If these partitions are assigned again, they are still paused.
        self._paused = self._subscription.paused_partitions() & partitions
        self._tracker.end(partitions - late)
        self._assign()
        self._metrics.observe("drain", self._context.runtime.boot_time_s() - started_s)

    async def _drain(
        self, gate: GenerationGate, parts: Sequence[frozenset[TopicPartition]]
    ) -> frozenset[TopicPartition]:
        """
        Wait until these sets of partitions are drained, or the time is over. Return the partitions that are not
        drained.
        """
        draining = {asyncio.ensure_future(self._handler.drained(part)): part for part in parts}
        pending = set(draining)
        now_s, alarm_s = self._context.runtime.boot_time_s, self._context.group.drain_alarm_ms / 1000
        started_s = alarmed_s = now_s()
        try:
            # The gate's deadline moves while heartbeats are answered.
            while pending and (left_s := self._left_s(gate)) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=min(left_s, _LOOK_S, alarm_s), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if pending and now_s() - alarmed_s >= alarm_s:
                    alarmed_s = now_s()
                    late = [partition for task in pending for partition in draining[task]]
                    report_slow_drain(self._group, late, alarmed_s - started_s, self._handler, self._metrics)
        finally:
            for task in pending:
                task.cancel()
        return frozenset(partition for task in pending for partition in draining[task])

    def _left_s(self, gate: GenerationGate) -> float:
        """Return how many seconds a drain may still take. The time for the last commit is not included."""
        now_s = self._context.runtime.boot_time_s()
        reserve_s = self._context.timing.session_timeout_ms / 1000 * _RESERVE_SHARE
        return gate.deadline_s - now_s - reserve_s if gate.is_open(now_s) else 0.0

    async def _commit_last(self, partitions: frozenset[TopicPartition]) -> None:
        async with self._offsets.writing:
            try:
                await self._offsets.store_left(partitions)
                await self._renewed.store_beginnings(partitions)
            except KielGroupsError as error:
                self._metrics.count("commits_failed")
                log.warning("group %s: the last commit before the rebalance failed: %s", self._group, error)

    def lost(self, gate: GenerationGate) -> None:
        """Drop all partitions: other members may own them already."""
        partitions = self.open_partitions
        self.assigned, self._owned, self._paused = None, frozenset(), frozenset()
        if partitions:
            self._lose(partitions)
        self._assign()

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        self._metrics.count("partitions_lost", len(partitions))
        self._tracker.end(partitions)
        self._handler.lost(partitions)
