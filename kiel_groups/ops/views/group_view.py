"""The view of a group for operators: one value, computed from the group's znodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, TypeVar

from kiel_groups.config import BROKER_V1
from kiel_groups.errors import ProtocolError
from kiel_groups.group.commit_note import NotedOffset
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    GroupState,
    MemberAssignment,
    MemberInfo,
    Snapshot,
    parse_object,
)
from kiel_groups.group.znodes.group_settings import DynamicConfig, HistoryEntry
from kiel_groups.group.znodes.layout import GroupLayout, WorkerLayout
from kiel_groups.group.znodes.round_contents import (
    RoundAssignment,
    RoundMember,
    RoundSettings,
    RoundState,
    program_type,
)
from kiel_groups.model import CONNECT_TYPE, MemberId, Slot, TopicPartition
from kiel_groups.ops.views.znode_values import GroupReader
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE

__all__ = [
    "PartitionView",
    "Store",
    "lag_of",
    "ProgramView",
    "view_programs",
    "ForeignMember",
    "GroupView",
    "MemberView",
    "view_group",
]


#: Where an offset is.
Store: TypeAlias = Literal["zookeeper", "kafka"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    One partition, its owner and the group's offset in it.

    ``owner`` is None if no member has claimed the partition, ``target`` if the plan assigns it to no member,
    ``committed`` if there is no readable offset, or if it is in Kafka and the coordinator was not asked,
    ``log_end`` if the brokers were not asked or did not answer.
    ``claimed_ms`` and ``committed_ms`` are the times of the claim and of the commit, in epoch milliseconds; each is
    None if its znode does not exist. ``opened`` is True if the offset was written after the claim. An owner that opens
    a claim writes the offset before it delivers any record; an operator's change of the offset counts, too. ``claim``
    is the czxid of the owner znode. ``stores`` has the offsets by store, if the group's ``config`` does not name its
    store. While two differ, ``committed`` is the one with the larger lag.
    """

    topic_partition: TopicPartition
    owner: MemberId | None
    committed: int | None
    log_end: int | None
    target: MemberId | None = None
    claimed_ms: int | None = None
    committed_ms: int | None = None
    opened: bool = False
    claim: int | None = None
    stores: Mapping[Store, int] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """The number of records from the committed offset to the log end, at least 0, or None if either is unknown."""
        return self._lag_from(self.committed)

    @property
    def least_lag(self) -> int | None:
        """The lag by the store with the smaller lag, while two differ; otherwise ``lag``."""
        return self._lag_from(max(self.stores.values(), default=self.committed))

    @property
    def is_disputed(self) -> bool:
        """Whether two stores have different offsets."""
        return len(set(self.stores.values())) > 1

    def _lag_from(self, offset: int | None) -> int | None:
        return None if self.log_end is None or offset is None else max(0, self.log_end - offset)


def lag_of(partitions: Collection[PartitionView]) -> int | None:
    """Return the total lag of partitions in records. Unknown lags count as 0; if all are unknown, return None."""
    known = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(known) if known or not partitions else None


_Value = TypeVar("_Value")

#: The version of the znodes of programs.
_VERSION = 2


@dataclass(frozen=True, slots=True)
class ProgramView:
    """
    The programs of a group at one moment.

    ``protocol_type`` is that of all members, "" if no znode has it. ``round`` is None before the first rebalance, and
    if brokers coordinate the group. ``members`` are in the order in which they have joined. ``workers`` is the number
    of live workers, whatever coordinates them. ``unreadable`` has an error text for each znode that cannot be parsed.
    """

    protocol_type: str
    round: RoundState | None
    members: tuple[RoundMember, ...]
    workers: int
    unreadable: tuple[str, ...]

    @property
    def are_workers(self) -> bool:
        """Whether the members are workers, which share connectors and their tasks."""
        return self.protocol_type == CONNECT_TYPE

    @property
    def size(self) -> int:
        """The number of members; workers that brokers coordinate have no member znodes."""
        return len(self.members) or self.workers

    @property
    def state(self) -> str:
        """The state in one word or two: ``empty``, ``by brokers``, ``joining`` or ``done``."""
        if not self.members:
            return "by brokers" if self.workers else "empty"
        return "joining" if self.round is None else self.round.state


