"""
The view of a group for operators: one value, computed from the group's znodes.

Missing or unreadable znodes raise no error, because operators need the view of a broken group most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kiel_groups.config import BROKER_V1
from kiel_groups.group.member.commit_note import NotedOffset
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.model import MemberId, Slot, TopicPartition
from kiel_groups.ops.partition_view import PartitionView, Store, lag_of
from kiel_groups.ops.program_view import ProgramView, view_programs
from kiel_groups.ops.znode_values import GroupReader
from kiel_groups.wire.groups.consumer_protocol import PROTOCOL_TYPE

__all__ = ["ForeignMember", "GroupView", "MemberView", "view_group"]


@dataclass(frozen=True, slots=True)
class MemberView:
    """A live member, the partitions that the plan assigns to it (``target``), and the claimed ones (``owned``)."""

    info: MemberInfo
    leads: bool
    target: frozenset[TopicPartition]
    owned: tuple[PartitionView, ...]

    @property
    def lag(self) -> int | None:
        """The lag of the owned partitions, in records; see ``lag_of``."""
        return lag_of(self.owned)

    @property
    def share(self) -> str:
        """The number of owned partitions, or ``2 → 3`` with the target's number while the two sets differ."""
        owned = {partition.topic_partition for partition in self.owned}
        return str(len(owned)) if owned == self.target else f"{len(owned)} → {len(self.target)}"


@dataclass(frozen=True, slots=True)
class ForeignMember:
    """A live member that does not follow this package's protocol: a consumer of Java or pykafka, or a kiel member."""

    name: str
    path: str


