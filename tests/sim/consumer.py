"""One consumer of a simulated group: a real member, with an application that only counts records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kiel_groups.clients.delivery.listener_calls import ListenerCalls, ReadyClaims
from kiel_groups.config import GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.errors import BrokerError, KielGroupsError
from kiel_groups.group.claims import Phase
from kiel_groups.group.subscription import Subscription, SubscriptionState
from kiel_groups.members.partition_handler import Gate, KafkaOffsets, LogOffsets, Work
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.tasks import ProcessContext
from tests.fakes.fake_client import FakeConnection
from tests.fakes.simulated_process import SimulatedProcess
from tests.sim.application import Application, ApplicationListener, InFlight
from tests.sim.fetches import Fetches
from tests.sim.logs import Range
from tests.sim.poison import PoisonedRecords

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Consumer"]

#: The pause, in seconds, before the application tries again to join.
REJOIN_S = 1.0

#: The longest time, in seconds, for which log offsets of partitions without a leader are requested again.
PATIENCE_S = 2.0


class Consumer(Application):
    """
    A process with one member.

    ``opened`` maps each partition from which it may deliver to the epoch of its offset (see ``History``).

    The application subscribes before it joins, or ``subscribe_after_s`` after it has joined.
    """

    def __init__(
        self,
        world: World,
        name: str,
        topics: Collection[str],
        instance_id: str | None,
        pattern: str | None = None,
        subscribe_after_s: float = 0.0,
    ) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.process = _Process(self)
        self.opened: dict[TopicPartition, int] = {}
        self.in_flight: dict[TopicPartition, InFlight] = {}
        self.leader_updates = 0
        self.committing = 0
        #: The gate of the member's current session.
        self.gate = DeliveryGate()
        self.failure: KielGroupsError | None = None
        self.metrics = Metrics()
        self.poisoned = PoisonedRecords(self)
        self.closing = False
        self.closed = False
        self._finished_some = asyncio.Event()
        config, zookeeper = world.settings(instance_id)
        self._subscription = SubscriptionState(config)
        #: The subscription of an application that has not subscribed yet.
        self.pending: Subscription | None = None
        self._subscribe_after_s = subscribe_after_s
        if subscribe_after_s and (topics or pattern):
            self.pending = Subscription(frozenset(topics), pattern)
        elif pattern is None:
            # Without a topic, the member joins all the same.
            self._subscription.change_subscription(topics)
        else:
            self._subscription.subscribe(pattern=pattern)
        #: Partitions whose assigned hook has ended, recorded by the listener itself.
        self.hooked: set[TopicPartition] = set()
        self._calls = ListenerCalls(ApplicationListener(self), self.metrics)
        self._ready = ReadyClaims(self._subscription, self._calls, self._open)
        #: The token and the epoch with which ``continue_in_epoch`` was last called.
        self._continued: dict[TopicPartition, tuple[int, int]] = {}
        self.member = self.process.call(self._member, config, zookeeper)
        self.fetches = Fetches(self, self._subscription)
        self._running = self.process.start(self._run(config.auto_commit_interval_ms / 1000))

    def _member(self, config: GroupConfig, zookeeper: ZooKeeperConfig) -> GroupMember:
        context = ProcessContext(config, zookeeper, self.metrics, self.process.runtime)
        return GroupMember(context, self, self._subscription, self.world.allocator, self._failed)

    async def _run(self, commit_interval_s: float) -> None:
        while not self.closing:
            try:
                await self.member.start()
                break
            except KielGroupsError as error:
                if not error.retriable:
                    self.world.checker.stopped(self, error)
                await asyncio.sleep(REJOIN_S)
        if self.pending is not None:
            await asyncio.sleep(self._subscribe_after_s)
        if self.pending is not None and self._change_subscription(*self.pending):
            await self.member.resubscribe()
        await self._commit_at_intervals(commit_interval_s)

    # Used by the operations of scenarios, and by the checker

    def token(self, partition: TopicPartition) -> int:
        """Return the fencing token of an open partition, or 0."""
        state = self._subscription.offsets.of(partition)
        return 0 if state is None else state.token

    def is_paused(self, partition: TopicPartition) -> bool:
        return self._subscription.is_paused(partition)

    def is_assigned(self, partition: TopicPartition) -> bool:
        return self._subscription.is_assigned(partition)

    @property
    def gate_is_open(self) -> bool:  # type: ignore[override]
        """Whether this consumer could deliver records now."""
        return self.process.runs and self.gate.is_open(self.process.timeline.now_s)

    def last_zxid(self, session_id: int) -> int:
        """
        Return the zxid of the newest change that the consumer can know of when it sends a request on this session.
        """
        return self.process.connection_of[session_id].last_zxid

    def finished(self, partition: TopicPartition) -> tuple[int, int] | None:
        """The offset znode's version and the next offset, as the consumer knows them; None if it is not the owner."""
        state = self._subscription.offsets.of(partition)
        return None if state is None else (state.version, state.finished)

    def created(self, partition: TopicPartition) -> int:
        """The czxid of the topic incarnation to which the consumer's position in a partition belongs; 0 if none."""
        state = self._subscription.offsets.of(partition)
        return 0 if state is None else state.created

    @property
    def assignment_path(self) -> str | None:
        """The path of the consumer's assignment, or None before a member without ``instance_id`` has joined."""
        slot = self.instance_id or self.member.member_id
        return None if slot is None else self.world.layout.assignment(slot)

    @property
    def wanted(self) -> Collection[TopicPartition] | None:
        """
        The partitions of the assignment that the member has read last in its session, or None if it has read none.
        """
        session = self.member._member_session
        return None if session is None else session.role.owned_partitions._claims.want

    def has_pending_reset(self, partition: TopicPartition) -> bool:
        """Whether the consumer has chosen a reset of a partition and not stored it yet."""
        return partition in self._subscription.offsets.resetting()

    def in_phase(self, phase: Phase) -> frozenset[TopicPartition]:
        """Return the partitions whose claims are in ``phase`` in the current member session."""
        session = self.member._member_session
        return frozenset() if session is None else session.role.owned_partitions._claims.in_phase(phase)

    def continue_in_epoch(self, partition: TopicPartition, epoch: int) -> None:
        """Assign a partition's future deliveries and its in-flight records to ``epoch``."""
        self._continued[partition] = (self.token(partition), epoch)
        if partition in self.opened:
            self.opened[partition] = epoch
        if partition in self.in_flight:
            self.in_flight[partition].epoch = epoch
        self.poisoned.continue_in_epoch(partition, epoch)

    def is_processing(self, partition: TopicPartition) -> bool:
        """Whether the application processes records of a partition, or runs the hook of a poisoned one."""
        return partition in self.in_flight or partition in self.poisoned.hooks

    def subscribe(self, topics: Collection[str], pattern: str | None = None) -> None:
        """Subscribe to topics, or to a pattern if there is one, as an operation of the scenario."""
        if self._change_subscription(topics, pattern):
            self.process.start(self.member.resubscribe())

    def _change_subscription(self, topics: Collection[str], pattern: str | None) -> bool:
        self.pending = None
        paused = self._subscription.paused_partitions()
        if (pattern is None) is (self.pattern is not None):
            self._subscription.unsubscribe()
        if not self._subscription.subscribe(() if pattern else topics, pattern):
            return False
        for partition in paused - self._subscription.assigned_partitions():
            self.world.checker.resumed(self, partition)
        return True

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        self.process.kill()
        self.opened.clear()
        self.in_flight.clear()
        self.fetches.resets.clear()

    @property
    def has_client(self) -> bool:
        """Whether a ZooKeeper client of this process runs, with or without a connection."""
        return any(not connection.stopped for connection in self.process.connections)

    def leave(self) -> None:
        """Leave the group cleanly."""
        if not self.closing:
            self.closing = True
            self.process.start(self._leave())

    async def _leave(self) -> None:
        self._running.cancel()
        if self.world.timeline.random.random() < 0.5:
            # An application may cancel a connect, and close the consumer right after that.
            await asyncio.sleep(0)
            self._running.cancel()
        await asyncio.wait({self._running})
        await self.member.close()
        self.closed = True

    # Called by the application and by resets of positions

    def fetch(self, partition: TopicPartition) -> None:
        """Start a reset of the position if the log does not have it."""
        if partition in self.opened and not self.closing:
            self.fetches.check_position(partition)

    def update_epoch(self, partition: TopicPartition) -> None:
        """Assign the future deliveries of an open partition to the epoch of its present offset."""
        if partition in self.opened:
            self.opened[partition] = self._epoch(partition)

    def while_fetched(self, partition: TopicPartition) -> Callable[[], bool]:
        return self.fetches.while_fetched(partition)

    def truncate(self, partition: TopicPartition, end: int) -> int:
        """Handle a chosen reset: in-flight records at and after ``end``, where the log ends, do not count."""
        state = self._subscription.offsets.of(partition)
        assert state is not None
        assert state.reset is not None
        found = Range(state.reset.lost, state.reset.start, state.reset.end)
        self.world.checker.range_reported(self, partition, state.token, found)
        delivered = self.in_flight.get(partition)
        if delivered is not None:
            delivered.counts = delivered.counts and delivered.start < end
            delivered.until = min(delivered.until, end)
        self.poisoned.truncate(partition, end)
        return 0

    async def wait_until_consumed(self, partition: TopicPartition, is_fetched: Callable[[], bool]) -> None:
        while is_fetched() and partition in self.in_flight:
            self._finished_some.clear()
            await self._finished_some.wait()
        await self.poisoned.finished([partition])

    def _fetch_again(self, partition: TopicPartition) -> None:
        if partition in self.opened:
            self.update_epoch(partition)
            self._forget_fetch(partition)
            self.fetches.start(partition)
        self._finished_some.set()

    def _forget_fetch(self, partition: TopicPartition) -> None:
        self.fetches.forget(partition)
        self.poisoned.drop(partition)
        self._finished_some.set()

    # PartitionHandler: called by the member

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up each partition separately: some leaders are known at once, other leaders only after a while."""
        random = self.world.timeline.random
        await asyncio.sleep(random.uniform(0.001, 0.05))
        led = {partition for partition in partitions if self.world.has_leader(partition)}
        if len(led) < len(partitions):
            await asyncio.sleep(random.uniform(0.0, PATIENCE_S))
            led |= {partition for partition in partitions if self.world.has_leader(partition)}
        logs = {partition: self.world.logs[partition] for partition in led}
        return LogOffsets(
            {partition: log.start if policy == "earliest" else log.end for partition, log in logs.items()},
            {partition: BrokerError(f"no leader of {partition}") for partition in sorted({*partitions} - led)},
        )

    def gate_changed(self, gate: Gate) -> None:
        assert isinstance(gate, DeliveryGate)
        self.gate = gate

    def _open(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            state = self._subscription.offsets.of(partition)
            if state is not None:
                self._forget_fetch(partition)
                self.fetches.start(partition)
                self.opened[partition] = self._epoch(partition)
                self.world.checker.opened(self, partition, state.position)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        self._ready.remove(partitions)
        for partition in partitions:
            self.opened.pop(partition, None)
            # A reset of the partition ends here. An offset that was already chosen is stored with the release.
            self.fetches.stop(partition)
            self.poisoned.drop(partition)
        self._finished_some.set()
        return frozenset(partitions) & self.in_flight.keys() | self.poisoned.in_flight.in_flight_of(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        while not self.in_flight.keys().isdisjoint(partitions):
            self._finished_some.clear()
            await self._finished_some.wait()
        await self.poisoned.finished(partitions)
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._ready.remove(partitions)
        self._calls.lost(partitions)
        for partition in partitions:
            self.opened.pop(partition, None)
            self.in_flight.pop(partition, None)
            self.poisoned.lose(partition)
            self._forget_fetch(partition)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        self.world.checker.continued(partition, offset)
        self.world.history.seeks.end(self, partition)
        # The position follows the version that was read, even if a broker's late write has replaced that version.
        self._continued.pop(partition, None)
        self.in_flight.pop(partition, None)
        self.poisoned.lose(partition)
        self._fetch_again(partition)

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> object:
        await asyncio.sleep(self.world.timeline.random.uniform(0.001, 0.05))
        return {}

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> object:
        self.world.checker.commit_requested(self, offsets)
        return await self.world.brokers.commit(self, offsets)

    @property
    def kafka_offsets(self) -> KafkaOffsets:
        """Only groups of ``kafka_groups`` have offsets in Kafka."""
        raise NotImplementedError

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Count the updates; the simulated logs do not depend on which broker leads."""
        self.leader_updates += 1

    def in_progress(self) -> Collection[Work]:
        delivered = [Work(each, "processing", frozenset({partition})) for partition, each in self.in_flight.items()]
        return delivered + self.poisoned.in_flight.works()

    def _epoch(self, partition: TopicPartition) -> int:
        state = self.state_of(partition)
        assert state is not None
        seek = self.world.history.seeks.newest(self, partition)
        if seek is not None and seek.token == state.token:
            return seek.epoch
        token, continued = self._continued.get(partition, (0, -1))
        known = self.world.history.epoch_at(partition, state.version)
        # Right after a write, the consumer does not know the new version yet.
        return max(known, continued) if token == state.token else known


class _Process(SimulatedProcess):
    """A process that reports each session that it opens to the checker."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer.world.ensemble, consumer.name)
        self._consumer = consumer
        self.connection_of: dict[int, FakeConnection] = {}

    def opened_session(self, connection: FakeConnection, session_id: int) -> None:
        super().opened_session(connection, session_id)
        self.connection_of[session_id] = connection
        # A client that was given up may still connect to a server right before it is stopped.
        is_first = connection.sessions == 1 and connection is self.connections[-1]
        self._consumer.world.checker.session_opened(self._consumer, session_id, is_first=is_first)
