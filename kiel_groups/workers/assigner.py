"""Assign the group's work as its leader, by a configuration that all workers have read."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from kiel_groups.backoff import Backoff
from kiel_groups.errors import AllocatorError, KielGroupsError, ProtocolError
from kiel_groups.metrics import Metrics
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
from kiel_groups.workers.allocation import WORK_ALLOCATORS, WorkAllocation, WorkAllocator
from kiel_groups.workers.values import ConfigSnapshot, ConnectorId, TaskId, Work, WorkerAssignment
from kiel_groups.zookeeper.runtime import Runtime

__all__ = [
    "SnapshotSource",
    "WorkerContext",
    "WorkerListener",
    "WorkerMember",
    "ConfigReads",
    "PROTOCOL_ALLOCATORS",
    "WorkerState",
    "encode_assignment",
    "offered",
    "parse_assignment",
    "parse_state",
    "WorkAssigner",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """
    A worker as its parts see it.

    Args:
        group: The name of the worker group.
        url: The URL of the worker's REST interface.
        metrics: The worker's registry.
        runtime: Clocks and randomness.
    """

    group: str
    url: str
    metrics: Metrics
    runtime: Runtime

    @property
    def address(self) -> str:
        """``host:port`` of the REST interface."""
        return urlsplit(self.url).netloc


class SnapshotSource(Protocol):
    """The store of the group's configuration."""

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read the whole configuration. A server that lags behind may answer with an older one.

        Args:
            current: Whether the snapshot must have all changes that were completed before this call.

        Raises:
            KielGroupsError: It cannot be read at the moment.
        """


class WorkerListener(Protocol):
    """
    The worker that runs the assigned work, called on the event loop.

    After ``on_assigned`` with an assignment that has not failed, ``on_revoked`` or ``on_lost`` is called once. A worker
    that leaves because it cannot do its part gets ``on_lost`` in any case.
    """

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """
        Start the assigned work. Before, the worker has read the configuration at least up to the assignment's offset.

        For a failed assignment, there is nothing to start: the worker joins again by itself.
        """

    async def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[TaskId]) -> None:
        """
        Give back the work that must not run while the group assigns again, before the worker joins again or leaves.

        If the membership is lost meanwhile, this call is cancelled, and ``on_lost`` follows.

        Args:
            leader: The member id of the leader that has assigned the work.
            connectors: The names of the assigned connectors.
            tasks: The assigned tasks.
        """

    def on_lost(self) -> None:
        """Have all work stop, because the membership is over: other workers may be assigned it already."""


class WorkerMember(Protocol):
    """The worker's member of the group, as its hooks use it; ``CoordinatedMember`` is one."""

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""

    @property
    def need_rejoin(self) -> bool:
        """Whether the member has to join before it has an assignment of the present generation."""

    def request_rejoin(self) -> None:
        """Have the member join again."""

    def leave(self) -> None:
        """Leave the group at once, and stay away until ``request_rejoin``."""


#: How long one read may take, and after how long a worker that is behind says so, in seconds. Kafka Connect's
#: ``worker.sync.timeout.ms``, which is shorter than any session timeout that brokers allow.
_READ_LIMIT_S = 3.0

#: The first and the longest pause between two reads of a worker that is behind, in seconds.
_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S = 0.05, 1.0


