"""One consumer of a simulated broker-coordinated group: a real member, and an application that only counts records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kiel_groups.allocators.assignors import assignors_of
from kiel_groups.clients.delivery.listener_calls import ListenerCalls, ReadyClaims
from kiel_groups.errors import BrokerError, KielGroupsError, NoBrokersError
from kiel_groups.group.partition_offsets import PartitionOffsets
from kiel_groups.group.seen_topics import LogSight, SeenTopics
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.brokers.consumer_member import ConsumerMember
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext, JoinedGroup, MemberHooks
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.members.partition_handler import Gate, LogOffsets, Work
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.fakes.simulated_process import SimulatedProcess
from tests.sim.application import Application, ApplicationListener, InFlight
from tests.sim.coordinated.member_network import MemberNetwork
from tests.sim.fetches import Fetches

if TYPE_CHECKING:
    from tests.sim.coordinated.broker_world import BrokerWorld

__all__ = ["BrokerConsumer", "MemberProcess"]

#: The pause, in seconds, before the application tries again to join.
_REJOIN_S = 1.0


class MemberProcess(SimulatedProcess):
    """The process of one consumer."""

    def __init__(self, consumer: BrokerConsumer) -> None:
        super().__init__(consumer.world.ensemble, consumer.name)
        self.consumer = consumer


class _Topics:
    """The topics of the cluster as one process knows them; see ``TopicSource``."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world
        self._known: dict[str, tuple[int, ...]] = {}
        self.seen = SeenTopics()
        #: The newest incarnation of each topic that a broker has listed.
        self.newest: dict[str, int] = {}
        #: The incarnation of each topic whose id a broker has named first.
        self.identified: dict[str, int] = {}
        #: The incarnation of each topic before which a broker has last lacked the topic.
        self.lacked: dict[str, int] = {}
        self.asks_ids = world.scenario.ids and not world.coordinator.early

    async def refresh(self, topics: Collection[str], reason: str) -> None:
        await asyncio.sleep(self._world.timeline.random.uniform(0.001, 0.05))
        if self._world.metadata_fails:
            raise NoBrokersError("no broker has answered")
        for name in sorted(self._world.topics.keys() & frozenset(topics)):
            if (incarnation := self._world.listed(name)) is None:
                self._known.pop(name, None)
                self.seen.missing(name)
                self.lacked[name] = self._world.incarnations[name] + (name in self._world.deleted)
                continue
            if name in self._world.deleted:
                # A broker with old metadata says that the topic is there.
                self.lacked.pop(name, None)
            self._known[name] = tuple(range(self._world.topics[name]))
            self.newest[name] = max(incarnation, self.newest.get(name, 0))
            self.seen.listed(name)
            if self.asks_ids:
                self.identified.setdefault(name, incarnation)
                self.seen.identified(name, f"{name} {incarnation}")

    async def all_topics(self) -> frozenset[str]:
        if self._world.metadata_fails:
            raise NoBrokersError("no broker has answered")
        return frozenset(self._world.topics) - self._world.deleted | {"__consumer_offsets"}

    def known_partitions(self, topic: str) -> tuple[int, ...] | None:
        return self._known.get(topic)


class _NoPoison:
    """Stands for poisoned records, which groups that brokers coordinate have in common with all others."""

    aside: frozenset[TopicPartition] = frozenset()


class _WatchedMetrics(Metrics):
    """Reports warnings of offsets that may be skipped to the checker, with the partitions that were just compared."""

    def __init__(self, consumer: BrokerConsumer) -> None:
        super().__init__()
        self._consumer = consumer

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        super().count(name, amount, **labels)
        if name == "new_logs_unknown":
            self._consumer.world.checker.warned(self._consumer.compared)