def view_programs(layout: GroupLayout, znodes: Snapshot) -> ProgramView | None:
    """
    Return the view of the programs of a group, or None if it is a group of consumers.

    Args:
        layout: The paths of the group.
        znodes: The group's znodes.
    """
    workers = WorkerLayout(layout.group)
    paths = [path for path in znodes if path.startswith(f"{layout.root}/") and not znodes[path].closed]
    members = [path for path in paths if path.startswith(f"{layout.members}/")]
    shared = [path for path in (layout.config, layout.group_state) if path in paths]
    live_workers = sum(path.startswith(f"{workers.workers}/") for path in paths)
    settings_data, configuration = (
        znodes[path].data if path in paths else None for path in (layout.config, workers.config)
    )
    found_type = program_type(settings_data, configuration, has_workers=live_workers > 0)
    if found_type is None and not any(_is_of_programs(znodes[path].data, path) for path in (*shared, *members)):
        return None
    unreadable: list[str] = []

    def parsed(parse: Callable[[bytes, str], _Value], path: str) -> Iterator[_Value]:
        try:
            yield parse(znodes[path].data, path)
        except ProtocolError as error:
            unreadable.append(str(error))

    settings = list(parsed(RoundSettings.parse, layout.config)) if layout.config in shared else []
    states = list(parsed(RoundState.parse, layout.group_state)) if layout.group_state in shared else []
    found = [each for path in members for each in parsed(_parse_member, path)]
    for path in paths:
        if path.startswith(f"{layout.group_state}/"):
            # The text of the error counts only.
            _ = list(parsed(RoundAssignment.parse, path))
    types = [each.protocol_type for each in settings] or [each.offer.protocol_type for each in found]
    return ProgramView(
        protocol_type=types[0] if types else found_type or "",
        round=states[0] if states else None,
        members=tuple(sorted(found, key=lambda each: (each.started_at_ms, each.member_id))),
        workers=live_workers,
        unreadable=tuple(unreadable),
    )


def _parse_member(data: bytes, path: str) -> RoundMember:
    return RoundMember.parse(path.rpartition("/")[2], data, path)


def _is_of_programs(data: bytes, path: str) -> bool:
    """Return whether a znode of a group has the version that those of programs have."""
    try:
        return parse_object(data, path).get("version") == _VERSION
    except ProtocolError:
        return False


# The view of a group for operators: one value, computed from the group's znodes.
#
# Missing or unreadable znodes raise no error, because operators need the view of a broken group most.


@dataclass(frozen=True, slots=True)
class MemberView:
    """
    A live member, the partitions that the plan assigns to it (``target``), and the claimed ones (``owned``).

    ``is_planned`` is False if no plan that was read includes the member.
    """

    info: MemberInfo
    leads: bool
    target: frozenset[TopicPartition]
    owned: tuple[PartitionView, ...]
    is_planned: bool = True

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
        ``publishing``, ``moving`` or ``settled``: the plan includes all members and partitions, and each member owns
        exactly its target. That of programs is ``empty``, ``joining``, ``done``, or ``by brokers``, which coordinate
        them.
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
        # The znodes are read one after the other: the assignment of a member that was made meanwhile may be missing.
        is_planned = self.group_state is not None and all(member.is_planned for member in self.members)
        is_owned = all({each.topic_partition for each in member.owned} == member.target for member in self.members)
        is_whole = not self.unassigned or (self.group_state is not None and bool(self.group_state.unassigned))
        return "settled" if is_planned and is_owned and is_whole else "moving"

    @property
    def unassigned(self) -> tuple[PartitionView, ...]:
        """The partitions of subscribed topics that the plan assigns to no member, and reserves for none."""
        subscribed = {topic for member in self.members for topic in member.info.subscription}
        reserved = {partition for assignment in self.away.values() for partition in assignment.partitions}
        return tuple(
            each
            for each in self.partitions
            if each.target is None and each.topic_partition.topic in subscribed and each.topic_partition not in reserved
        )

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
    assigned = {info.member_id: reading.assignment(info) for info in members}
    targets = {member_id: found.partitions for member_id, found in assigned.items() if found is not None}
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
            MemberView(
                info,
                info.member_id == leader,
                targets.get(info.member_id, frozenset()),
                tuple(owned[info.member_id]),
                info.member_id in targets,
            )
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
