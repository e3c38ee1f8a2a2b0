"""One consumer of a simulated broker-coordinated group: a real member, and an application that only counts records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kiel_groups.allocators.assignors import assignors_of
from kiel_groups.clients.coordinated.consumer_member import ConsumerMember
from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.clients.coordinator.group_versions import GroupVersions
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext, JoinedGroup, MemberHooks
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.ready_claims import ReadyClaims
from kiel_groups.coordination.partition_handler import Gate, LogOffsets, Work
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.errors import BrokerError, KielGroupsError, NoBrokersError
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.testing.simulated_process import SimulatedProcess
from kiel_groups.wire.groups.join_group import GroupProtocol
from tests.sim.application import Application, ApplicationListener, InFlight
from tests.sim.coordinated.member_network import MemberNetwork

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

    async def refresh(self, topics: Collection[str], reason: str) -> None:
        await asyncio.sleep(self._world.timeline.random.uniform(0.001, 0.05))
        if self._world.metadata_fails:
            raise NoBrokersError("no broker has answered")
        self._known |= {name: tuple(range(self._world.topics[name])) for name in topics if name in self._world.topics}

    async def all_topics(self) -> frozenset[str]:
        return frozenset(self._world.topics)

    def known_partitions(self, topic: str) -> tuple[int, ...] | None:
        return self._known.get(topic)


class _NoFaultsOfRecords:
    """Stands for resets and poisoned records, which groups that brokers coordinate have in common with all others."""

    aside: frozenset[TopicPartition] = frozenset()
    resets: frozenset[TopicPartition] = frozenset()


class BrokerConsumer(Application):
    """
    A process with one member.

    ``opened`` has each partition from which it may deliver. ``hooked`` has those whose assigned hook has ended.
    """

    world: BrokerWorld  # type: ignore[assignment]
    process: MemberProcess
    member: ConsumerMember  # type: ignore[assignment]

    def __init__(self, world: BrokerWorld, name: str, topics: Collection[str]) -> None:
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
        self.metrics = Metrics()
        self.poisoned = self.fetches = _NoFaultsOfRecords()  # type: ignore[assignment]
        self.closing = self.closed = False
        self._finished_some = asyncio.Event()
        self._subscription = SubscriptionState(world.group_config)
        self._subscription.change_subscription(topics)
        self._calls = ListenerCalls(ApplicationListener(self), self.metrics)
        self._ready = ReadyClaims(self._subscription, self._calls, self._open)
        self._topics = _Topics(world)
        self.member = self.process.call(self._new_member)
        self._running = self.process.start(self._run(world.group_config.auto_commit_interval_ms / 1000))

    def _new_member(self) -> ConsumerMember:
        context = CoordinatedContext(
            group=self.world.group_config,
            timing=self.world.timing,
            transport=self.network,
            versions=GroupVersions((0, 9) if self.world.coordinator.early else (3, 9)),
            metrics=self.metrics,
            runtime=self.process.runtime,
        )
        member = ConsumerMember(
            context, self, self._subscription, self._topics, assignors_of(self.world.assignor), self._failed
        )
        self._watched_hooks = _WatchedHooks(self, member._hooks)
        member._member._hooks = self._watched_hooks
        return member

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

    def subscribe(self, topics: Collection[str]) -> None:
        if self._subscription.subscribe(topics):
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
        await asyncio.wait({self._running})
        await self.member.close(CloseLimit(limit_s))
        self.closed = True
        self.world.checker.closed(self)

    # PartitionHandler: called by the member

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        await asyncio.sleep(self.world.timeline.random.uniform(0.001, 0.05))
        if self.world.metadata_fails:
            return LogOffsets({}, {each: BrokerError(f"no leader of {each}") for each in sorted(partitions)})
        logs = {partition: self.world.logs[partition] for partition in sorted(partitions)}
        return LogOffsets({each: log.start if policy == "earliest" else log.end for each, log in logs.items()}, {})

    def gate_changed(self, gate: Gate) -> None:
        assert isinstance(gate, GenerationGate)
        self.gate = gate

    def _open(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None:
                self.opened[partition] = 0
                self.world.checker.opened(self, partition, state.position)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        self._ready.remove(partitions)
        for partition in partitions:
            self.opened.pop(partition, None)
        self._finished_some.set()
        return frozenset(partitions) & self.in_flight.keys()

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        while not self.in_flight.keys().isdisjoint(partitions):
            self._finished_some.clear()
            await self._finished_some.wait()
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._ready.remove(partitions)
        self._calls.lost(partitions)
        for partition in partitions:
            self.opened.pop(partition, None)
            self.in_flight.pop(partition, None)
        self._finished_some.set()

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        raise NotImplementedError("a coordinator lets no other writer set an offset")

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
