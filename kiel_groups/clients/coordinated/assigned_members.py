"""Name the member that a partition is assigned to, as the group's coordinator knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.groups.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.groups.describe_groups_v0 import DescribedGroup, DescribeGroupsRequest

__all__ = ["owner_words"]

#: Sends a question to the present coordinator.
Send: TypeAlias = Callable[[DescribeGroupsRequest], Awaitable[tuple[DescribedGroup, ...]]]

#: The state of a group whose members all have their assignments.
_STABLE = "Stable"


async def owner_words(group: str, member_id: str | None, partition: TopicPartition, send: Send) -> str:
    """Return the words for an error that says that this member does not own the partition."""
    owner = await _owner(group, member_id, partition, send)
    if owner is None:
        words = "it is assigned, and its start is not known; wait for on_partitions_assigned"
        return f"this member, {member_id}, yet: {words}"
    return f"this member, {member_id}, but {owner}; its owner commits it"


async def _owner(group: str, member_id: str | None, partition: TopicPartition, send: Send) -> str | None:
    """Return who owns a partition, or None for this member."""
    try:
        (described,) = await send(DescribeGroupsRequest((group,)))
        if described.error != NO_ERROR:
            return f"by an unknown one ({described.error})"
        if described.state != _STABLE:
            return f"by an unknown one (the group is in the state {described.state})"
        for member in described.members:
            assignment = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}")
            if partition.partition not in assignment.partitions.get(partition.topic, ()):
                continue
            if member.member_id == member_id:
                return None
            return f"by {member.member_id}"
    except KielGroupsError as error:
        return f"by an unknown one ({error})"
    return "by no member"
