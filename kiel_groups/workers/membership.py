"""
The hooks of a worker's group member: they join the group, assign work if the worker leads, and start assigned work.

Work means connectors and tasks. A worker joins with its URL and the offset of the configuration that it has read for
this join. The leader assigns the work by the configuration at the largest of these offsets. If the leader has not read
this configuration itself (a *mismatch*), the leader assigns no work: an assignment by an older configuration would
start deleted work, or tasks with former settings. After a mismatch, each worker pauses, reads the configuration again,
and joins again if the configuration has the largest offset. The leader's pause is the shortest, since its join ends the
mismatch. The other workers join later in case the leader does not join.

If a worker's configuration is behind the offset of its assignment, the worker reads the configuration until the
configuration has this offset. Until then, the worker starts no work. If the wait is too long, the worker leaves the
group, as in Kafka Connect, and joins again when it can read the configuration. If the worker stayed in the group, its
assigned work would not run. If the worker is the leader, all work would wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from kiel_groups.backoff import Backoff
from kiel_groups.errors import AllocatorError, KielGroupsError, ProtocolError
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.metrics import MEMBER_METRICS, Metrics
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.wire.connect_protocol import (
    CONFIG_MISMATCH,
    CONNECTOR_TASK,
    DEFAULT_PROTOCOL,
    NO_OFFSET,
    STICKY_PROTOCOL,
    ConnectAssignment,
    ConnectMetadata,
    StickyMetadata,
)
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.wording import counted
from kiel_groups.workers.allocation import WORK_ALLOCATORS, WorkAllocation, WorkAllocator, work_allocator
from kiel_groups.workers.values import ConfigSnapshot, ConnectorId, TaskId, Work, WorkerAssignment
from kiel_groups.zookeeper.rights import LoggedRefusals
from kiel_groups.zookeeper.runtime import Runtime

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """
    The data of a worker that its parts share.

    Args:
        group: The name of the worker group.
        url: The URL of the worker's REST interface.
        metrics: The worker's metrics registry.
        runtime: Clocks and randomness.
        refusals: The missing rights and refused credentials that were logged.
    """

    group: str
    url: str
    metrics: Metrics
    runtime: Runtime
    refusals: LoggedRefusals = field(default_factory=LoggedRefusals)

    @property
    def address(self) -> str:
        """The address of the REST interface, as ``host:port``."""
        return urlsplit(self.url).netloc


class WorkerListener(Protocol):
    """
    The interface by which the hooks make the worker start and stop work, and read the configuration.

    The hooks call these methods on the event loop. After ``on_assigned`` with an assignment that has not failed,
    ``on_revoked`` or ``on_lost`` is called. If the worker leaves because the configuration cannot be read, ``on_lost``
    is called, even without a preceding ``on_assigned`` and possibly twice. Outside of tests, the ``Herder`` implements
    this interface.
    """

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read the whole configuration. A server that lags behind may answer with an older configuration.

        Args:
            current: Whether the snapshot must have all changes that were completed before this call.

        Raises:
            KielGroupsError: The configuration cannot be read at the moment.
        """

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """
        Start the assigned work. The hooks have already read the configuration up to the assignment's offset.

        A failed assignment has no work to start, and the configuration may be older. The hooks make the worker rejoin.
        """

    async def on_revoked(self) -> None:
        """
        Stop and release the work that must not run while the group rebalances. Then the worker joins again or leaves.

        If the membership is lost meanwhile, this call is cancelled, and ``on_lost`` is called.
        """

    def on_lost(self) -> None:
        """Stop all work, because the membership is over: the work may be assigned to other workers already."""


class WorkerMember(Protocol):
    """The part of a ``CoordinatedMember`` or a ``GenericMember`` that the hooks of a worker use."""

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""

    @property
    def need_rejoin(self) -> bool:
        """Whether the member lacks an assignment of the present generation, and has to join to get one."""

    def request_rejoin(self) -> None:
        """Request that the member joins the group again."""

    def leave(self) -> None:
        """Leave the group at once, and stay away until ``request_rejoin``."""

    async def close(self) -> None:
        """Revoke the assignment, and leave the group."""


#: How long one read may take, and after how long a worker logs that it is behind, in seconds. This is Kafka Connect's
#: ``worker.sync.timeout.ms``, which is shorter than any session timeout that brokers allow.
_READ_LIMIT_S = 3.0

#: The first and the longest pause between two reads of a worker that is behind, in seconds.
_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S = 0.05, 1.0