class BrokerConsumer(Application):
    """
    A process with one member.

    ``opened`` has each partition from which it may deliver. ``hooked`` has those whose assigned hook has ended.
    """

    world: BrokerWorld  # type: ignore[assignment]
    process: MemberProcess
    member: ConsumerMember  # type: ignore[assignment]

    def __init__(self, world: BrokerWorld, name: str, topics: Collection[str], pattern: str | None = None) -> None:
        self.world = world
        self.name = name
        self.process = MemberProcess(self)
        self.network = MemberNetwork(world, self.process)
        self.opened: dict[TopicPartition, int] = {}
        self.hooked: set[TopicPartition] = set()
        self.in_flight: dict[TopicPartition, InFlight] = {}
        self.committing = 0
        self.gate: GenerationGate | None = None
        self.failure: KielGroupsError | None = None
        self.metrics = _WatchedMetrics(self)
        #: The partitions whose logs were compared last, as far as their positions are not the first ones.
        self.compared: frozenset[TopicPartition] = frozenset()
        self.poisoned = _NoPoison()  # type: ignore[assignment]
        #: The incarnation and the offset of an early record of each partition that this process has read.
        self.marks: dict[TopicPartition, tuple[int, int]] = {}
        #: The incarnation of each topic of which the process has opened a partition first.
        self.first_opened: dict[str, int] = {}
        self.closing = self.closed = False
        self._finished_some = asyncio.Event()
        self._subscription = SubscriptionState(world.group_config)
        if pattern is None:
            self._subscription.change_subscription(topics)
        else:
            self._subscription.subscribe(pattern=pattern)
        self._calls = ListenerCalls(ApplicationListener(self), self.metrics)
        self._ready = ReadyClaims(self._subscription, self._calls, self._open)
        self._topics = _Topics(world)
        self.member = self.process.call(self._new_member)
        self.fetches = Fetches(self, self._subscription)  # type: ignore[arg-type]
        self._renewal = self.process.start(self._renew_metadata())
        self._running = self.process.start(self._run(world.group_config.auto_commit_interval_ms / 1000))

    def _new_member(self) -> ConsumerMember:
        context = CoordinatedContext(
            group=self.world.group_config,
            timing=self.world.timing,
            transport=self.network,
            versions=GroupVersions(self.world.scenario.release),
            metrics=self.metrics,
            runtime=self.process.runtime,
        )
        member = ConsumerMember(
            context, self, self._subscription, self._topics, assignors_of(self.world.assignor), self._failed
        )
        self._watched_hooks = _WatchedHooks(self, member._hooks)
        member._member._hooks = self._watched_hooks
        return member

    async def _renew_metadata(self) -> None:
        while True:
            await asyncio.sleep(self.world.timing.metadata_max_age_ms / 1000)
            with suppress(KielGroupsError):
                await self._topics.refresh(self.topics, "age")

    async def _run(self, commit_interval_s: float) -> None:
        while not self.closing:
            try:
                await self.member.start()
                break
            except KielGroupsError as error:
                if not error.retriable:
                    self.world.checker.stopped(self, error)
                await self.member.close()
                await asyncio.sleep(_REJOIN_S)
                self.member = self._new_member()
                self.fetches = Fetches(self, self._subscription)  # type: ignore[arg-type]
        await self._commit_at_intervals(commit_interval_s)

    # Used by the operations of scenarios, and by the checker

    @property
    def lease_runs(self) -> bool:
        """Whether the gate is open by the clock, also in a process that is stopped."""
        return self.gate is not None and self.gate.is_open(self.process.timeline.now_s)

    @property
    def gate_is_open(self) -> bool:  # type: ignore[override]
        """Whether this consumer could deliver records now."""
        return self.process.runs and self.lease_runs

    def subscribe(self, topics: Collection[str], pattern: str | None = None) -> None:
        """Subscribe to topics, or to a pattern if there is one."""
        if (pattern is None) is (self.pattern is not None):
            self._subscription.unsubscribe()
        if self._subscription.subscribe(() if pattern else topics, pattern):
            self.process.start(self._resubscribe())

    async def _resubscribe(self) -> None:
        with suppress(KielGroupsError):
            await self.member.resubscribe()

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        self.process.kill()
        self.opened.clear()
        self.in_flight.clear()

    def leave(self, limit_s: float | None = None) -> None:
        """Leave the group cleanly, within a time limit if there is one."""
        if not self.closing:
            self.closing = True
            self.process.start(self._leave(limit_s))

    async def _leave(self, limit_s: float | None) -> None:
        self._running.cancel()
        self._renewal.cancel()
        await asyncio.wait({self._running, self._renewal})
        await self.member.close(CloseLimit(limit_s))
        self.closed = True
        self.world.checker.closed(self)

    # PartitionHandler: called by the member

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        await asyncio.sleep(self.world.timeline.random.uniform(0.001, 0.05))
        led = [partition for partition in sorted(partitions) if self.world.has_leader(partition)]
        logs = {partition: self.world.logs[partition] for partition in led}
        failures = {each: BrokerError(f"no leader of {each}") for each in sorted(set(partitions).difference(led))}
        found = {each: log.start if policy == "earliest" else log.end for each, log in logs.items()}
        return LogOffsets(found, failures)  # type: ignore[arg-type]

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        await asyncio.sleep(self.world.timeline.random.uniform(0.001, 0.05))
        led = [partition for partition in sorted(positions) if self.world.has_leader(partition)]
        sights = {partition: self._sight(partition, positions[partition]) for partition in led}
        # The answers of other leaders may arrive later.
        await asyncio.sleep(self.world.timeline.random.uniform(0.001, 0.05))
        self.compared = frozenset(each for each, sight in sights.items() if sight.start < sight.position)
        return sights

    def _sight(self, partition: TopicPartition, position: int) -> LogSight:
        log = self.world.logs[partition]
        incarnation, offset = self.marks.get(partition, (0, -1))
        has_record = None
        # Some logs have compressed records, which are not compared.
        if log.start <= offset < log.end and partition.partition % 3:
            has_record = incarnation == self.world.incarnations[partition.topic]
        in_doubt = partition in self.fetches.resets
        return LogSight(position, log.start, log.end, has_record, offset == log.start, in_doubt)

    def note_delivery(self, partition: TopicPartition, position: int) -> None:
        """Note an early record that the process has read in the present assignment, unless its log is in doubt."""
        if self._topics.seen.was_missing(partition.topic):
            self.marks.setdefault(partition, (0, -1))
        self.marks.setdefault(partition, (self.world.incarnations[partition.topic], position))

    def doubt_logs(self, topic: str) -> None:
        """Read no further record by which logs are recognised: the fetches of their partitions fail."""
        for partition in self.opened:
            if partition.topic == topic:
                self.marks.setdefault(partition, (0, -1))

    def fetch_failed(self, topic: str) -> None:
        """Note, unless the process does not run, that a broker does not know the topic."""
        if self.is_running and any(partition.topic == topic for partition in self.opened):
            self.process.run_on_loop(self.process.call, self._topics.seen.doubt, topic)

    def newest_topics(self) -> dict[str, int]:
        """Return the newest incarnation of each topic that the process knows."""
        return dict(self._topics.newest)

    def knows_former(self, partition: TopicPartition) -> bool:
        """Return whether the process can know that the topic of which it lacks an offset was created again."""
        topic, present = partition.topic, self.world.incarnations[partition.topic]
        was_open = self.first_opened.get(topic, present) < present
        return self._topics.seen.number(topic) > 0 or (was_open and self.lacked(partition))

    @property
    def asks_ids(self) -> bool:
        return self._topics.asks_ids

    def has_former_id(self, topic: str) -> bool:
        """Return whether a broker has told the process the id of an earlier incarnation of the topic."""
        present = self.world.incarnations[topic]
        return self._topics.identified.get(topic, present) < present

    def lacked(self, partition: TopicPartition) -> bool:
        """Return whether brokers have lacked the topic before its present incarnation, or its logs have shown it."""
        present = self.world.incarnations[partition.topic]
        return present in (self._topics.lacked.get(partition.topic), self._topics.seen.number(partition.topic))

    def _idle(self) -> list[TopicPartition]:
        return [partition for partition in super()._idle() if partition.topic not in self.world.deleted]

    def _finish(self, partition: TopicPartition, state: PartitionOffsets) -> bool:
        delivered = self.in_flight.get(partition)
        counts = super()._finish(partition, state)
        if counts and delivered is not None:
            self.world.checker.covered(partition, delivered.epoch, delivered.start, delivered.until)
        return counts

    # Called by the application and by resets of positions

    def fetch(self, partition: TopicPartition) -> None:
        """Start a reset of the position if the log does not have it."""
        if partition in self.opened and not self.closing and partition.topic not in self.world.deleted:
            self.fetches.check_position(partition)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        return self.fetches.while_fetched(partition)

    def update_epoch(self, partition: TopicPartition) -> None:
        """Do nothing: the deliveries of these groups have no epochs."""

    def truncate(self, partition: TopicPartition, end: int) -> int:
        if (delivered := self.in_flight.get(partition)) is not None:
            delivered.counts = delivered.counts and delivered.start < end
            delivered.until = min(delivered.until, end)
        return 0

    async def wait_until_consumed(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        while is_fetched() and partition in self.in_flight:
            self._finished_some.clear()
            await self._finished_some.wait()

    # PartitionHandler: called by the member

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        for partition in partitions:
            self.marks.pop(partition, None)
            self.world.checker.assigned(self, partition)
        return super().assigned(partitions)

    def gate_changed(self, gate: Gate) -> None:
        assert isinstance(gate, GenerationGate)
        self.gate = gate

    def _open(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None:
                self.opened[partition] = 0
                self.first_opened.setdefault(partition.topic, self.world.incarnations[partition.topic])
                self.fetches.forget(partition)
                self.fetches.start(partition)
                self.world.checker.opened(self, partition, state.position)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        self._ready.remove(partitions)
        for partition in partitions:
            self._close(partition)
        self._finished_some.set()
        return frozenset(partitions) & self.in_flight.keys()

    def _close(self, partition: TopicPartition) -> None:
        self.opened.pop(partition, None)
        self.fetches.forget(partition)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        while not self.in_flight.keys().isdisjoint(partitions):
            self._finished_some.clear()
            await self._finished_some.wait()
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._ready.remove(partitions)
        self._calls.lost(partitions)
        for partition in partitions:
            self._close(partition)
            self.in_flight.pop(partition, None)
        self._finished_some.set()

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Continue in the new log of a topic that was created again."""
        self.marks.pop(partition, None)
        self.world.checker.restarted(self, partition, offset)
        if (delivered := self.in_flight.get(partition)) is not None:
            delivered.counts = False
        self.fetches.forget(partition)
        if partition in self.opened:
            self.fetches.start(partition)
        self._finished_some.set()

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        raise NotImplementedError

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        raise NotImplementedError

    def leaders_changed(self, leaders: object, brokers: object) -> None:
        raise NotImplementedError

    def in_progress(self) -> Collection[Work]:
        work = [Work(each, "processing", frozenset({partition})) for partition, each in self.in_flight.items()]
        return [*work, *self._calls.in_progress()]


class _WatchedHooks:
    """Passes the hooks of a member on, and checks their order: complete, and then once prepare or lost."""

    def __init__(self, consumer: BrokerConsumer, hooks: MemberHooks) -> None:
        self._consumer = consumer
        self._hooks = hooks
        self._present: GenerationGate | None = None
        self._running = 0

    def _check(self, *, holds: bool, what: str) -> None:
        if holds is not True:
            raise self._consumer.world.checker.violation(f"{self._consumer.name}: {what}")

    @property
    def protocol_type(self) -> str:
        return self._hooks.protocol_type

    async def protocols(self) -> Collection[GroupProtocol]:
        return await self._hooks.protocols()

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        return await self._hooks.perform_assignment(joined)

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        self._check(holds=self._present is None, what="complete before the former assignment is given back")
        self._present = gate
        await self._run(lambda: self._hooks.complete(gate, joined, assignment))

    async def prepare(self, gate: GenerationGate) -> None:
        # A member that rejoins right after its sync may cancel ``complete`` before it has begun.
        self._check(holds=self._present in (gate, None), what="prepare of another assignment")
        self._check(holds=self._running == 0, what="prepare while another hook runs")
        await self._run(lambda: self._hooks.prepare(gate))
        self._present = None

    def lost(self, gate: GenerationGate) -> None:
        self._check(holds=self._present in (gate, None), what="lost of another assignment")
        self._check(holds=not gate.is_open(0.0), what="lost with an open gate")
        self._present = None
        self._hooks.lost(gate)

    async def _run(self, hook: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._running += 1
        try:
            await hook()
        finally:
            self._running -= 1
