"""
The view of a group that brokers coordinate: one value, computed from the answers of its coordinator.

What a member tells the others in bytes that cannot be read raises no error, because operators need the view of a broken
group most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.errors import ProtocolError
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.partition_view import PartitionView, lag_of
from kiel_groups.wire.groups.consumer_protocol import PROTOCOL_TYPE, ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.groups.describe_groups_v0 import DescribedGroup, DescribedMember

__all__ = ["CoordinatedGroupView", "CoordinatedMemberView", "GroupAnswers", "view_coordinated_group"]

#: What a coordinator calls the states of a group, and our words. ``Dead`` is also a group without members that has
#: committed offsets, as Kafka 0.9 has it.
_STATES = {
    "Stable": "stable",
    "PreparingRebalance": "rebalancing",
    "AwaitingSync": "rebalancing",
    "CompletingRebalance": "rebalancing",
    "Empty": "empty",
    "Dead": "empty",
}


@dataclass(frozen=True, slots=True)
class CoordinatedMemberView:
    """
    A member as its coordinator knows it, and the partitions that are assigned to it.

    ``subscription`` is None if it is unknown: the group rebalances, the bytes cannot be read, or the group is not one
    of consumers.
    """

    member_id: MemberId
    client_id: str
    host: str
    subscription: tuple[str, ...] | None
    owned: tuple[PartitionView, ...]

    @property
    def lag(self) -> int | None:
        """The lag of the assigned partitions, in records; see ``lag_of``."""
        return lag_of(self.owned)


@dataclass(frozen=True, slots=True)
class CoordinatedGroupView:
    """
    A group at one moment.

    ``broker_state`` and ``protocol_type`` are the coordinator's words; ``protocol`` is the name of the assignment
    strategy. ``coordinator`` is a broker with its address. ``partitions`` are those that are assigned, belong to a
    subscribed topic, or have a committed offset; the ``owner`` of a partition is the member that it is assigned to.
    ``unreadable`` has an error text for what cannot be read of a member. ``assigned_twice`` has the partitions that
    several members own. ``missing_topics`` are subscribed topics that do not exist.
    """

    group: str
    broker_state: str
    protocol_type: str
    protocol: str
    coordinator: str
    members: tuple[CoordinatedMemberView, ...]
    partitions: tuple[PartitionView, ...]
    unreadable: tuple[str, ...] = ()
    assigned_twice: tuple[TopicPartition, ...] = ()
    missing_topics: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """
        The state of the group in one word.

        It is ``stable``, ``rebalancing``, ``empty``, ``memberless`` (no member has ever joined; brokers of 0.9 do not
        know that), or a state of later brokers in lower case.
        """
        if self.broker_state == "Empty" and not self.protocol_type:
            return "memberless"
        return _STATES.get(self.broker_state, self.broker_state.lower())

    @property
    def is_of_consumers(self) -> bool:
        """Whether members are consumers, or may be, because the coordinator does not say."""
        return self.protocol_type in ("", PROTOCOL_TYPE)

    @property
    def exists(self) -> bool:
        """Whether there is such a group: it has a coordinator's state or a committed offset."""
        return self.broker_state != "Dead" or any(each.committed is not None for each in self.partitions)

    @property
    def known_lag(self) -> int | None:
        """The lag of the whole group, in records; see ``lag_of``."""
        return lag_of(self.partitions)

    @property
    def owned(self) -> int:
        """The number of partitions that are assigned to a member."""
        return sum(partition.owner is not None for partition in self.partitions)

    @property
    def member_ids(self) -> frozenset[MemberId]:
        return frozenset(member.member_id for member in self.members)

    def with_log_ends(self, log_ends: Mapping[TopicPartition, int]) -> CoordinatedGroupView:
        """Return the view with these log ends."""
        known = {
            each.topic_partition: replace(each, log_end=log_ends.get(each.topic_partition)) for each in self.partitions
        }
        members = tuple(
            replace(member, owned=tuple(known[each.topic_partition] for each in member.owned))
            for member in self.members
        )
        return replace(self, partitions=tuple(known.values()), members=members)


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """
    What brokers have answered about a group.

    ``topics`` has the partition numbers of all topics, ``offsets`` the committed offsets of the group.
    """

    described: DescribedGroup
    coordinator: str
    topics: Mapping[str, tuple[int, ...]]
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Member:
    """A member, with what could be read of it."""

    described: DescribedMember
    subscription: ConsumerSubscription | None
    assignment: ConsumerAssignment | None


def view_coordinated_group(answers: GroupAnswers) -> CoordinatedGroupView:
    """Return the view of a group, without log ends."""
    described = answers.described
    unreadable: list[str] = []
    members = [_read(described, each, unreadable) for each in described.members]
    assigned: dict[TopicPartition, list[MemberId]] = defaultdict(list)
    for member in members:
        for partition in _partitions_of(member.assignment):
            assigned[partition].append(member.described.member_id)
    subscribed = {topic for each in members if each.subscription is not None for topic in each.subscription.topics}
    known = {TopicPartition(topic, number) for topic in subscribed for number in answers.topics.get(topic, ())}
    views = {
        partition: PartitionView(partition, min(owners) if owners else None, answers.offsets.get(partition), None)
        for partition in sorted({*assigned, *known, *answers.offsets})
        for owners in [assigned.get(partition)]
    }
    return CoordinatedGroupView(
        group=described.group,
        broker_state=described.state,
        protocol_type=described.protocol_type,
        protocol=described.protocol,
        coordinator=answers.coordinator,
        members=tuple(sorted((_view(each, views) for each in members), key=lambda view: view.member_id)),
        partitions=tuple(views.values()),
        unreadable=tuple(unreadable),
        assigned_twice=tuple(sorted(partition for partition, owners in assigned.items() if len(owners) > 1)),
        missing_topics=tuple(sorted(subscribed - answers.topics.keys())),
    )


def _read(group: DescribedGroup, member: DescribedMember, unreadable: list[str]) -> _Member:
    # A coordinator shows the members' metadata only while the group is stable.
    if group.protocol_type != PROTOCOL_TYPE or _STATES.get(group.state) != "stable":
        return _Member(member, None, None)
    subscription = assignment = None
    try:
        subscription = ConsumerSubscription.parse(member.metadata, f"the subscription of {member.member_id}")
        assignment = ConsumerAssignment.parse(member.assignment, f"the assignment of {member.member_id}")
    except ProtocolError as error:
        unreadable.append(str(error))
    return _Member(member, subscription, assignment)


def _view(member: _Member, views: Mapping[TopicPartition, PartitionView]) -> CoordinatedMemberView:
    return CoordinatedMemberView(
        member.described.member_id,
        member.described.client_id,
        member.described.client_host.removeprefix("/"),
        None if member.subscription is None else member.subscription.topics,
        tuple(views[partition] for partition in sorted(_partitions_of(member.assignment))),
    )


def _partitions_of(assignment: ConsumerAssignment | None) -> set[TopicPartition]:
    given = {} if assignment is None else assignment.partitions
    return {TopicPartition(topic, number) for topic, numbers in given.items() for number in numbers}