class ConfigReads:
    """
    Reads the configuration, and keeps the newest snapshot.

    Args:
        context: The worker.
        source: An object whose ``snapshot`` reads the configuration.
    """

    def __init__(self, context: WorkerContext, source: WorkerListener) -> None:
        self._group = context.group
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._source = source
        self._refusals = context.refusals
        #: The newest snapshot; None before the first successful read.
        self.newest: ConfigSnapshot | None = None
        self._is_failing = False

    def has(self, offset: int) -> bool:
        """Return whether the newest snapshot contains the changes up to this offset."""
        return self.newest is not None and self.newest.offset >= offset

    async def read(self, *, current: bool = False) -> bool:
        """
        Read the configuration, and return whether the read succeeded. If not, ``newest`` stays as it is.

        Without ZooKeeper, this method must not raise an error: the worker would leave the group, and the other workers
        would wait until it joins again.

        Args:
            current: Whether the snapshot must have all changes that were completed before this call. Such a read takes
                longer.
        """
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                self.newest = await self._source.snapshot(current=current)
        except (KielGroupsError, TimeoutError) as error:
            self._metrics.count("config_reads_failed")
            why = str(error) or f"no answer within {_READ_LIMIT_S:g} s"
            is_known = self._is_failing or not self._refusals.is_news(error)
            level = logging.DEBUG if is_known else logging.WARNING
            log.log(level, "group %s: the configuration could not be read: %s", self._group, why)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def readable(self, offset: int, limit_s: float = math.inf, *, blocks_work: bool = False) -> bool:
        """
        Read the configuration until its offset is at least this offset. Return False if the time limit ends first, else
        True.

        The configuration is read at least once. A read that has begun before the limit is completed.

        Args:
            offset: The offset.
            limit_s: The time limit, in seconds.
            blocks_work: Whether assigned work waits for this call. If so, a long wait is logged once.
        """
        began_s = self._runtime.boot_time_s()
        pauses = Backoff(_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))
        while not (await self.read(current=True) and self.has(offset)):
            passed_s = self._runtime.boot_time_s() - began_s
            if passed_s >= limit_s:
                return False
            if blocks_work and passed_s >= _READ_LIMIT_S:
                blocks_work = False
                log.error(
                    "group %s: this worker starts none of its assigned work: its configuration is still behind offset"
                    " %d, by which the work was assigned",
                    self._group,
                    offset,
                )
            await asyncio.sleep(pauses.next_s())
        return True


# Convert between the values of workers and the bytes of their group: offers and assignments.
#
# Each worker offers the protocol ``default``, whose leader assigns in turn. A worker that wants to keep its work
# prefers ``kiel-sticky``, whose metadata name the work that it had. The group uses it if all workers offer it.

#: The allocator that the leader runs, by the protocol that the group uses.
_PROTOCOL_ALLOCATORS: Mapping[str, WorkAllocator] = {
    DEFAULT_PROTOCOL: WORK_ALLOCATORS["round_robin"],
    STICKY_PROTOCOL: WORK_ALLOCATORS["sticky"],
}


def _parse_state(protocol: str, member: str, metadata: bytes) -> StickyMetadata:
    """
    Parse the metadata with which a member has joined.

    Raises:
        ProtocolError: The bytes are no metadata of this protocol.
    """
    what = f"the metadata of {member}"
    if protocol == STICKY_PROTOCOL:
        return StickyMetadata.parse(metadata, what)
    plain = ConnectMetadata.parse(metadata, what)
    return StickyMetadata(plain.url, plain.offset, -1, {})


def parse_assignment(member: str, data: bytes) -> WorkerAssignment:
    """
    Parse the assignment of a member.

    Raises:
        ProtocolError: The bytes are no assignment.
    """
    read = ConnectAssignment.parse(data, f"the assignment of {member}")
    works = _works(read.work)
    connectors = tuple(sorted(work.connector for work in works if isinstance(work, ConnectorId)))
    tasks = tuple(sorted(work for work in works if isinstance(work, TaskId)))
    return WorkerAssignment(read.leader, read.leader_url, read.offset, connectors, tasks, read.is_failed)


def _by_connector(works: Iterable[Work]) -> dict[str, tuple[int, ...]]:
    numbers: dict[str, list[int]] = {}
    for work in works:
        number = work.task if isinstance(work, TaskId) else CONNECTOR_TASK
        numbers.setdefault(work.connector, []).append(number)
    return {connector: tuple(its) for connector, its in numbers.items()}