class ConfigReads:
    """
    The configuration as this worker has read it.

    Args:
        context: The worker.
        source: The store of the configuration.
    """

    def __init__(self, context: WorkerContext, source: SnapshotSource) -> None:
        self._group = context.group
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._source = source
        #: The newest snapshot; None if none was read yet.
        self.newest: ConfigSnapshot | None = None
        self._is_failing = False

    def has(self, offset: int) -> bool:
        """Return whether the newest snapshot contains the changes up to this offset."""
        return self.newest is not None and self.newest.offset >= offset

    async def fresh(self, *, current: bool = False) -> ConfigSnapshot | None:
        """
        Read the configuration. If it cannot be read, return the newest snapshot.

        A worker without ZooKeeper must not fail here: it would leave the group, and others would wait for its join.

        Args:
            current: Whether to read past a server that lags behind, which takes longer.
        """
        await self._read(current=current)
        return self.newest

    async def _read(self, *, current: bool) -> bool:
        """Read the configuration, and return whether it could be read."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                self.newest = await self._source.snapshot(current=current)
        except (KielGroupsError, TimeoutError) as error:
            self._metrics.count("config_reads_failed")
            why = str(error) or f"no answer within {_READ_LIMIT_S:g} s"
            level = logging.DEBUG if self._is_failing else logging.WARNING
            log.log(level, "group %s: the configuration could not be read: %s", self._group, why)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def readable(self, offset: int, limit_s: float = math.inf) -> bool:
        """
        Read the configuration at least once, and until it has this offset; return False if that takes too long.

        A read that has begun before the limit is completed.
        """
        began_s, pauses = self._runtime.boot_time_s(), self._new_pauses()
        while not (await self._read(current=True) and self.has(offset)):
            if self._runtime.boot_time_s() - began_s >= limit_s:
                return False
            await asyncio.sleep(pauses.next_s())
        return True

    def _new_pauses(self) -> Backoff:
        return Backoff(_FIRST_READ_PAUSE_S, _LONGEST_READ_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))

    async def reach(self, offset: int, limit_s: float) -> bool:
        """
        Read the configuration until it has this offset; report once if that takes long.

        Return False if it does not have the offset after ``limit_s``. A read that has begun before is completed.
        """
        began_s, is_reported = self._runtime.boot_time_s(), False
        pauses = self._new_pauses()
        while not self.has(offset):
            await self.fresh(current=True)
            if self.has(offset):
                break
            passed_s = self._runtime.boot_time_s() - began_s
            if passed_s >= limit_s:
                return False
            if not is_reported and passed_s >= _READ_LIMIT_S:
                is_reported = True
                log.error(
                    "group %s: this worker starts none of its assigned work: its configuration is still behind offset"
                    " %d, by which the work was assigned",
                    self._group,
                    offset,
                )
            await asyncio.sleep(pauses.next_s())
        return True


# Convert between the values of workers and the bytes of their group: what a worker offers, and what it is assigned.
#
# Each worker offers the protocol ``default``, whose leader assigns in turn. One that wants to keep its work prefers
# ``kiel-sticky``, which names the work that it had. The group uses it if all workers offer it.


#: The allocator that the leader runs, by the protocol that the group uses.
PROTOCOL_ALLOCATORS: Mapping[str, WorkAllocator] = {
    DEFAULT_PROTOCOL: WORK_ALLOCATORS["round_robin"],
    STICKY_PROTOCOL: WORK_ALLOCATORS["sticky"],
}


class WorkerState(NamedTuple):
    """
    What a worker joins with.

    Args:
        url: The URL of its REST interface.
        offset: The offset of the configuration that it has read.
        generation: The generation in which it got its last work; -1 if it had none.
        works: That work.
    """

    url: str
    offset: int
    generation: int = -1
    works: tuple[Work, ...] = ()


def offered(allocator: WorkAllocator, state: WorkerState) -> list[GroupProtocol]:
    """Return what a worker that prefers this allocator offers at its join, the preferred protocol first."""
    protocols = [GroupProtocol(DEFAULT_PROTOCOL, ConnectMetadata(state.url, state.offset).encode())]
    if allocator.sees_owners:
        metadata = StickyMetadata(state.url, state.offset, state.generation, _by_connector(state.works))
        protocols.insert(0, GroupProtocol(STICKY_PROTOCOL, metadata.encode()))
    return protocols


def parse_state(protocol: str, member: str, metadata: bytes) -> WorkerState:
    """
    Parse what a member has joined with.

    Raises:
        ProtocolError: The bytes are no metadata of this protocol.
    """
    what = f"the metadata of {member}"
    if protocol == STICKY_PROTOCOL:
        sticky = StickyMetadata.parse(metadata, what)
        return WorkerState(sticky.url, sticky.offset, sticky.generation, _works(sticky.work))
    plain = ConnectMetadata.parse(metadata, what)
    return WorkerState(plain.url, plain.offset)


def encode_assignment(assignment: WorkerAssignment) -> bytes:
    """Encode an assignment for its worker."""
    error = CONFIG_MISMATCH if assignment.is_failed else 0
    work = _by_connector(assignment.works)
    return ConnectAssignment(error, assignment.leader, assignment.leader_url, assignment.offset, work).encode()


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


# Assign the group's work as its leader, and remember which worker has which work.
#
# The leader must know the newest configuration that any worker has read. If it does not, it assigns nothing to any
# worker: an assignment by an older configuration would start deleted work, or tasks with former settings.


class WorkAssigner:
    """
    The leader's part of a worker. Workers that do not lead do not use it.

    Args:
        context: The worker.
        config: The configuration as the worker has read it.
    """

    def __init__(self, context: WorkerContext, config: ConfigReads) -> None:
        self._group = context.group
        self._url = context.url
        self._metrics = context.metrics
        self._config = config
        #: The URL of each assigned piece of work's owner; empty before the worker has assigned any as the leader.
        self._owners: Mapping[Work, str] = {}

    def owner_url(self, work: Work) -> str | None:
        """Return the URL of the worker to which this one has assigned the work; None if it has not assigned it."""
        return self._owners.get(work)

    def drop(self) -> None:
        """Forget the owners, because the work is about to be assigned again."""
        self._owners = {}

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """
        Return the assignment of each member, also of those that get no work.

        Args:
            protocol: The protocol that the group uses.
            leader: The member id of this worker.
            members: The metadata of each member.

        Raises:
            AllocatorError: The protocol is not one that workers offer.
        """
        if protocol not in PROTOCOL_ALLOCATORS:
            raise AllocatorError(f"group {self._group}: the coordinator has chosen {protocol!r}, which is not offered")
        self.drop()
        states = self._states(protocol, members)
        target = max((state.offset for state in states.values()), default=NO_OFFSET)
        snapshot = await self._snapshot(target)
        if snapshot is None:
            log.warning(
                "group %s: no work is assigned: this leader's configuration is behind offset %d of another worker",
                self._group,
                target,
            )
            failed = encode_assignment(WorkerAssignment(leader, self._url, target, is_failed=True))
            return dict.fromkeys(members, failed)
        allocation = self._allocate(protocol, states, snapshot)
        self._owners = {work: states[member].url for member, works in allocation.items() for work in works}
        empty = WorkerAssignment(leader, self._url, snapshot.offset)
        return {member: encode_assignment(_with_works(empty, allocation.get(member, ()))) for member in members}

    def _states(self, protocol: str, members: Mapping[str, bytes]) -> dict[str, WorkerState]:
        """Return what the members have joined with; a member whose metadata cannot be read gets no work."""
        states: dict[str, WorkerState] = {}
        for member, metadata in members.items():
            try:
                states[member] = parse_state(protocol, member, metadata)
            except ProtocolError as error:
                self._metrics.count("worker_metadata_unreadable")
                log.error("group %s: %s; this member gets no work", self._group, error)
        return states

    async def _snapshot(self, target: int) -> ConfigSnapshot | None:
        """Return a snapshot that has the offset ``target``, read once more if necessary; None if there is none."""
        if not self._config.has(target):
            await self._config.fresh(current=True)
        return self._config.newest if self._config.has(target) else None

    def _allocate(self, protocol: str, states: Mapping[str, WorkerState], snapshot: ConfigSnapshot) -> WorkAllocation:
        works = snapshot.works()
        log.info(
            "group %s: assigning %s and %s of the configuration at offset %d to %s",
            self._group,
            counted(len(snapshot.connectors), "connector"),
            counted(len(works) - len(snapshot.connectors), "task"),
            snapshot.offset,
            counted(len(states), "worker"),
        )
        return PROTOCOL_ALLOCATORS[protocol].allocate(states.keys(), works, _previous_owners(states))


def _previous_owners(states: Mapping[str, WorkerState]) -> dict[Work, str]:
    """
    Return the member that had each piece of work before.

    A worker that was removed from the group names work that another one got later: the latest generation counts.
    """
    latest_last = sorted(states, key=lambda member: (states[member].generation, member))
    return {work: member for member in latest_last for work in states[member].works}


def _with_works(assignment: WorkerAssignment, works: Iterable[Work]) -> WorkerAssignment:
    its = tuple(works)
    connectors = tuple(work.connector for work in its if isinstance(work, ConnectorId))
    return replace(assignment, connectors=connectors, tasks=tuple(work for work in its if isinstance(work, TaskId)))
