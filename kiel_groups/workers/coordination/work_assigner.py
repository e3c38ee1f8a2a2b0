"""
Assign the group's work as its leader, and remember which worker has which work.

The leader must know the newest configuration that any worker has read. If it does not, it assigns nothing to any
worker: an assignment by an older configuration would start deleted work, or tasks with former settings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kiel_groups.errors import AllocatorError, ProtocolError
from kiel_groups.wire.groups.connect_protocol import NO_OFFSET
from kiel_groups.wording import counted
from kiel_groups.workers.allocation.work_order import WorkAllocation
from kiel_groups.workers.coordination.config_reads import ConfigReads
from kiel_groups.workers.coordination.worker_interfaces import WorkerContext
from kiel_groups.workers.coordination.worker_protocols import (
    PROTOCOL_ALLOCATORS,
    WorkerState,
    encode_assignment,
    parse_state,
)
from kiel_groups.workers.values.config_snapshot import ConfigSnapshot
from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work
from kiel_groups.workers.values.worker_assignment import WorkerAssignment

__all__ = ["WorkAssigner"]

log = logging.getLogger(__name__)


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