@dataclass(frozen=True)
class GroupView:
    """
    A group at one moment.

    ``group_state`` is None before the first plan, ``settings`` before the first member. ``candidates`` are in order of
    election, the leader first; a candidate that is not a member is an allocator process. ``missing_topics`` are topics
    that members subscribe to, but that do not exist. ``away`` has the assignments of static members that have left and
    may return. ``unreadable`` has an error text for each znode that cannot be parsed. ``dynamic_config`` has the
    settings that operators change while the group runs; it is None if leaders refuse them, and ``refused`` is the
    reason. ``brokers`` is the number of registered brokers, None if unknown. ``closed`` has the paths of znodes whose
    ACL denies reading: their data and children are unknown. ``history`` has the last generations, the newest first;
    ``weights`` is the number of partitions with a weight. ``was_joined`` is True if a member has ever registered.
    ``programs`` has the members of a group that is not one of consumers; ``members`` and ``settings`` are then empty.
    ``further`` are partitions of the topics of a group whose store is not named, of which the znodes have nothing.
    """

    group: str
    group_state: GroupState | None
    leader: MemberId | None
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    unreadable: tuple[str, ...]
    settings: GroupSettings | None = None
    candidates: tuple[MemberId, ...] = ()
    foreign_members: tuple[ForeignMember, ...] = ()
    missing_topics: tuple[str, ...] = ()
    away: Mapping[Slot, MemberAssignment] = field(default_factory=dict)
    dynamic_config: DynamicConfig | None = field(default_factory=DynamicConfig)
    refused: str = ""
    brokers: int | None = None
    closed: tuple[str, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    weights: int = 0
    was_joined: bool = True
    programs: ProgramView | None = None
    further: tuple[TopicPartition, ...] = ()

    @property
    def lag(self) -> int:
        """The lag of the whole group, in records; a partition of unknown lag counts as 0."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def known_lag(self) -> int | None:
        """``lag``, or None if no partition has a known lag, if an ACL hides all, or if programs have none."""
        has_none = (self.closed or self.programs is not None) and not self.partitions
        return None if has_none else lag_of(self.partitions)

    @property
    def owned(self) -> int:
        """The number of partitions with an owner; a dead member counts as owner until its session expires."""
        return sum(partition.owner is not None for partition in self.partitions)

    @property
    def protocol_type(self) -> str:
        """What the members are: ``consumer``, or the type of their programs; "" if that is not known."""
        return PROTOCOL_TYPE if self.programs is None else self.programs.protocol_type

    @property
    def size(self) -> int:
        """The number of live members, consumers or programs."""
        return len(self.members) if self.programs is None else self.programs.size

    @property
    def generation(self) -> int | None:
        """The number of the newest plan, or of the newest rebalance of programs; None before the first one."""
        newest = self.group_state if self.programs is None else self.programs.round
        return None if newest is None else newest.generation

    @cached_property
    def member_ids(self) -> frozenset[MemberId]:
        return frozenset(member.info.member_id for member in self.members)

    @property
    def state(self) -> str:
        """
        The state of the group in one word.

        It is ``unreadable`` (an ACL hides a part), ``foreign``, ``empty``, ``memberless`` (no member has ever joined),
        ``publishing``, ``moving`` (not every member owns exactly its target) or ``settled``. That of programs is
        ``empty``, ``joining``, ``done``, or ``by brokers``, which coordinate them.
        """
        if self.closed:
            return "unreadable"
        if self.programs is not None:
            return self.programs.state
        if not self.members:
            if self.foreign_members:
                return "foreign"
            return "empty" if self.was_joined else "memberless"
        if self.group_state is not None and self.group_state.state == "publishing":
            return "publishing"
        owned = {member.info.member_id: {each.topic_partition for each in member.owned} for member in self.members}
        moving = any(owned[member.info.member_id] != member.target for member in self.members)
        return "moving" if moving or self.group_state is None else "settled"

    @property
    def slots(self) -> frozenset[Slot]:
        """The slots of the group's members, and of absent static members that may return."""
        return frozenset(member.info.slot for member in self.members) | self.away.keys()

    @property
    def offsets_in_kafka(self) -> bool:
        """Whether the group's offsets are in Kafka, so that the znodes do not show them."""
        return self.settings is not None and self.settings.store == BROKER_V1

    @property
    def has_any_store(self) -> bool:
        """Whether nothing says where the group's offsets are: it is one of other clients, such as Java's consumer."""
        return self.settings is None and self.programs is None and not self.closed

    @property
    def is_disputed(self) -> bool:
        """Whether ZooKeeper and Kafka have different offsets of the group."""
        return any(partition.is_disputed for partition in self.partitions)

    def with_log_ends(self, log_ends: Mapping[TopicPartition, int], brokers: int) -> GroupView:
        """Return the view with these log ends, and with the number of registered brokers."""
        ended = [replace(each, log_end=log_ends.get(each.topic_partition)) for each in self.partitions]
        return replace(self._with_partitions(ended), brokers=brokers)

    def with_kafka_offsets(self, offsets: Mapping[TopicPartition, NotedOffset]) -> GroupView:
        """Return the view with the offsets that the coordinator of the group has returned."""
        if self.offsets_in_kafka:
            return self._with_partitions(
                [_committed(each, offsets.get(each.topic_partition)) for each in self.partitions]
            )
        bare = [PartitionView(each, None, None, None) for each in self.further if each in offsets]
        found = sorted((*self.partitions, *bare), key=lambda each: each.topic_partition)
        return self._with_partitions(
            [
                _stored(each, {**each.stores, "kafka": offsets[each.topic_partition].offset})
                if each.topic_partition in offsets
                else each
                for each in found
            ]
        )

    def with_store(self, store: Store) -> GroupView:
        """Return the view with the offsets of one store, wherever it has one."""
        return self._with_partitions(
            [_stored(each, {store: each.stores[store]}) if store in each.stores else each for each in self.partitions]
        )

    def _with_partitions(self, partitions: Sequence[PartitionView]) -> GroupView:
        known = {each.topic_partition: each for each in partitions}
        members = tuple(
            replace(member, owned=tuple(known[each.topic_partition] for each in member.owned))
            for member in self.members
        )
        return replace(self, partitions=tuple(known.values()), members=members)


def _stored(partition: PartitionView, stores: Mapping[Store, int]) -> PartitionView:
    # Only ZooKeeper tells the time of a commit.
    at_ms = partition.committed_ms if "zookeeper" in stores else None
    return replace(partition, stores=stores, committed=min(stores.values()), committed_ms=at_ms)


def _committed(partition: PartitionView, found: NotedOffset | None) -> PartitionView:
    if found is None:
        return partition
    # An offset without a note is an operator's.
    opened = partition.claim is not None and (found.note is None or found.note.claim == partition.claim)
    at_ms = None if found.note is None else found.note.at_ms
    return replace(partition, committed=found.offset, committed_ms=at_ms, opened=opened)


def view_group(group: str, znodes: Snapshot, log_ends: Mapping[TopicPartition, int] | None = None) -> GroupView:
    """
    Return the view of a group.

    Args:
        group: The name of the group.
        znodes: The znodes of the group and of its topics.
        log_ends: The known log ends of partitions.
    """
    reading = GroupReader(GroupLayout(group), znodes)
    if (programs := view_programs(GroupLayout(group), znodes)) is not None:
        return _view_of_programs(group, programs, reading, log_ends or {})
    candidates, members = reading.candidates(), reading.members()
    leader = candidates[0] if candidates else None
    targets = {info.member_id: reading.target(info) for info in members}
    settings = reading.settings()
    in_kafka = settings is not None and settings.store == BROKER_V1
    partitions = _partitions(reading, members, targets, log_ends or {}, in_kafka=in_kafka)
    further: set[TopicPartition] = set()
    if settings is None:
        partitions = tuple(
            each if each.committed is None else _stored(each, {"zookeeper": each.committed}) for each in partitions
        )
        further = {each for topic in reading.consumed_topics() for each in reading.partitions_of(topic)}
        further -= {each.topic_partition for each in partitions}
    owned: defaultdict[MemberId | None, list[PartitionView]] = defaultdict(list)
    for partition in partitions:
        owned[partition.owner].append(partition)
    dynamic_config = reading.dynamic_config()
    return GroupView(
        group=group,
        group_state=reading.group_state(),
        leader=leader,
        members=tuple(
            MemberView(info, info.member_id == leader, targets[info.member_id], tuple(owned[info.member_id]))
            for info in members
        ),
        partitions=partitions,
        settings=settings,
        candidates=candidates,
        foreign_members=tuple(ForeignMember(path.rpartition("/")[2], path) for path in reading.foreign_members()),
        missing_topics=reading.missing_topics(members),
        away=reading.away(),
        dynamic_config=dynamic_config.config,
        refused=dynamic_config.refusal,
        history=reading.history(),
        weights=reading.weights(),
        was_joined=reading.was_joined(),
        unreadable=tuple(dict.fromkeys(reading.unreadable)),
        closed=reading.closed,
        further=tuple(sorted(further)),
    )


def _view_of_programs(
    group: str, programs: ProgramView, reading: GroupReader, log_ends: Mapping[TopicPartition, int]
) -> GroupView:
    """Return the view of a group of programs; other clients may have offsets and members under the same name."""
    candidates = reading.candidates()
    return GroupView(
        group=group,
        group_state=None,
        leader=candidates[0] if candidates else None,
        members=(),
        partitions=_partitions(reading, [], {}, log_ends, in_kafka=False),
        unreadable=(*programs.unreadable, *reading.unreadable),
        candidates=candidates,
        foreign_members=tuple(ForeignMember(path.rpartition("/")[2], path) for path in reading.foreign_members()),
        closed=reading.closed,
        programs=programs,
    )


def _partitions(
    reading: GroupReader,
    members: list[MemberInfo],
    targets: Mapping[MemberId, frozenset[TopicPartition]],
    log_ends: Mapping[TopicPartition, int],
    *,
    in_kafka: bool,
) -> tuple[PartitionView, ...]:
    """
    Return every partition that is subscribed to, assigned or owned, or that has an offset or a known log end.

    If the offsets are ``in_kafka``, those are the partitions of topics that the group has begun to read.
    """
    owners, committed = reading.owners(), {} if in_kafka else reading.offsets()
    target = {partition: member_id for member_id, assigned in targets.items() for partition in assigned}
    subscribed = {topic for info in members for topic in info.subscription} | set(reading.begun_topics())
    known = {partition for topic in sorted(subscribed) for partition in reading.partitions_of(topic)}
    found = []
    for partition in sorted({*owners, *committed, *target, *known, *log_ends}):
        claim, commit = owners.get(partition), committed.get(partition)
        found.append(
            PartitionView(
                partition,
                claim.member_id if claim else None,
                commit.offset if commit else None,
                log_ends.get(partition),
                target.get(partition),
                claim.znode.created_ms if claim else None,
                commit.znode.modified_ms if commit else None,
                opened=claim is not None and commit is not None and commit.znode.mzxid >= claim.znode.czxid,
                claim=claim.znode.czxid if claim else None,
            )
        )
    return tuple(found)