def _works(numbers: Mapping[str, Iterable[int]]) -> tuple[Work, ...]:
    return tuple(
        ConnectorId(connector) if number == CONNECTOR_TASK else TaskId(connector, number)
        for connector, its in numbers.items()
        for number in its
    )


class WorkAssigner:
    """
    Assigns work to all members of the group while this worker leads.

    Args:
        context: The worker.
        config: The configuration as the worker has read it.
    """

    def __init__(self, context: WorkerContext, config: ConfigReads) -> None:
        self._group = context.group
        self._url = context.url
        self._metrics = context.metrics
        self._config = config
        #: The URL of the worker to which this leader has assigned each piece of work. It is empty if this worker does
        #: not lead, and when the work is about to be assigned again.
        self.owners: Mapping[Work, str] = {}

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """
        Return the assignment of each member, even of members that get no work.

        If this worker's configuration stays older than the configuration of another member, all assignments are failed.

        Args:
            protocol: The protocol that the group uses.
            leader: The member id of this worker.
            members: The metadata of each member.

        Raises:
            AllocatorError: Workers do not offer this protocol.
        """
        if protocol not in _PROTOCOL_ALLOCATORS:
            raise AllocatorError(f"group {self._group}: the coordinator has chosen {protocol!r}, which is not offered")
        self.owners = {}
        states = self._states(protocol, members)
        target = max((state.offset for state in states.values()), default=NO_OFFSET)
        snapshot = await self._snapshot(target)
        if snapshot is None:
            log.warning(
                "group %s: no work is assigned: this leader's configuration is behind offset %d of another worker",
                self._group,
                target,
            )
            failed = ConnectAssignment(CONFIG_MISMATCH, leader, self._url, target, {})
            return dict.fromkeys(members, failed.encode())
        allocation = self._allocate(protocol, states, snapshot)
        self.owners = {work: states[member].url for member, works in allocation.items() for work in works}
        return {
            member: ConnectAssignment(
                0, leader, self._url, snapshot.offset, _by_connector(allocation.get(member, ()))
            ).encode()
            for member in members
        }

    def _states(self, protocol: str, members: Mapping[str, bytes]) -> dict[str, StickyMetadata]:
        """Return the metadata of each member. Omit a member with unreadable metadata: this member gets no work."""
        states: dict[str, StickyMetadata] = {}
        for member, metadata in members.items():
            try:
                states[member] = _parse_state(protocol, member, metadata)
            except ProtocolError as error:
                self._metrics.count("worker_metadata_unreadable")
                log.error("group %s: %s; this member gets no work", self._group, error)
        return states

    async def _snapshot(self, target: int) -> ConfigSnapshot | None:
        """
        Return the newest snapshot if it contains the changes up to configuration offset ``target``, else None.

        If the known snapshot is older, first read the configuration once more.
        """
        if not self._config.has(target):
            await self._config.read(current=True)
        return self._config.newest if self._config.has(target) else None

    def _allocate(
        self, protocol: str, states: Mapping[str, StickyMetadata], snapshot: ConfigSnapshot
    ) -> WorkAllocation:
        works = snapshot.works()
        log.info(
            "group %s: assigning %s and %s of the configuration at offset %d to %s",
            self._group,
            counted(len(snapshot.connectors), "connector"),
            counted(len(works) - len(snapshot.connectors), "task"),
            snapshot.offset,
            counted(len(states), "worker"),
        )
        return _PROTOCOL_ALLOCATORS[protocol].allocate(states.keys(), works, _previous_owners(states))


def _previous_owners(states: Mapping[str, StickyMetadata]) -> dict[Work, str]:
    """
    Return the member that had each piece of work before.

    A worker that was removed from the group may name work that another worker has got since. So if several members name
    the same work, the member with the latest generation counts.
    """
    latest_last = sorted(states, key=lambda member: (states[member].generation, member))
    return {work: member for member in latest_last for work in _works(states[member].work)}


#: The name under which Kafka Connect groups these metrics.
_METRICS_GROUP = "connect-coordinator-metrics"

#: The first and the longest pause before the leader joins again after a mismatch, in seconds.
_FIRST_MISMATCH_PAUSE_S, _LONGEST_MISMATCH_PAUSE_S = 0.1, 2.0

#: How long a worker may be behind, or without ZooKeeper, before it leaves the group, in seconds.
_PATIENCE_S = 6.0

#: How much longer the other workers wait: the leader joins before, unless its configuration is still behind.
_FOLLOWER_FACTOR = 4


