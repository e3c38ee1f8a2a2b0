"""The hooks of a worker: what it joins its group with, what it does with its assignment, and what it gives back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from kiel_groups.backoff import Backoff
from kiel_groups.errors import ProtocolError
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.metrics import KAFKA_METRICS, Metrics
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.wire.connect_protocol import NO_OFFSET
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.wording import counted
from kiel_groups.workers.allocation import work_allocator
from kiel_groups.workers.assigner import (
    ConfigReads,
    SnapshotSource,
    WorkAssigner,
    WorkerContext,
    WorkerListener,
    WorkerMember,
    WorkerState,
    offered,
    parse_assignment,
)
from kiel_groups.workers.values import Work, WorkerAssignment

__all__ = [
    "WORKER_METRICS_GROUP",
    "worker_metrics",
    "WorkerHooks",
]

log = logging.getLogger(__name__)


#: The name under which Kafka Connect groups these metrics.
WORKER_METRICS_GROUP = "connect-coordinator-metrics"

#: The metrics that a member of any group has: its joins, its assignments and its heartbeats.
_OF_MEMBERS = tuple(
    metric for metric in KAFKA_METRICS if metric.name.split("-")[0] in {"heartbeat", "last", "join", "sync"}
)


def worker_metrics(registry: Metrics, assignment: WorkerAssignment | None) -> dict[str, dict[str, float | None]]:
    """
    Return the metrics in the form of kafka-python's ``metrics()``: by group, then by name.

    Args:
        registry: The registry of the worker.
        assignment: Its present assignment; None if it has none.
    """
    found = {metric.name: metric.read(registry, 0) for metric in _OF_MEMBERS}
    found["assigned-connectors"] = float(len(assignment.connectors)) if assignment else 0.0
    found["assigned-tasks"] = float(len(assignment.tasks)) if assignment else 0.0
    return {WORKER_METRICS_GROUP: found}


# The hooks of a worker: what it joins its group with, what it does with its assignment, and what it gives back.
#
# A worker joins with its URL and the offset of the configuration that it has read for this join. The leader assigns the
# work by the largest of these offsets, or nothing if it does not know that configuration itself: a *mismatch*. Then
# each worker pauses, reads the configuration again, and joins again if it has that offset. The leader's pause is the
# shortest, since its join ends the mismatch. The others join later in case it does not.
#
# A worker whose configuration is behind the offset of its assignment reads it until it has that offset, and starts
# nothing before. If that takes too long, it leaves the group, as Kafka Connect's does, and joins again when it can read
# the configuration: its work would wait for it, or, if it leads, that of all workers.


#: The first and the longest pause before the leader joins again after a mismatch, in seconds.
_FIRST_MISMATCH_PAUSE_S, _LONGEST_MISMATCH_PAUSE_S = 0.1, 2.0

#: How long a worker may be behind, or without ZooKeeper, before it leaves the group, in seconds.
_PATIENCE_S = 6.0

#: How much longer the other workers wait: the leader joins before, unless its configuration is still behind.
_FOLLOWER_FACTOR = 4


class WorkerHooks:
    """
    The hooks of a worker; see ``MemberHooks``.

    Args:
        context: The worker's name, its metrics and its runtime.
        source: The store of the configuration.
        listener: The worker itself.
        allocator: The name of the preferred allocator, one of ``WORK_ALLOCATORS``. Workers that prefer different ones
            use ``round_robin``.

    Raises:
        ConfigError: There is no allocator of that name.
    """

    def __init__(
        self, context: WorkerContext, source: SnapshotSource, listener: WorkerListener, allocator: str = "round_robin"
    ) -> None:
        self._group = context.group
        self._url = context.url
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._listener = listener
        self._allocator = work_allocator(allocator)
        #: The configuration as this worker has read it.
        self.config = ConfigReads(context, source)
        self._assigner = WorkAssigner(context, self.config)
        self._pauses = Backoff(
            _FIRST_MISMATCH_PAUSE_S, _LONGEST_MISMATCH_PAUSE_S, lambda: context.runtime.uniform(0.5, 1.5)
        )
        self._member: WorkerMember | None = None
        #: Leaves the group, or finds out whether that is necessary, and joins again.
        self._leaving: asyncio.Task[None] | None = None
        self._is_closed = False
        self._gate: GenerationGate | None = None
        #: The present assignment, also a failed one; None between two assignments.
        self.assignment: WorkerAssignment | None = None
        #: Whether the worker may have started work of the present assignment.
        self._has_started = False
        #: The work of the last assignment that has not failed, and its generation.
        self._last_works: tuple[Work, ...] = ()
        self._last_generation = -1
        self._set_gauges()

    def attach(self, member: WorkerMember) -> None:
        """Add the member, which in turn needs these hooks."""
        self._member = member

    # ------------------------------------------------------------------ what the worker asks

    @property
    def is_rebalancing(self) -> bool:
        """Whether the worker has no assignment, or a failed one, or has to join again."""
        member, assignment = self._member, self.assignment
        return member is None or member.need_rejoin or assignment is None or assignment.is_failed

    @property
    def is_behind(self) -> bool:
        """Whether the worker has an assignment whose configuration it has not read yet."""
        assignment = self.assignment
        return assignment is not None and not assignment.is_failed and not self.config.has(assignment.offset)

    @property
    def unconfirmed_s(self) -> float:
        """For how long the lease of the membership has been over, in seconds; 0.0 if it runs, or without one."""
        if self._gate is None or self._gate.is_shut:
            return 0.0
        return max(0.0, self._runtime.boot_time_s() - self._gate.deadline_s)

    def owner_url(self, work: Work) -> str | None:
        """Return the URL of the work's owner. Only the leader knows it, and only while no rejoin is due; else None."""
        if self.is_rebalancing or not self._attached.leads:
            return None
        return self._assigner.owner_url(work)

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """Return the metrics of the worker's membership in the form of kafka-python, by the names of Kafka Connect."""
        return worker_metrics(self._metrics, self.assignment)

    # ------------------------------------------------------------------ the join

    @property
    def protocol_type(self) -> str:
        """The protocol type of workers, which is that of Kafka Connect."""
        return CONNECT_TYPE

    async def protocols(self) -> Sequence[GroupProtocol]:
        """Read the configuration, and return the protocols with its offset."""
        self._assigner.drop()
        snapshot = await self.config.fresh()
        offset = NO_OFFSET if snapshot is None else snapshot.offset
        return offered(self._allocator, WorkerState(self._url, offset, self._last_generation, self._last_works))

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        """Assign the work to the members; raises as ``WorkAssigner.assign``."""
        return await self._assigner.assign(joined.protocol, joined.leader_id, joined.members)

    # ------------------------------------------------------------------ the assignment

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Have the worker start its work as soon as its configuration has the assignment's offset."""
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
        if not await self.config.reach(read.offset, _PATIENCE_S):
            self._begin(self._stay_away(read.offset))
            return
        self._has_started = True
        await self._listener.on_assigned(read, generation)

    async def _take_failed(self, assignment: WorkerAssignment, generation: int) -> None:
        """Wait, read the configuration again, and join again; another worker's join ends this before."""
        self._metrics.count("config_mismatches")
        log.warning(
            "group %s: this worker got no work in generation %d: the configuration of leader %s is behind offset %d",
            self._group,
            generation,
            assignment.leader,
            assignment.offset,
        )
        await self._listener.on_assigned(assignment, generation)
        factor = 1 if self._attached.leads else _FOLLOWER_FACTOR
        began_s = self._runtime.boot_time_s()
        while self._runtime.boot_time_s() - began_s < _PATIENCE_S:
            await asyncio.sleep(self._pauses.next_s() * factor)
            await self.config.fresh(current=True)
            # A join of a worker that is behind might only lead to the next mismatch.
            if self.config.has(assignment.offset):
                self._attached.request_rejoin()
                return
        self._begin(self._stay_away(assignment.offset))

    # ------------------------------------------------------------------ a worker that cannot do its part

    def check_reads(self) -> None:
        """Leave the group if the configuration cannot be read for some time, because a ZooKeeper session is over."""
        if not self._is_closed and (self._leaving is None or self._leaving.done()):
            self._begin(self._check_reads())

    async def close(self) -> None:
        """Stay away, if the worker has left; called when the member is closed."""
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
        """Leave the group, and join again when the configuration can be read and has this offset."""
        self._metrics.count("workers_unsynced")
        log.error(
            "group %s: this worker leaves the group: it could not read the configuration for %g s; it joins again when"
            " it can",
            self._group,
            _PATIENCE_S,
        )
        # Work of former assignments may still run, and the other workers would wait for its claims.
        self._listener.on_lost()
        self._attached.leave()
        await self.config.readable(offset)
        log.info("group %s: this worker can read the configuration; joining again", self._group)
        self._attached.request_rejoin()

    async def prepare(self, gate: GenerationGate) -> None:
        """Have the worker give its work back. There is none after a failed assignment."""
        # Before the work is given back: requests to its owners would fail.
        self._assigner.drop()
        assignment = self.assignment
        if self._has_started and assignment is not None:
            await self._listener.on_revoked(assignment.leader, assignment.connectors, assignment.tasks)
        self._end_assignment()

    def lost(self, gate: GenerationGate) -> None:
        """Have the worker stop its work at once."""
        self._assigner.drop()
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

    @property
    def _attached(self) -> WorkerMember:
        assert self._member is not None, "the member is attached before it joins"
        return self._member
