"""Inputs and targets of a leader's planner, and the writes of its publications."""

from __future__ import annotations

from kiel_groups.group.planner import Inputs, Publication, Target, plan
from kiel_groups.group.znodes.contents import DONE, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Create, Operation, Put
from kiel_groups.model import TopicPartition

LAYOUT = GroupLayout("g")
GROUP_STATE = "/kiel-groups/g/allocation"
CANDIDATE = "/kiel-groups/g/election/me-n_0000000001"


def some(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    """Return the partitions of ``topic`` with these numbers."""
    return frozenset(TopicPartition(topic, number) for number in numbers)


#: A static member, and the assignment that is kept for it while it is away.
STATIC = {"one": MemberInfo(member_id="m1", session_timeout_ms=1, subscription=("t",), instance_id="one")}
KEPT = MemberAssignment(1, "m1", some(0, 1), away_since_ms=5)


def members(*names: str, topics: tuple[str, ...] = ("t",)) -> dict[str, MemberInfo]:
    return {name: MemberInfo(member_id=name, session_timeout_ms=10_000, subscription=topics) for name in names}


def stored(generation: int = 1, **assigned: frozenset[TopicPartition]) -> dict[str, MemberAssignment | None]:
    """Return assignments of one generation, as stored in ZooKeeper."""
    return {name: MemberAssignment(generation, name, partitions) for name, partitions in assigned.items()}


def group_state(generation: int = 1, state: str = DONE) -> GroupState:
    return GroupState(generation=generation, state=state, leader="a", allocator="round_robin")


def inputs(*names: str, partitions: int = 4, **given: object) -> Inputs:
    """Return the planner's inputs for a group in which the members ``names`` subscribe to topic t."""
    return Inputs(members=members(*names), topics={"t": tuple(range(partitions))}, brokers=1, **given)  # type: ignore[arg-type]


def target(**assigned: frozenset[TopicPartition]) -> Target:
    return Target(allocation=assigned, allocator="round_robin")


def publish(read: Inputs, wanted: Target) -> Publication | None:
    """Return the publication with which the leader ``a`` publishes a target, or None if the target changes nothing."""
    return plan(LAYOUT, read, wanted, leader="a", candidate=CANDIDATE, cause="join of b", now_ms=5)


def published(read: Inputs, wanted: Target) -> Publication:
    publication = publish(read, wanted)
    assert publication is not None
    return publication


def assignment_writes(publication: Publication) -> list[Operation]:
    """Return the writes of member assignments only, in order."""
    operations = [operation for write in publication.writes for operation in write]
    return [operation for operation in operations if operation.path.startswith(f"{GROUP_STATE}/")]


def group_state_write(publication: Publication) -> Operation:
    """Return the write of the group state in a publication of a single transaction."""
    ((_, written, *_),) = publication.writes
    return written


def parsed(operation: Operation) -> GroupState:
    """Return the group state that an operation writes."""
    assert isinstance(operation, (Create, Put))
    return GroupState.parse(operation.data, operation.path)
