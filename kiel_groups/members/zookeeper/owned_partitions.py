"""Claim, open, drain and release the partitions of one member on one session, as ``group.claims`` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn

from kiel_groups.backoff import Backoff
from kiel_groups.errors import CoordinationError, DuplicateInstanceError, KielGroupsError, ProtocolError
from kiel_groups.group import claims
from kiel_groups.group.partition_offsets import StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo
from kiel_groups.members.alarms import UnopenedClaims, report_slow_drain
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.offsets.kafka_store import KafkaClaimOpener, KafkaStore
from kiel_groups.members.offsets.offset_orders import OffsetOrders
from kiel_groups.members.offsets.owned_offsets import OffsetStore, OwnedOffsets, OwnOffsetStore, Starts, owner_words
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits, OffsetZnodes
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes, PartitionLeaders
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Node, get_watched
from kiel_groups.zookeeper.tasks import CloseLimit, MemberContext, SessionContext

log = logging.getLogger(__name__)


#: The longest time from a decision to the assignment that follows from it, in seconds. A later assignment has another
#: cause: a new subscription need not change the member's partitions.
_LONGEST_JOIN_S = 30.0


class RebalanceTimes:
    """
    Measures the times of rebalances in one member session, for the metrics ``join`` and ``sync``.

    Args:
        metrics: Observes ``join`` and ``sync``, and counts ``joins``.
        runtime: The clock.
        began_s: When the session was begun, in seconds of boot time.
    """

    def __init__(self, metrics: Metrics, runtime: Runtime, began_s: float) -> None:
        self._metrics = metrics
        self._runtime = runtime
        self._decided_s: float | None = began_s
        self._noticed_s: float | None = None
        self._generation: int | None = None
        self._has_ended = False
        #: The time when the assignment arrived that is not taken over completely yet, in seconds of boot time.
        self._arrived_s: float | None = None

    def subscription_changed(self) -> None:
        """Record that the member registers another subscription. A new plan follows from this change."""
        self._decided_s = self._runtime.boot_time_s()

    def change_noticed(self) -> None:
        """Record that a watch has reported a change of the assignment."""
        if self._noticed_s is None:
            self._noticed_s = self._runtime.boot_time_s()

    def arrived(self, generation: int) -> None:
        """Observe ``join`` for an assignment that was read, if no earlier assignment had the same generation."""
        noticed_s, self._noticed_s = self._noticed_s, None
        if generation == self._generation or self._has_ended:
            return
        is_first, self._generation = self._generation is None, generation
        now_s = self._runtime.boot_time_s()
        decided_s, self._decided_s = self._decided_s, None
        if decided_s is None or (not is_first and now_s - decided_s > _LONGEST_JOIN_S):
            decided_s = now_s if noticed_s is None else noticed_s
        self._metrics.observe("join", now_s - decided_s)
        self._metrics.count("joins")
        self._arrived_s = now_s

    def end(self) -> None:
        """Observe no further times: the member leaves, and further assignments only revoke its partitions."""
        self._has_ended, self._arrived_s = True, None

    def taken_over(self) -> None:
        """Observe ``sync``: the member owns its assignment, and all of its records can be delivered."""
        if self._arrived_s is not None:
            self._metrics.observe("sync", self._runtime.boot_time_s() - self._arrived_s)
            self._arrived_s = None


#: A leader reads a new registration and plans again within this time, in seconds. Until then, an assignment that names
#: other topics is not an error.
REPLANNED_S = 10.0

#: The most topics that a log line names.
MOST_NAMED = 5


class UnsubscribedTopics:
    """Compares the assignments of one member with its subscription."""

    def __init__(self, context: SessionContext) -> None:
        self._session = context.session
        self._group = context.group
        self._member_id = context.member_id
        self._path = context.layout.member(context.member_id)
        self._metrics = context.metrics
        #: The zxid and the log level of the last report: the same assignment is read many times and reported once.
        self._reported: tuple[int, int] = (0, 0)
        #: Since when assignments have named other topics, on the event loop's clock; None if the last one did not.
        self._since_s: float | None = None

    async def check(self, node: Node, found: MemberAssignment, subscribed: frozenset[str]) -> None:
        """
        Log an assignment that names topics to which the member does not subscribe. Count each such assignment once.

        At first, the log line is a warning: a leader that has not read the latest registration writes such an
        assignment, and soon corrects it. Once assignments have named other topics for ``REPLANNED_S`` seconds, the log
        line is an error.

        Two kinds of assignments are exempt. An assignment that is older than the member's registration was made for the
        previous subscription, and the leader will plan again. An assignment may also have only topics that are still
        registered. In this case, the member has not registered its new subscription yet, and will register it.
        """
        unsubscribed = await self._unsubscribed(node, found, subscribed)
        if not unsubscribed:
            self._since_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        level = logging.ERROR if now_s - self._since_s >= REPLANNED_S else logging.WARNING
        if node.mzxid != self._reported[0]:
            self._metrics.count("assignments_of_unsubscribed_topics")
        if (node.mzxid, level) != self._reported:
            self._reported = (node.mzxid, level)
            self._report(level, found, len(unsubscribed), sorted({partition.topic for partition in unsubscribed}))

    async def _unsubscribed(
        self, node: Node, found: MemberAssignment, subscribed: frozenset[str]
    ) -> list[TopicPartition]:
        """
        Return the partitions whose topics are neither subscribed to nor registered, or [] for an exempt assignment.
        """
        if not ({partition.topic for partition in found.partitions} - subscribed):
            return []
        own = await self._session.get(self._path)
        # zxids order all changes in ZooKeeper: the assignment is older than the registration.
        if own is None or node.mzxid < own.czxid:
            return []
        try:
            allowed = subscribed.union(MemberInfo.parse(self._member_id, own.data, self._path).subscription)
        except ProtocolError:
            # The leader reports a registration that cannot be read.
            return []
        return [partition for partition in found.partitions if partition.topic not in allowed]

    def _report(self, level: int, found: MemberAssignment, count: int, topics: list[str]) -> None:
        log.log(
            level,
            "group %s: the assignment of %s, generation %d, names %s of topics that this member has not"
            " subscribed to: %s%s; they are not claimed. The leader corrects that with its next plan, whether it had"
            " not seen the latest subscription or the znode was written from outside",
            self._group,
            self._member_id,
            found.generation,
            counted(count, "partition"),
            ", ".join(topics[:MOST_NAMED]),
            ", …" if len(topics) > MOST_NAMED else "",
        )


# The driver of one member's partitions: it performs what ``group.claims`` decides, on one session.
#
# It follows the member's assignment, claims and releases owner znodes, and has ``OwnedOffsets`` write the offsets.


#: The first and the longest pause before a claim's position is read again after a failure, in seconds.
#: A topic that was just created has leaders within tenths of a second.
FIRST_REOPEN_PAUSE_S = 0.1
LONGEST_REOPEN_PAUSE_S = 5.0

#: How long a leaving member waits for the brokers that store its offsets, in seconds.
LEAVING_S = 2.0

#: How often offsets in Kafka are stored again, in seconds; brokers keep them for a day by default.
RENEWAL_S = 3_600.0


class MemberOffsets:
    """
    Creates the parts that handle one member's offsets on one session, for the offset store of its group.

    ``writer`` writes in transactions that require the member znode to exist. ``limit`` limits all waits for brokers
    once the member leaves.
    """

    def __init__(self, context: MemberContext) -> None:
        group, handler, tracker, metrics = context.group, context.handler, context.tracker, context.metrics
        self.topics = topics = TopicIncarnations(context.session, context.tasks, tracker)
        self.writer = writer = FencedWriter(context.session, context.layout.member(context.member_id), topics.catch_up)
        self.znodes = znodes = OffsetZnodes(context, writer, topics)
        self.limit = CloseLimit()
        self.opener: ClaimOpener | KafkaClaimOpener
        own: OwnOffsetStore = znodes
        if tracker.rules.in_kafka:
            own = kafka = KafkaStore(context, writer, topics, self.limit)
            self.opener = opener = KafkaClaimOpener(context, writer, topics, znodes, kafka)
            #: Returns the partitions in which the group may have an offset, in ascending order.
            self.partitions = opener.partitions
        else:
            self.opener = ClaimOpener(context, writer, topics, znodes)
            self.partitions = znodes.partitions
        self.store: OffsetStore = own
        if tracker.rules.through_brokers:
            self.store = BrokerCommits(context, znodes, writer, self.limit)
        self.owned = OwnedOffsets(group, handler, tracker, metrics, own, partial(owner_words, context), self.store)
        topics.on_recreated = lambda topic, created: context.tasks.start(
            self.owned.restart(topic, created, topics.unless_recreated)
        )


class OwnedPartitions:
    """Follows the assignment of one member: claims, opens, drains and releases its partitions."""

    def __init__(self, context: MemberContext, subscription: SubscriptionState) -> None:
        self._context = context
        self._session = context.session
        self._handler = context.handler
        self._tracker = context.tracker
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._config = context.config
        self._member_path = context.layout.member(context.member_id)
        self._assignment_path = context.layout.assignment(context.config.instance_id or context.member_id)
        self._unsubscribed_topics = UnsubscribedTopics(context)
        self.offsets = MemberOffsets(context)
        self._owner_znodes = OwnerZnodes(context, self.offsets.writer, self.offsets.znodes)
        self._leaders = PartitionLeaders(context, self.offsets.writer, self.offsets.topics)
        offsets = self.offsets
        self._orders = OffsetOrders(context, offsets.owned, offsets.store, offsets.znodes, offsets.writer, self._owned)
        self._subscription = subscription
        self._claims = claims.Claims()
        #: The pattern whose matches were read last, and its problem.
        self._matched = ("", "")
        self._unopened = UnopenedClaims(context.group, context.metrics, context.handler)
        self.times = RebalanceTimes(context.metrics, context.runtime, context.began_s)
        self._due = asyncio.Event()
        self._empty, self._leaving = asyncio.Event(), asyncio.Event()
        self._watches: dict[TopicPartition, _OwnerWatch] = {}
        self._freed: set[TopicPartition] = set()
        self._seen_free: set[TopicPartition] = set()
        self._to_claim: set[TopicPartition] = set()
        self._to_open: set[TopicPartition] = set()
        self._claiming = False

    @property
    def settled(self) -> bool:
        """Whether the member owns exactly the partitions of its assignment."""
        return self._claims.settled

    def start(self) -> None:
        """Start to follow the assignment."""
        # An earlier session may have left claims that it never opened.
        self._tracker.end_unopened()
        if self._tracker.rules.in_kafka:
            self._tasks.start(self._renew_offsets())
        self._tasks.start(self._follow_assignment())
        self._tasks.start(self._orders.run())

    async def _renew_offsets(self) -> None:
        while True:
            # The pause is random, so that a thousand members do not commit together.
            await asyncio.sleep(RENEWAL_S * self._context.runtime.uniform(0.67, 1.0))
            await self.offsets.owned.renew(self._tracker.open_partitions)

    def follow_subscription(self) -> None:
        """Apply the current subscription: only partitions of its topics are claimed and assigned."""
        self._feed(claims.Subscribed(self._subscription.topics))
        self._assign()

    def recheck(self) -> None:
        """Read all watched znodes again, because watches may have been lost."""
        self._due.set()
        self.offsets.topics.recheck()
        self._orders.recheck()
        self._check_owners(self._watches)

    async def release_all(self) -> None:
        """Stop claiming partitions, drain and release all partitions, and wait until they are released."""
        self.offsets.limit.shorten(LEAVING_S)
        self._feed(claims.Leave())
        self._leaving.set()
        await self.all_released()

    @property
    def idle(self) -> bool:
        """Whether the member owns, claims and awaits no partition."""
        return not self._claims.phases

    async def all_released(self) -> None:
        """Wait until the member owns, claims and awaits no partition."""
        while self._claims.phases:
            self._empty.clear()
            await self._empty.wait()

    def end(self) -> None:
        """Drop all partitions, because every claim has ended with the session."""
        self._feed(claims.SessionEnded())

    # The assignment

    async def _follow_assignment(self) -> None:
        """
        Read the member's assignment whenever it may have changed, and run an audit once in every interval.

        The audit has its own deadline, so that frequent changes of the assignment do not postpone it.
        """
        loop = asyncio.get_running_loop()
        audit_due_s = loop.time() + self._context.audit_interval_s()
        while True:
            self._due.clear()
            read = await self._read_assignment()
            self.follow_subscription()
            self._feed(read)
            if self._claims.replaced:
                await self._stop_replaced()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(audit_due_s):
                    await self._due.wait()
            # The deadline may have passed without a timeout: ``wait`` returns first if the event is set already.
            if loop.time() >= audit_due_s:
                await self._audit()
                audit_due_s = loop.time() + self._context.audit_interval_s()

    async def _read_assignment(self) -> claims.AssignmentRead | claims.Replaced:
        node = await get_watched(self._session, self._assignment_path, self._assignment_changed)
        if node is None:
            return claims.AssignmentRead(None)
        try:
            found = MemberAssignment.parse(node.data, self._assignment_path)
        except ProtocolError as error:
            log.error("group %s: %s; keeping the current partitions", self._config.group, error)
            self._metrics.count("znodes_unreadable")
            return claims.AssignmentRead(None)
        if found.member_id == self._context.member_id:
            self.times.arrived(found.generation)
            await self._follow_pattern()
            await self._unsubscribed_topics.check(node, found, self._subscription.topics)
            return claims.AssignmentRead(found.partitions)
        # Without an instance_id no other member can have the slot, whatever its znode contains. A member whose znode
        # was deleted was not replaced either: the leader knows only its predecessor, and this member will join again.
        is_replaced = self._config.instance_id and await self._session.exists(self._member_path) is not None
        return claims.Replaced() if is_replaced else claims.AssignmentRead(None)

    def look_for_matches(self) -> None:
        """If the application subscribes to a pattern, read again which topics the leader has found to match."""
        if self._subscription.wanted.pattern is not None:
            self._due.set()

    async def _follow_pattern(self) -> None:
        """
        Subscribe to the topics that the pattern matches by the group state, which a leader writes with each plan.

        The group state is read after the assignment, so it is at least as new. Until a plan has the pattern, the group
        state is watched. After that, each plan that concerns this member changes its assignment.
        """
        pattern, path = self._subscription.wanted.pattern, self._context.layout.group_state
        if pattern is None:
            return
        is_known = pattern == self._matched[0]
        node = await (self._session.get(path) if is_known else get_watched(self._session, path, self._due.set))
        match = None
        if node is not None:
            # An operator may have damaged the group state. The next plan repairs it.
            with suppress(ProtocolError):
                match = GroupState.parse(node.data, path).patterns.get(pattern)
        if match is None:
            self._matched = ("", "")
            if is_known:
                # A plan was made while the application subscribed to something else: now watch for the next one.
                await self._follow_pattern()
            return
        if match.problem and self._matched != (pattern, match.problem):
            log.error("group %s: the leader reports on pattern %r: %s", self._config.group, pattern, match.problem)
        self._matched = (pattern, match.problem)
        if self._subscription.set_matches(pattern, match.topics):
            # Records of these topics are delivered from now on, if the member still owns the partitions.
            self.follow_subscription()

    def _assignment_changed(self) -> None:
        self.times.change_noticed()
        self._due.set()

    async def _stop_replaced(self) -> NoReturn:
        """
        Release all partitions, then raise DuplicateInstanceError.

        If the member joined again, the two members with the same instance id would replace each other forever.
        """
        self._metrics.count("members_replaced")
        log.warning(
            "group %s: a later member of instance %s has taken the place of %s, which releases its partitions",
            self._config.group,
            self._config.instance_id,
            self._context.member_id,
        )
        await self.all_released()
        raise DuplicateInstanceError(
            f"group {self._config.group}: another member of instance {self._config.instance_id!r} is alive and has its"
            f" place ({self._assignment_path}); this one, {self._context.member_id}, has stopped. Give every process an"
            " instance_id of its own"
        )

    async def _audit(self) -> None:
        """Find changes that no watch reported: of claims, offsets, leaders, and owners of awaited partitions."""
        async with self.offsets.owned.writing:
            # The lock is held so that no commit in flight changes the version of an offset.
            is_unchanged = await self._owner_znodes.holds(self._owned())
        if not is_unchanged:
            gone = await self._owner_znodes.verify(self._owned()) & self._owned()
            if gone:
                deleted = counted(gone, "claim was", "claims were")
                log.error("group %s: %s deleted from outside of this member", self._config.group, deleted)
                self._feed(claims.ClaimGone(gone))
            await self.offsets.owned.adopt_foreign_offsets(self._owned)
        await self.confirm_leaders()
        await self.offsets.topics.audit()
        self._orders.recheck()
        self._check_owners(self._watches)

    async def confirm_leaders(self) -> None:
        """Read the leaders of the owned partitions; see ``PartitionLeaders``."""
        await self._leaders.pass_on(self._owned())

    # Claims

    def _owned(self) -> frozenset[TopicPartition]:
        """Return the owned partitions whose records are delivered: opened and not draining."""
        return self._claims.in_phase(claims.Phase.OWNED)

    def _feed(self, event: claims.Event) -> None:
        self._claims, effects = claims.step(self._claims, event)
        if any(isinstance(effect, claims.Deliver | claims.Release | claims.Lose) for effect in effects):
            self._assign()
        for effect in effects:
            self._perform(effect)
        if self._claims.settled:
            self.times.taken_over()
        if not self._claims.phases:
            self._empty.set()

    def _assign(self) -> None:
        """
        Update the assigned partitions in the subscription.

        The application has the partitions that are delivered. The application also has a draining partition until the
        hook for the revocation has ended: the hook may seek, and the release stores the offset of that seek. A later
        seek would be lost, because the release may have been sent already.
        """
        if self._subscription.partitions_auto_assigned():
            owned, topics = self._claims.in_phase(claims.Phase.OWNED, claims.Phase.DRAINING), self._subscription.topics
            self._subscription.assign_from_subscribed(partition for partition in owned if partition.topic in topics)
        self._metrics.gauge("assigned_partitions", len(self._subscription.assigned_partitions()))

    def _perform(self, effect: claims.Effect) -> None:
        match effect:
            case claims.Claim(partitions):
                self._to_claim |= partitions
                if not self._claiming:
                    self._claiming = True
                    self._tasks.start(self._claim())
            case claims.WatchOwner(partitions):
                for partition in partitions:
                    self._watches.setdefault(partition, _OwnerWatch(self, partition))
                self._check_owners(partitions)
            case claims.Open(partitions):
                self._to_open |= partitions
                if not self._claiming:
                    self._open_claimed()
            case claims.Deliver(partitions):
                self._tasks.start(self._handler.assigned(partitions))
                self._orders.opened()
            case claims.Drain(partitions):
                self._drain(partitions)
            case claims.Release(partitions):
                self._tasks.start(self._release(partitions))
            case claims.Lose(partitions):
                self._lose(partitions)

    async def _claim(self) -> None:
        """Claim one batch of partitions at a time. Partitions that become free meanwhile are in the next batch."""
        try:
            while self._to_claim:
                partitions, freed = frozenset(self._to_claim), self._to_claim & self._seen_free
                self._to_claim.clear()
                self._seen_free.clear()
                claimed = await self._owner_znodes.claim(partitions, freed)
                self._feed(claims.Claimed(claimed))
                self._feed(claims.Contended(partitions - claimed))
        finally:
            self._claiming = False
        self._open_claimed()

    def _open_claimed(self) -> None:
        """
        For each topic, start a task that opens its claimed partitions. No claim is pending when this method is called.
        """
        partitions, self._to_open = frozenset(self._to_open), set()
        for topic, each in groupby(sorted(partitions), attrgetter("topic")):
            self._tasks.start(self._open(topic, frozenset(each)))

    def hint(self, watch: _OwnerWatch) -> None:
        """Record that an awaited partition may be free. Simultaneous hints are handled in one batch."""
        if not self._awaits(watch.partition):
            return
        if not self._freed:
            asyncio.get_running_loop().call_soon(self._claim_freed)
        self._freed.add(watch.partition)

    def _claim_freed(self) -> None:
        freed = frozenset(self._freed)
        self._freed.clear()
        if self._session.connected:
            # While connected, only the deletion of an owner znode fires its watch.
            self._seen_free |= freed
        self._feed(claims.OwnerGone(freed))

    def _awaits(self, partition: TopicPartition) -> bool:
        """Return whether a partition is still awaited. If it is not, drop its watch."""
        if self._claims.phases.get(partition) is claims.Phase.WAITING:
            return True
        if watch := self._watches.pop(partition, None):
            self._session.forget(watch)
        return False

    def _check_owners(self, partitions: Collection[TopicPartition]) -> None:
        if awaited := [partition for partition in sorted(partitions) if self._awaits(partition)]:
            self._tasks.start(self._find_free([self._watches[partition] for partition in awaited]))

    async def _find_free(self, watches: Sequence[_OwnerWatch]) -> None:
        """Watch the owner znodes of awaited partitions, and report the partitions that are free or owned by now."""
        found = await self._owner_znodes.watch({watch.partition: watch for watch in watches})
        if found.mine:
            self._feed(claims.Claimed(found.mine))
        if found.free:
            self._feed(claims.OwnerGone(found.free))

    async def _open(self, topic: str, partitions: frozenset[TopicPartition]) -> None:
        """Open a topic's claims at their start positions. If the member leaves meanwhile, release the claims."""
        reading = asyncio.ensure_future(self._read_positions(topic, partitions))
        leaving = asyncio.ensure_future(self._leaving.wait())
        either: set[asyncio.Future[Any]] = {reading, leaving}
        alarm_s, started_s = self._config.drain_alarm_ms / 1000, asyncio.get_running_loop().time()
        try:
            while not (await asyncio.wait(either, timeout=alarm_s, return_when=asyncio.FIRST_COMPLETED))[0]:
                unopened = partitions & self._claims.in_phase(claims.Phase.OPENING)
                self._unopened.alarm(topic, unopened, asyncio.get_running_loop().time() - started_s)
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            leaving.cancel()
            self._unopened.forget(partitions)
            await asyncio.wait({reading})
        self._feed(claims.Opened(frozenset(p for p in partitions if not self._claims.keeps(p))))

    async def _read_positions(self, topic: str, partitions: frozenset[TopicPartition]) -> None:
        """Read start positions, and retry while a position is unknown. Drop claims whose owner znode is gone."""
        waiting, backoff = partitions, Backoff(FIRST_REOPEN_PAUSE_S, LONGEST_REOPEN_PAUSE_S)
        await self.offsets.topics.follow({topic})
        while waiting:
            before = self.offsets.topics.creation(topic)
            starts = await self._starts(topic, waiting)
            self._opened(starts)
            created = self.offsets.topics.creation(topic)
            if created != before and any(start.created < created for start in starts.values()):
                # The topic was created again while positions were read: they may belong to the old log.
                self.offsets.topics.announce(topic)
            waiting -= starts.keys()
            if waiting and not starts:
                gone = await self._owner_znodes.verify(waiting)
                self._feed(claims.ClaimGone(gone))
                # A claim that is no longer wanted needs no position: it is released at once.
                self._feed(claims.Opened(frozenset(p for p in waiting if not self._claims.keeps(p))))
                waiting = (waiting - gone) & self._claims.in_phase(claims.Phase.OPENING)
            self._unopened.forget(partitions - waiting)
            if waiting and not starts:
                await asyncio.sleep(backoff.next_s())

    async def _starts(
        self, topic: str, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, StartPosition]:
        try:
            starts = await self.offsets.opener.open(topic, sorted(partitions))
        except CoordinationError:
            raise
        except KielGroupsError as error:
            starts = Starts({}, dict.fromkeys(partitions, error))
        if starts.failures:
            # Waiting loses nothing, and the claim keeps other members from starting at another position.
            self._unopened.attempt_failed(topic, starts.failures)
        return starts.found

    def _opened(self, starts: Mapping[TopicPartition, StartPosition]) -> None:
        opening = self._claims.in_phase(claims.Phase.OPENING)
        fresh = {partition: start for partition, start in starts.items() if partition in opening}
        self._tracker.open(fresh)
        if fresh:
            # The start of a partition and its reason answer the first question about missing or repeated records.
            listed = some(f"{each} at {start.offset} ({start.origin.value})" for each, start in sorted(fresh.items()))
            log.info("group %s: opened %s: %s", self._config.group, counted(fresh, "partition"), listed)
        self._feed(claims.Opened(frozenset(fresh)))

    def _drain(self, partitions: frozenset[TopicPartition]) -> None:
        """Drain partitions. Partitions without records in flight do not wait for partitions with records in flight."""
        busy = self._handler.stop(partitions)
        for part in (partitions - busy, busy):
            if part:
                self._tasks.start(self._drain_part(part))

    async def _drain_part(self, partitions: frozenset[TopicPartition]) -> None:
        drained, now_s = asyncio.ensure_future(self._handler.drained(partitions)), asyncio.get_running_loop().time
        started_s = now_s()
        try:
            while not (await asyncio.wait({drained}, timeout=self._config.drain_alarm_ms / 1000))[0]:
                seconds = now_s() - started_s
                report_slow_drain(self._config.group, partitions, seconds, self._handler, self._metrics)
            await drained
        finally:
            drained.cancel()
        self._metrics.observe("drain", now_s() - started_s)
        self._feed(claims.Drained(partitions))

    async def _release(self, partitions: frozenset[TopicPartition]) -> None:
        async with self.offsets.owned.writing:
            rules = self._tracker.rules
            if rules.in_kafka or (rules.through_brokers and rules.autocommit):
                await self.offsets.owned.store_left(partitions)
            if rules.in_kafka:
                done = await self._owner_znodes.release_stored(partitions)
            else:
                done = await self._owner_znodes.release(partitions)
        self._feed(claims.ClaimGone(done.gone))
        self._feed(claims.Released(done.released))

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        self._metrics.count("partitions_lost", len(partitions))
        self._tracker.end(partitions)
        self._handler.lost(partitions)


class _OwnerWatch:
    """The watcher of one owner znode. The session calls the watcher when the znode may be gone."""

    __slots__ = ("_owned_partitions", "partition")

    def __init__(self, owned_partitions: OwnedPartitions, partition: TopicPartition) -> None:
        self._owned_partitions = owned_partitions
        self.partition = partition

    def __call__(self) -> None:
        self._owned_partitions.hint(self)
