"""
Compute the view of a group that brokers coordinate from the answers of its coordinator.

Unreadable bytes of a member raise no error, because operators need the view of a broken group most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from kiel_groups.errors import ProtocolError
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.group_view import CoordinatorView, GroupView, MemberView, PartitionView, Unreadable
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember

_UNREADABLE = "the member's client sends what others cannot read; stop it, or update its library"


@dataclass(frozen=True, slots=True)
class _Member:
    """A member with its parsed subscription and assignment, each None if unknown or unreadable."""

    described: DescribedMember
    subscription: ConsumerSubscription | None
    assignment: ConsumerAssignment | None


def view_coordinated_group(
    described: DescribedGroup,
    coordinator: str,
    topics: Mapping[str, tuple[int, ...]],
    offsets: Mapping[TopicPartition, int],
) -> GroupView:
    """
    Return the view of a group, without log ends.

    Args:
        described: The coordinator's answer.
        coordinator: The coordinating broker with its address, as a text for users.
        topics: The partition numbers of all topics.
        offsets: The known committed offsets of the group.
    """
    unreadable: list[Unreadable] = []
    members = [_read(described, each, unreadable) for each in described.members]
    assigned: dict[TopicPartition, list[MemberId]] = defaultdict(list)
    for member in members:
        for partition in _partitions_of(member.assignment):
            assigned[partition].append(member.described.member_id)
    subscribed = {topic for each in members if each.subscription is not None for topic in each.subscription.topics}
    existing = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
    known = {each for each in existing if each.topic in subscribed}
    views = {
        partition: PartitionView(
            partition, owner, offsets.get(partition), None, target=owner, exists=partition in existing
        )
        for partition in sorted({*assigned, *known, *offsets})
        for owner in [min(assigned.get(partition, ()), default=None)]
    }
    return GroupView(
        group=described.group,
        protocol_type=described.protocol_type,
        # A coordinator does not always say what the members are.
        is_of_consumers=described.protocol_type in ("", PROTOCOL_TYPE),
        coordinator=CoordinatorView(coordinator, described.state, described.protocol),
        members=tuple(sorted((_view(each, views) for each in members), key=lambda view: view.member_id)),
        partitions=tuple(views.values()),
        unreadable=tuple(unreadable),
        assigned_twice=tuple(sorted(partition for partition, owners in assigned.items() if len(owners) > 1)),
        missing_topics=tuple(sorted(subscribed - topics.keys())),
    )


def _read(group: DescribedGroup, member: DescribedMember, unreadable: list[Unreadable]) -> _Member:
    # A coordinator shows the members' metadata only while the group is stable.
    if group.protocol_type != PROTOCOL_TYPE or group.state != "Stable":
        return _Member(member, None, None)
    subscription = assignment = None
    try:
        subscription = ConsumerSubscription.parse(member.metadata, f"the subscription of {member.member_id}")
        assignment = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}")
    except ProtocolError as error:
        unreadable.append(Unreadable(str(error), _UNREADABLE))
    return _Member(member, subscription, assignment)


def _view(member: _Member, views: Mapping[TopicPartition, PartitionView]) -> MemberView:
    return MemberView(
        member.described.member_id,
        member.described.client_id,
        member.described.client_host.removeprefix("/"),
        None if member.subscription is None else member.subscription.topics,
        tuple(views[partition] for partition in sorted(_partitions_of(member.assignment))),
        protocol_version=None if member.subscription is None else member.subscription.version,
    )


def _partitions_of(assignment: ConsumerAssignment | None) -> set[TopicPartition]:
    given = {} if assignment is None else assignment.partitions
    return {TopicPartition(topic, number) for topic, numbers in given.items() for number in numbers}
