"""The application of a simulated consumer: it processes records, commits, seeks, and pauses partitions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiel_groups.clients.delivery.listener_calls import ReadyClaims
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.listeners import Stall
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.model import TopicPartition
from tests.fakes.simulated_process import ENDLESS

if TYPE_CHECKING:
    from tests.sim.fetches import Fetches
    from tests.sim.poison import PoisonedRecords
    from tests.sim.world import World

__all__ = ["Application", "ApplicationListener", "InFlight"]


#: Of an application that commits by itself: the share of its finished deliveries, and of its revoked hooks, after or in
#: which it commits, and the share of the former commits that name the offsets.
COMMITTING_SHARE, HOOK_SHARE, NAMED_SHARE = 0.6, 0.7, 0.4


@dataclass(slots=True)
class InFlight:
    """
    The records of one partition that the application processes: from ``start`` up to, not including, ``until``.

    ``position`` is the consumer's position after these records. ``counts`` is False if they were meanwhile cut off the
    log, or if the application has sought elsewhere.
    """

    state: PartitionOffsets
    epoch: int
    start: int
    until: int
    position: int
    counts: bool = True


class Application:
    """What the operations of scenarios have a consumer's application do."""

    world: World
    process: Any
    member: GroupMember
    #: The application's commits under way.
    committing: int
    opened: dict[TopicPartition, int]
    in_flight: dict[TopicPartition, InFlight]
    fetches: Fetches
    poisoned: PoisonedRecords
    gate_is_open: bool
    #: The permanent error of the member.
    failure: KielGroupsError | None
    closing: bool
    #: The partitions whose assigned hook has ended, as the listener itself knows.
    hooked: set[TopicPartition]
    _subscription: SubscriptionState
    _ready: ReadyClaims
    _finished_some: asyncio.Event

    def fetch(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def _fetch_again(self, partition: TopicPartition) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        raise NotImplementedError

    @property
    def topics(self) -> frozenset[str]:
        return self._subscription.topics

    @property
    def pattern(self) -> str | None:
        return self._subscription.wanted.pattern

    def wants(self, topic: str) -> bool:
        """Whether the consumer should get partitions of an existing topic. A member may not know yet what matches."""
        if self.pattern is None:
            return topic in self.topics
        return not self.pattern.startswith(ENDLESS) and re.match(self.pattern, topic) is not None

    @property
    def is_running(self) -> bool:
        return not (self.process.killed or self.closing or self.failure)

    def state_of(self, partition: TopicPartition) -> PartitionOffsets | None:
        return self._subscription.offsets.of(partition)

    def _failed(self, error: KielGroupsError) -> None:
        """Report an error that the member regards as permanent. Scenarios do not expect such errors."""
        self.failure = error
        self.world.checker.stopped(self, error)  # type: ignore[arg-type]

    async def _commit_at_intervals(self, interval_s: float) -> None:
        while self.world.autocommit and not self.closing:
            await asyncio.sleep(interval_s)
            # If this commit fails, the next one stores the offsets, or the next owner processes the records again.
            with suppress(KielGroupsError):
                await self.member.commit_on_session()

    # PartitionHandler: called by the member

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        return self._ready.assigned(partitions)

    def start_unknown(self, topic: str, error: Exception) -> None:
        raise error

    def stalled(self, stall: Stall) -> None:
        """Ignore the stall: scenarios block and delay this application on purpose."""

    # Called by the operations of scenarios

    def _idle(self) -> list[TopicPartition]:
        """Return the partitions from which records may be delivered now, in ascending order."""
        if not self.gate_is_open or self.process.timeline.now_s < self.process.blocked_until_s:
            return []
        idle = sorted(self.opened.keys() - self.in_flight.keys() - self.fetches.resets - self.poisoned.aside)
        subscribed = [partition for partition in idle if partition.topic in self._subscription.topics]
        return [partition for partition in subscribed if not self._subscription.is_paused(partition)]

    def work(self, choice: float, count: int, duration_s: float) -> None:
        """
        Deliver up to ``count`` records of an idle partition to the application, which finishes them after
        ``duration_s``.
        """
        if idle := self._idle():
            self._deliver([idle[int(choice * len(idle))]], count, duration_s)

    def get_many(self, count: int, duration_s: float) -> None:
        """Deliver up to ``count`` records of each idle partition; the application finishes all of them at once."""
        self._deliver(self._idle(), count, duration_s)

    def _deliver(self, partitions: list[TopicPartition], count: int, duration_s: float) -> None:
        delivered: dict[TopicPartition, PartitionOffsets] = {}
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is None:
                continue
            log = self.world.logs[partition]
            if not log.has(state.position):
                self.process.call(self.fetch, partition)
                continue
            until = state.position + count if log.cut is None else min(state.position + count, log.cut)
            if until == state.position:
                continue
            poisoned = self.world.poison.first(partition, state.position, until)
            if poisoned == state.position:
                self.process.start(self.poisoned.meet(partition, poisoned))
                continue
            until = until if poisoned is None else poisoned
            self.world.checker.delivered(self, partition, state.position)  # type: ignore[arg-type]
            self.in_flight[partition] = InFlight(state, self.opened[partition], state.position, until, until)
            state.position = until
            delivered[partition] = state
        if delivered:
            self.process.timeline.after(
                duration_s, self.process.run_on_loop, self.process.call, self._finish_all, delivered
            )

    def _finish_all(self, delivered: dict[TopicPartition, PartitionOffsets]) -> None:
        finished = {partition: state for partition, state in delivered.items() if self._finish(partition, state)}
        random = self.world.timeline.random
        # As in most programs, one commit at a time: a later one would wait for it.
        may_commit = finished and not (self.world.autocommit or self.committing)
        if may_commit and random.random() < COMMITTING_SHARE:
            self._commit(finished if random.random() < NAMED_SHARE else {})

    def _commit(self, finished: dict[TopicPartition, PartitionOffsets]) -> None:
        """Commit as an application without automatic commits: offsets that it names, or all that is finished."""
        offsets = {partition: state.finished for partition, state in finished.items()}
        for partition, state in finished.items():
            self.world.checker.commit_chosen(self, partition, state.token, state.finished)  # type: ignore[arg-type]
        self.process.start(self.commit_if_allowed(offsets))

    async def commit_if_allowed(self, offsets: dict[TopicPartition, int]) -> None:
        """Commit these offsets, or all that is finished if there are none; drop the error of a refusal."""
        self.committing += 1
        try:
            # If this commit fails, a later one stores the offsets, or the next owner processes the records again.
            with suppress(KielGroupsError):
                await (self.member.commit_chosen(offsets) if offsets else self.member.commit_on_session())
        finally:
            self.committing -= 1

    async def commit_before_release(self) -> None:
        """Commit in a revoked hook, unless this application forgets to."""
        if self.world.timeline.random.random() < HOOK_SHARE:
            await self.commit_if_allowed({})

    def _finish(self, partition: TopicPartition, state: PartitionOffsets) -> bool:
        """Finish a delivery. Return whether it counts."""
        delivered = self.in_flight.get(partition)
        if delivered is None or delivered.state is not state:
            return False
        del self.in_flight[partition]
        counts = delivered.counts and state.position == delivered.position
        if counts:
            state.finished = delivered.until
            self.world.checker.processed(partition, delivered.epoch, delivered.until)
        self._finished_some.set()
        return counts

    def seek(self, choice: float, far: float) -> str:
        """
        Seek in an assigned partition, to an offset in its log. Return a description.

        Partitions whose offset another writer has changed are left out: the application would not know the log.
        """
        history = self.world.history
        known = [p for p in sorted(self._subscription.assigned_partitions()) if history.may_seek(self, p)]  # type: ignore[arg-type]
        if not known or self.process.timeline.now_s < self.process.blocked_until_s:
            return "nothing"
        partition = known[int(choice * len(known))]
        log = self.world.logs[partition]
        end = log.end if log.cut is None else log.cut
        offset = min(end, log.start + int(far * 1.5 * max(1, history.reached(partition) - log.start)))
        self.process.call(self._seek, partition, offset)
        return f"{partition} to {offset}"

    def _seek(self, partition: TopicPartition, offset: int) -> None:
        self._subscription.seek(partition, offset)
        self.world.checker.sought(self, partition, offset)  # type: ignore[arg-type]
        if (delivered := self.in_flight.get(partition)) is not None:
            delivered.counts = False
        self.poisoned.disown(partition)
        self._fetch_again(partition)

    def pause(self, choice: float) -> None:
        """Pause an assigned partition."""
        if assigned := sorted(self._subscription.assigned_partitions()):
            partition = assigned[int(choice * len(assigned))]
            self._subscription.pause(partition)
            self.world.checker.paused(self, partition)  # type: ignore[arg-type]

    def resume(self) -> None:
        """End all pauses."""
        for partition in self._subscription.paused_partitions():
            self._subscription.resume(partition)
            self.world.checker.resumed(self, partition)  # type: ignore[arg-type]


class ApplicationListener:
    """
    The application's hooks; in some groups the assigned hook takes ``World.hook_s`` seconds.

    An application that commits by itself does so in most of its revoked hooks.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self._application.world.hook_s:
            await asyncio.sleep(self._application.world.hook_s)
        self._application.hooked.update(partitions)

    async def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if not self._application.world.autocommit:
            await self._application.commit_before_release()
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._application.hooked.difference_update(partitions)
