"""
What one member holds: the driver of ``group.claims``, on one session.

It follows the member's slice, takes and gives back owner znodes, and is the only one that writes offsets.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.claiming import Claimant
from kiel_groups.coordination.offset_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session import Session
from kiel_groups.coordination.tasks import TaskSet
from kiel_groups.coordination.topic_watch import TopicWatch
from kiel_groups.errors import CoordinationError, KielGroupsError, NoOffsetsError, ProtocolError
from kiel_groups.group import claims
from kiel_groups.group.layout import GroupLayout
from kiel_groups.group.subscription import StartPosition, SubscriptionState
from kiel_groups.group.znodes import Slice
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId, TopicPartition

__all__ = ["Holding", "PartitionHandler", "jittered_s"]

log = logging.getLogger(__name__)

#: How far the periodic look at one's own slice is spread, so that a thousand members do not look at once.
JITTER = 0.33

#: How long to wait before a claim whose position could not be read is looked at again, in seconds: first, at most.
REOPEN_S = 0.5
LONGEST_REOPEN_S = 5.0


def jittered_s(interval_ms: int) -> float:
    """An interval in seconds, longer or shorter by up to a third."""
    return interval_ms / 1000 * random.uniform(1 - JITTER, 1 + JITTER)


class PartitionHandler(Protocol):
    """What a member needs of the consumer around it; everything is called on the event loop."""

    async def log_offsets(self, topic: str, partitions: Sequence[int], policy: str) -> Mapping[int, int]:
        """Ask the brokers for the first ("earliest") or next ("latest") offsets of partitions of one topic."""

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """
        Hand them out from now on; their positions stand in the subscription state.

        What undoes an earlier ``stop`` of them happens at the call, before any later one; the rest may wait.
        """

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Fetch and hand out no more of them; returns those of which the application still processes something."""

    def drained(self, partitions: Collection[TopicPartition]) -> Awaitable[None]:
        """Ends when the application has finished what it has of them, and its listener was told."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Somebody else may own them already: drop everything of them at once."""

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        """Ask the brokers for committed offsets; only with the store that has them written by brokers."""

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        """Ask the brokers to store next offsets; only with the store that does so."""

    def moved(self, partition: TopicPartition, offset: int) -> None:
        """Somebody else wrote the committed offset: hand out from there on."""