class WorkerHooks:
    """
    Implements ``MemberHooks`` for a worker.

    Args:
        context: The worker's name, its metrics and its runtime.
        listener: The worker itself.
        allocator: The name of the preferred allocator, a key of ``WORK_ALLOCATORS``. If workers prefer different
            allocators, the group uses ``round_robin``.

    Raises:
        ConfigError: There is no allocator of that name.
    """

    #: The member, which is created with these hooks; it is set before the worker's first session opens.
    member: WorkerMember

    def __init__(self, context: WorkerContext, listener: WorkerListener, allocator: str = "round_robin") -> None:
        self._group = context.group
        self._url = context.url
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._listener = listener
        self._allocator = work_allocator(allocator)
        #: The configuration as this worker has read it.
        self.config = ConfigReads(context, listener)
        self._assigner = WorkAssigner(context, self.config)
        self._pauses = Backoff(
            _FIRST_MISMATCH_PAUSE_S, _LONGEST_MISMATCH_PAUSE_S, lambda: context.runtime.uniform(0.5, 1.5)
        )
        #: Checks whether the worker has to leave the group; if so, leaves and joins again.
        self._leaving: asyncio.Task[None] | None = None
        self._is_closed = False
        self._gate: GenerationGate | None = None
        #: The present assignment, even a failed one; None between two assignments.
        self.assignment: WorkerAssignment | None = None
        #: Whether the worker may have started work of the present assignment.
        self._has_started = False
        #: The work of the last assignment that has not failed, and its generation.
        self._last_works: tuple[Work, ...] = ()
        self._last_generation = -1
        self._set_gauges()

    # ------------------------------------------------------------------ what the worker asks

    @property
    def is_rebalancing(self) -> bool:
        """Whether the worker has no assignment or a failed assignment, or has to join again."""
        return self.member.need_rejoin or self.assignment is None or self.assignment.is_failed

    @property
    def unconfirmed_s(self) -> float:
        """The seconds since the membership's lease ended; 0.0 while the lease runs, or without a membership."""
        if self._gate is None or self._gate.is_shut:
            return 0.0
        return max(0.0, self._runtime.boot_time_s() - self._gate.deadline_s)

    def owner_url(self, work: Work) -> str | None:
        """
        Return the REST URL of the worker that has this work, or None if the URL is not known.

        Only the leader knows URLs of owners, and only while no rejoin is due.
        """
        if self.is_rebalancing or not self.member.leads:
            return None
        return self._assigner.owners.get(work)

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """Return the metrics of the membership as kafka-python's ``metrics()`` does, by the names of Kafka Connect."""
        assignment = self.assignment
        found = {metric.name: metric.read(self._metrics, 0) for metric in MEMBER_METRICS}
        found["assigned-connectors"] = float(len(assignment.connectors)) if assignment else 0.0
        found["assigned-tasks"] = float(len(assignment.tasks)) if assignment else 0.0
        return {_METRICS_GROUP: found}

    # ------------------------------------------------------------------ the join

    @property
    def protocol_type(self) -> str:
        """The protocol type of workers, which is Kafka Connect's protocol type."""
        return CONNECT_TYPE

    async def protocols(self) -> Sequence[GroupProtocol]:
        """
        Read the configuration, and return the protocols for the next join, the preferred protocol first.

        The metadata of each protocol have the configuration offset.
        """
        self._assigner.owners = {}
        await self.config.read()
        offset = NO_OFFSET if self.config.newest is None else self.config.newest.offset
        protocols = [GroupProtocol(DEFAULT_PROTOCOL, ConnectMetadata(self._url, offset).encode())]
        if self._allocator.sees_owners:
            state = StickyMetadata(self._url, offset, self._last_generation, _by_connector(self._last_works))
            protocols.insert(0, GroupProtocol(STICKY_PROTOCOL, state.encode()))
        return protocols

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        """As the leader, return the assignment of each member. The errors are those of ``WorkAssigner.assign``."""
        return await self._assigner.assign(joined.protocol, joined.leader_id, joined.members)

    # ------------------------------------------------------------------ the assignment

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """
        Make the worker start the assigned work as soon as its configuration has the assignment's offset.

        If the configuration stays behind too long, the worker stops all work and leaves the group in the background,
        until the worker can read the configuration. After a failed assignment, the worker reads the configuration and
        joins again.

        Raises:
            ProtocolError: The assignment cannot be read. The worker has stopped all work.
        """
        generation = gate.token.generation
        try:
            read = parse_assignment(gate.token.member_id, assignment)
        except ProtocolError:
            # Work of former assignments may still run, and the other workers would wait for its claims.
            self._listener.on_lost()
            raise
        self.assignment, self._gate = read, gate
        self._set_gauges()
        if read.is_failed:
            await self._take_failed(read, generation)
            return
        log.info(
            "group %s: this worker has %s and %s in generation %d, by the configuration at offset %d",
            self._group,
            counted(read.connectors, "connector"),
            counted(read.tasks, "task"),
            generation,
            read.offset,
        )
        self._pauses.reset()
        self._last_works, self._last_generation = read.works, generation
        has_read = self.config.has(read.offset)
        if not (has_read or await self.config.readable(read.offset, _PATIENCE_S, blocks_work=True)):
            self._begin(self._stay_away(read.offset))
            return
        self._has_started = True
        await self._listener.on_assigned(read, generation)

    async def _take_failed(self, assignment: WorkerAssignment, generation: int) -> None:
        """
        After a failed assignment, pause, read the configuration, and join again if the configuration has the
        assignment's offset.

        If the configuration stays behind for ``_PATIENCE_S`` seconds, leave the group. Another join cancels this call.
        """
        self._metrics.count("config_mismatches")
        log.warning(
            "group %s: this worker got no work in generation %d: the configuration of leader %s is behind offset %d",
            self._group,
            generation,
            assignment.leader,
            assignment.offset,
        )
        await self._listener.on_assigned(assignment, generation)
        factor = 1 if self.member.leads else _FOLLOWER_FACTOR
        began_s = self._runtime.boot_time_s()
        while self._runtime.boot_time_s() - began_s < _PATIENCE_S:
            await asyncio.sleep(self._pauses.next_s() * factor)
            await self.config.read(current=True)
            # A join of a worker that is behind might only lead to the next mismatch.
            if self.config.has(assignment.offset):
                self.member.request_rejoin()
                return
        self._begin(self._stay_away(assignment.offset))

    # ------------------------------------------------------------------ a worker that cannot do its part

    def check_reads(self) -> None:
        """
        Check in the background whether the configuration can be read, because a ZooKeeper session has ended.

        If the configuration cannot be read for ``_PATIENCE_S`` seconds, and the worker has an assignment, the worker
        leaves the group.
        """
        if not self._is_closed and (self._leaving is None or self._leaving.done()):
            self._begin(self._check_reads())

    async def close(self) -> None:
        """Cancel a check or a wait to join again that runs in the background, because the member is closed."""
        self._is_closed = True
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.wait({self._leaving})

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = asyncio.get_running_loop().create_task(work)

    async def _check_reads(self) -> None:
        while not await self.config.readable(NO_OFFSET, _PATIENCE_S):
            # Without an assignment, no work waits for this worker.
            if self.assignment is not None:
                await self._stay_away(NO_OFFSET)
                return

    async def _stay_away(self, offset: int) -> None:
        """Stop all work and leave the group; join again when the configuration can be read and has this offset."""
        self._metrics.count("workers_unsynced")
        log.error(
            "group %s: this worker leaves the group: it could not read the configuration for %g s; it joins again when"
            " it can",
            self._group,
            _PATIENCE_S,
        )
        # Work of former assignments may still run, and the other workers would wait for its claims.
        self._listener.on_lost()
        self.member.leave()
        await self.config.readable(offset)
        log.info("group %s: this worker can read the configuration; joining again", self._group)
        self.member.request_rejoin()

    async def prepare(self, gate: GenerationGate) -> None:
        """Make the worker release the started work, before the worker joins again or leaves."""
        # The owners are forgotten before the work is given back: after that, they would refuse forwarded requests.
        self._assigner.owners = {}
        if self._has_started:
            await self._listener.on_revoked()
        self._end_assignment()

    def lost(self, gate: GenerationGate) -> None:
        """Stop the worker's work at once, because the membership is lost."""
        self._assigner.owners = {}
        had_started = self._has_started
        self._end_assignment()
        if had_started:
            self._listener.on_lost()

    def _end_assignment(self) -> None:
        self.assignment, self._gate, self._has_started = None, None, False
        self._set_gauges()

    def _set_gauges(self) -> None:
        assignment = self.assignment
        self._metrics.gauge("assigned_connectors", len(assignment.connectors) if assignment else 0)
        self._metrics.gauge("assigned_tasks", len(assignment.tasks) if assignment else 0)
