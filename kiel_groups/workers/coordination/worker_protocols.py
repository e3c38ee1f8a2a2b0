"""
Convert between the values of workers and the bytes of their group: what a worker offers, and what it is assigned.

Each worker offers the protocol ``default``, whose leader assigns in turn. One that wants to keep its work prefers
``kiel-sticky``, which names the work that it had. The group uses it if all workers offer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kiel_groups.wire.groups.connect_protocol import (
    CONFIG_MISMATCH,
    CONNECTOR_TASK,
    DEFAULT_PROTOCOL,
    STICKY_PROTOCOL,
    ConnectAssignment,
    ConnectMetadata,
    StickyMetadata,
)
from kiel_groups.wire.groups.join_group import GroupProtocol
from kiel_groups.workers.allocation.work_allocators import WORK_ALLOCATORS, WorkAllocator
from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work
from kiel_groups.workers.values.worker_assignment import WorkerAssignment

__all__ = ["PROTOCOL_ALLOCATORS", "WorkerState", "encode_assignment", "offered", "parse_assignment", "parse_state"]

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