class Holding:
    """The slice, the claims and the offsets of one member."""

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        member_id: MemberId,
        config: GroupConfig,
        claimant: Claimant,
        store: ZooKeeperOffsetStore,
        handler: PartitionHandler,
        subscription: SubscriptionState,
        tasks: TaskSet,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._member_id = member_id
        self._slice_path = layout.slice(member_id)
        self._config = config
        self._claimant = claimant
        self._store = store
        self._handler = handler
        self._subscription = subscription
        self._tasks = tasks
        self._metrics = metrics
        self._claims = claims.Claims()
        self._look = asyncio.Event()
        self._empty = asyncio.Event()
        # A commit and a release of one partition would refuse each other: both expect the version they have seen.
        self._writing = asyncio.Lock()
        self._watches: dict[TopicPartition, _OwnerWatch] = {}
        self._topics = TopicWatch(session, tasks, lambda topic: tasks.start(self._start_over(topic)))

    @property
    def settled(self) -> bool:
        """Whether what is held is what is wanted."""
        return self._claims.settled

    def start(self) -> None:
        """Begin to follow the slice."""
        self._tasks.start(self._follow_slice())

    def look_again(self) -> None:
        """Watches are gone, or may be: look at everything anew."""
        self._look.set()
        self._topics.look_again()
        for watch in list(self._watches.values()):
            watch()

    async def hand_back(self) -> None:
        """Drain and release everything, and claim nothing more; ends when nothing is held."""
        self._feed(claims.Leave())
        while self._claims.phases:
            self._empty.clear()
            await self._empty.wait()

    def end(self) -> None:
        """The session is over: everything held is lost."""
        self._feed(claims.SessionEnded())

    # The slice

    async def _follow_slice(self) -> None:
        """Read one's slice and compare, whenever there is a hint and from time to time without one."""
        while True:
            self._look.clear()
            self._feed(claims.Wanted(await self._read_slice()))
            try:
                await asyncio.wait_for(self._look.wait(), jittered_s(self._config.reconcile_interval_ms))
            except TimeoutError:
                await self._audit()

    async def _read_slice(self) -> frozenset[TopicPartition] | None:
        node = await self._session.get(self._slice_path, self._look.set)
        if node is None and await self._session.exists(self._slice_path, self._look.set) is not None:
            node = await self._session.get(self._slice_path, self._look.set)
        if node is None:
            return None
        try:
            found = Slice.parse(node.data, self._slice_path)
        except ProtocolError as error:
            log.error("group %s: %s; what is held stays", self._config.group, error)
            self._metrics.count("znodes_unreadable")
            return None
        return found.partitions if found.member_id == self._member_id else None

    async def _audit(self) -> None:
        """Without any hint: are the claims still ours, have the awaited ones become free?"""
        gone = await self._claimant.verify(self._claims.in_phase(claims.Phase.HELD))
        gone &= self._claims.in_phase(claims.Phase.HELD)
        if gone:
            log.error("group %s: %d claims were deleted by somebody else", self._config.group, len(gone))
            self._feed(claims.ClaimGone(gone))
        self.look_again()

    # Claims

    def _feed(self, event: claims.Event) -> None:
        self._claims, effects = claims.step(self._claims, event)
        for effect in effects:
            self._perform(effect)
        if not self._claims.phases:
            self._empty.set()

    def _perform(self, effect: claims.Effect) -> None:
        match effect:
            case claims.Claim(partitions):
                self._tasks.start(self._claim(partitions))
            case claims.Await(partitions):
                for partition in sorted(partitions):
                    self._watches.setdefault(partition, _OwnerWatch(self, partition))()
            case claims.Open(partitions):
                self._tasks.start(self._open(partitions))
            case claims.Start(partitions):
                self._tasks.start(self._handler.assigned(partitions))
            case claims.Drain(partitions):
                self._drain(partitions)
            case claims.Release(partitions):
                self._tasks.start(self._release(partitions))
            case claims.Lose(partitions):
                self._lose(partitions)

    async def _claim(self, partitions: frozenset[TopicPartition]) -> None:
        claimed = await self._claimant.claim(partitions)
        self._feed(claims.Claimed(claimed))
        self._feed(claims.Contended(partitions - claimed))

    def hint(self, watch: _OwnerWatch) -> None:
        """An awaited partition may have become free."""
        self._tasks.start(self._look_at_owner(watch))

    async def _look_at_owner(self, watch: _OwnerWatch) -> None:
        """Is an awaited partition free now? Otherwise the watch stands again."""
        partition = watch.partition
        if self._claims.phases.get(partition) is not claims.Phase.WAITING:
            self._watches.pop(partition, None)
            self._session.forget(watch)
            return
        free, mine = await self._claimant.wait_free(partition, watch)
        if mine:
            self._feed(claims.Claimed(frozenset({partition})))
        elif free:
            self._feed(claims.OwnerGone(frozenset({partition})))

    async def _open(self, partitions: frozenset[TopicPartition]) -> None:
        """Read where the claims start; what cannot be read yet is tried again, what is gone is given up."""
        waiting, pause_s = partitions, REOPEN_S
        topics = {partition.topic for partition in partitions}
        await self._topics.follow(topics)
        while waiting:
            before = self._topics.creations(topics)
            starts = await self._starts(waiting)
            self._opened(starts)
            for topic in topics:
                if self._topics.creations([topic])[topic] != before[topic]:
                    # Created again while positions were read: they may be those of the old log.
                    self._tasks.start(self._start_over(topic))
            waiting -= starts.keys()
            if waiting:
                gone = await self._claimant.verify(waiting)
                self._feed(claims.ClaimGone(gone))
                # What is not wanted any more needs no position: it goes back at once.
                self._feed(claims.Opened(frozenset(p for p in waiting if not self._claims.keeps(p))))
                waiting = (waiting - gone) & self._claims.in_phase(claims.Phase.OPENING)
            if waiting:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_REOPEN_S)

    async def _starts(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, StartPosition]:
        try:
            return await self._store.start(partitions)
        except (CoordinationError, NoOffsetsError):
            raise
        except KielGroupsError as error:
            # No broker tells where a new partition starts: nothing is lost by waiting, and the claim keeps others from
            # starting somewhere else.
            log.warning(
                "group %s: the positions of %d claims cannot be read yet: %s",
                self._config.group,
                len(partitions),
                error,
            )
            self._metrics.count("claims_not_opened")
            return {}

    def _opened(self, starts: Mapping[TopicPartition, StartPosition]) -> None:
        opening = self._claims.in_phase(claims.Phase.OPENING)
        fresh = {partition: start for partition, start in starts.items() if partition in opening}
        self._subscription.assign_from_subscribed(fresh)
        self._feed(claims.Opened(frozenset(fresh)))

    def _drain(self, partitions: frozenset[TopicPartition]) -> None:
        """Idle partitions do not wait for those that the application is busy with."""
        busy = self._handler.stop(partitions)
        for part in (partitions - busy, busy):
            if part:
                self._tasks.start(self._drain_part(part))

    async def _drain_part(self, partitions: frozenset[TopicPartition]) -> None:
        drained = asyncio.ensure_future(self._handler.drained(partitions))
        started_s = asyncio.get_running_loop().time()
        try:
            while not (await asyncio.wait({drained}, timeout=self._config.drain_alarm_ms / 1000))[0]:
                self._metrics.count("drain_alarms")
                log.error(
                    "group %s: %d partitions, first %s, are to be handed over, but the application has been processing"
                    " for %.0f s; they are kept until it is done",
                    self._config.group,
                    len(partitions),
                    min(partitions),
                    asyncio.get_running_loop().time() - started_s,
                )
            await drained
        finally:
            drained.cancel()
        self._metrics.observe("drain", asyncio.get_running_loop().time() - started_s)
        self._feed(claims.Drained(partitions))

    async def _release(self, partitions: frozenset[TopicPartition]) -> None:
        async with self._writing:
            if self._config.autocommit and not self._store.commits_with_release:
                await self._store_finished(partitions, "")
            done = await self._claimant.release(partitions)
            self._subscription.unassign(partitions)
        self._feed(claims.ClaimGone(done.gone))
        self._feed(claims.Released(done.released))

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        self._metrics.count("partitions_lost", len(partitions))
        self._subscription.unassign(partitions)
        self._handler.lost(partitions)

    # Offsets

    async def commit(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the next offset of every partition held of which something new is finished.

        Where somebody else wrote the offset meanwhile, theirs is the truth: it is adopted, and handed out from.

        Args:
            metadata: A text for stores that have room for one.

        Returns:
            The partitions whose offsets were stored.

        Raises:
            SessionLostError: The session is over; what was not stored will be delivered again.
        """
        async with self._writing:
            return await self._store_finished(self._subscription.assigned_partitions(), metadata)

    async def _store_finished(self, partitions: Collection[TopicPartition], metadata: str) -> frozenset[TopicPartition]:
        """
        Store what is finished of these; the lock is held.

        Offsets and the versions they replace are read at one moment, under the lock: between two commits an operator's
        offset may have been adopted, and an offset from before must not be written over it.
        """
        finished = self._subscription.all_consumed_offsets()
        wanted = {
            partition: (finished[partition], state.version)
            for partition in partitions
            if partition in finished and (state := self._subscription.state(partition)) is not None
        }
        found, foreign = await self._store.commit(wanted, metadata)
        for partition, standing in found.items():
            if standing.offset is not None:
                self._subscription.mark_committed(partition, standing.offset, standing.version)
        for partition, standing in foreign.items():
            self._adopt(partition, standing.offset, standing.version)
        stored = frozenset(
            partition for partition, standing in found.items() if standing.offset == wanted[partition][0]
        )
        self._metrics.count("offsets_committed", len(stored))
        return stored

    async def _start_over(self, topic: str) -> None:
        """A topic was deleted and created again: what is held of it starts at the beginning of the new log."""
        while held := [p for p in self._claims.in_phase(claims.Phase.HELD) if p.topic == topic]:
            try:
                async with self._writing:
                    standing = await self._store.reset_recreated(topic, sorted(held))
                    for partition, found in standing.items():
                        self._adopt(partition, found.offset, found.version)
                return
            except CoordinationError:
                raise
            except KielGroupsError as error:
                log.warning("group %s: %s starts over as soon as brokers know it: %s", self._config.group, topic, error)
                await asyncio.sleep(REOPEN_S)

    def _adopt(self, partition: TopicPartition, offset: int | None, version: int) -> None:
        state = self._subscription.state(partition)
        if state is None:
            return
        self._metrics.count("commits_superseded")
        if offset is None:
            # Garbage: what we know is better; the next commit overwrites it.
            self._subscription.mark_committed(partition, state.committed, version)
            return
        log.warning(
            "group %s: the offset of %s was changed to %d by somebody else; it is followed",
            self._config.group,
            partition,
            offset,
        )
        self._subscription.seek(partition, offset)
        self._subscription.mark_committed(partition, offset, version)
        self._handler.moved(partition, offset)


class _OwnerWatch:
    """A watch on one owner znode; called on every hint that it may be gone."""

    __slots__ = ("_holding", "partition")

    def __init__(self, holding: Holding, partition: TopicPartition) -> None:
        self._holding = holding
        self.partition = partition

    def __call__(self) -> None:
        self._holding.hint(self)
