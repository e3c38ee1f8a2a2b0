"""The view of a group for operators, in the same form whichever servers coordinate the group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

from kiel_groups.config import BROKER_V1
from kiel_groups.group.commit_note import NotedOffset
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, Snapshot
from kiel_groups.group.znodes.group_settings import DynamicConfig, HistoryEntry
from kiel_groups.group.znodes.round_contents import RoundState
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus, cause_of
from kiel_groups.model import CONNECT_TYPE, MemberId, Slot, TopicPartition
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE

#: The store of an offset.
Store: TypeAlias = Literal["zookeeper", "kafka"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    One partition, its owner and the group's offset in it.

    ``owner`` is None if no member has claimed the partition, and ``target`` is None if the plan assigns the partition
    to no member. ``committed`` is None if there is no readable offset, or if the offset is in Kafka and the coordinator
    was not asked. ``log_end`` is None if the brokers were not asked or did not answer. If brokers coordinate the group,
    ``owner`` and ``target`` are the member that the partition is assigned to, and the fields about claims and times
    are None.

    ``claimed_ms`` and ``committed_ms`` are the times of the claim and of the commit, in epoch milliseconds, or None if
    unknown. ``opened`` is True if the offset was written after the claim: the owner writes the offset before it
    delivers the first record under a claim. An operator's change of the offset counts, too. ``claim`` is the czxid of
    the owner znode. ``stores`` has the offsets by store, if the group's ``config`` does not name its store. If two
    stores have different offsets, ``committed`` is the smaller offset. ``is_forged`` is True if the owner is a member,
    but another session than the member's session created the owner znode. ``exists`` is False if the topic does not
    exist, or does not have this partition.
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
    is_forged: bool = False
    exists: bool = True

    @property
    def lag(self) -> int | None:
        """The number of records from the committed offset to the log end, or None if either offset is unknown."""
        return self._lag_from(self.committed)

    @property
    def least_lag(self) -> int | None:
        """The smaller lag if two stores have different offsets, and otherwise ``lag``."""
        return self._lag_from(max(self.stores.values(), default=self.committed))

    @property
    def is_disputed(self) -> bool:
        """Whether two stores have different offsets."""
        return len(set(self.stores.values())) > 1

    def _lag_from(self, offset: int | None) -> int | None:
        return None if self.log_end is None or offset is None else max(0, self.log_end - offset)


def lag_of(partitions: Collection[PartitionView]) -> int | None:
    """Return the total lag of partitions in records. Unknown lags count as 0; if all are unknown, return None."""
    known = [lag for partition in partitions if (lag := partition.lag) is not None]
    return sum(known) if known or not partitions else None


@dataclass(frozen=True, slots=True)
class MemberView:
    """
    A live member, and the partitions that it owns.

    ``subscription`` is None for programs. If brokers coordinate the group, ``subscription`` is also None during a
    rebalance, or if the member's bytes cannot be read. ``target`` has the partitions that the plan assigns to the
    member, or None if no plan that was read includes the member. ``started_at_ms`` is in epoch milliseconds. If brokers
    coordinate the group, ``target`` and the fields from ``leads`` to ``settings`` are unknown and have their defaults.
    Only programs have ``joined`` (the generation that they have joined or wait for) and ``protocols``. ``settings`` has
    the member's settings that differ from the defaults, with its capacity and rack. ``protocol_version`` is the version
    of the subscription of a member of a group that brokers coordinate. ``pattern`` is the pattern whose matches are in
    ``subscription``; members that brokers coordinate tell their group only the matches.
    """

    member_id: MemberId
    client: str
    host: str
    subscription: tuple[str, ...] | None
    owned: tuple[PartitionView, ...] = ()
    target: frozenset[TopicPartition] | None = None
    leads: bool = False
    pid: int | None = None
    started_at_ms: int | None = None
    session_timeout_ms: int | None = None
    instance_id: str | None = None
    joined: int | None = None
    protocols: tuple[str, ...] = ()
    settings: Mapping[str, float | str] = field(default_factory=dict)
    protocol_version: int | None = None
    pattern: str | None = None

    @property
    def slot(self) -> Slot:
        """The slot of this member in plans: the instance id of a static member, or else the member id."""
        return self.instance_id or self.member_id

    @property
    def lag(self) -> int | None:
        """The lag of the owned partitions, in records; see ``lag_of``."""
        return lag_of(self.owned)

    @property
    def is_settled(self) -> bool:
        """Whether the member owns exactly what the plan assigns to it."""
        return self.target == frozenset(partition.topic_partition for partition in self.owned)

    @property
    def share(self) -> str:
        """The number of owned partitions as text; ``2 → 3`` adds the number of assigned partitions if they differ."""
        owned = str(len(self.owned))
        return owned if self.target is None or self.is_settled else f"{owned} → {len(self.target)}"


class FailedWork(NamedTuple):
    """A connector that has failed, or its ``task`` of this number, and the line of the trace that names the error."""

    connector: str
    task: int | None
    cause: str


@dataclass(frozen=True, slots=True)
class ForeignMember:
    """
    A live member that does not follow this package's protocol, such as a consumer of Java, pykafka or kiel.

    ``path`` is the path of the member's znode. ``topics`` has the topics that a Java consumer subscribes to, by name or
    by a regular expression. ``unevaluated`` is the regular expression if it is not evaluated, or "".
    """

    name: str
    path: str
    topics: tuple[str, ...] = ()
    unevaluated: str = ""


class Unreadable(NamedTuple):
    """A description of data of a znode or a member that cannot be read, and the remedy."""

    text: str
    remedy: str


class CoordinatorView(NamedTuple):
    """The broker that coordinates a group, and the group's state and strategy as the broker names them."""

    broker: str
    state: str
    strategy: str


class Sight(Flag):
    """
    The kinds of data that a view shows.

    A rule that finds missing data applies only to views of the kinds that would show these data.
    """

    #: A group of consumers that ZooKeeper coordinates, with all its znodes.
    ZNODES = auto()
    #: Such a group of which ACLs hide some znodes: a znode that seems to be missing may be hidden.
    SOME_ZNODES = auto()
    #: A group of programs, such as workers, in ZooKeeper; they own no partitions.
    PROGRAMS = auto()
    #: The answers of the coordinator of a group.
    ANSWERS = auto()
    ALL = ZNODES | SOME_ZNODES | PROGRAMS | ANSWERS


#: The states of a group as coordinators name them, with the names in views. Kafka 0.9 also calls a group ``Dead`` that
#: has committed offsets and no members.
_STATES = {
    "Stable": "stable",
    "PreparingRebalance": "rebalancing",
    "AwaitingSync": "rebalancing",
    "CompletingRebalance": "rebalancing",
    "Empty": "empty",
    "Dead": "empty",
}


@dataclass(frozen=True)
class GroupView:
    """
    A group at one moment.

    ``protocol_type`` is the type of the members: ``consumer``, the type of their programs, or "" if unknown.
    ``unreadable`` describes the data of members and znodes that cannot be read. ``missing_topics`` are subscribed
    topics that do not exist. ``brokers`` is the number of live brokers, or None if unknown. ``assigned_twice`` are
    partitions that are assigned to several members.

    ``coordinator`` is None unless brokers coordinate the group. Only groups in ZooKeeper have the following fields:

    ``group_state`` is None before the first plan, ``settings`` before the first member. ``candidates`` are in order of
    election, the leader first; a candidate that is not a member is an allocator process. ``away`` has the assignments
    of static members that have left and may return. ``dynamic_config`` has the settings that operators change while the
    group runs. If leaders refuse the settings, ``dynamic_config`` is None, and ``refused`` is the reason. ``closed``
    has the paths of znodes whose ACL denies reading: their data and children are unknown. ``history`` has the last
    generations, the newest first. ``weights`` is the number of partitions with a weight. ``was_joined`` is True if a
    member has ever joined. ``gone_topics`` are topics that do not exist, but of which the group has offsets or first
    offsets. ``further`` are the remaining partitions of the group's topics, and of the topics of Java consumers, if
    no settings name the store: these partitions may have offsets in Kafka.

    A group of programs in ZooKeeper has no ``settings`` and no ``group_state``. ``round`` is the newest rebalance of
    such a group, or None before the first rebalance, or if brokers coordinate the programs. ``workers`` is the number
    of live workers, including workers that brokers coordinate. ``worker_urls`` are the URLs of the workers' REST
    interfaces. ``statuses`` has the name and the number of each connector and task with a present status, and the
    status. The number of a connector is None.

    ``is_partial`` is True if the owners, offsets and topics are those of an earlier view. ``plan_znodes`` has the
    znodes of the members, candidates, settings and plan of a large group. A reader that follows the group reads only
    the znodes that have changed since.
    """

    group: str
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    protocol_type: str = PROTOCOL_TYPE
    is_of_consumers: bool = True
    unreadable: tuple[Unreadable, ...] = ()
    missing_topics: tuple[str, ...] = ()
    brokers: int | None = None
    coordinator: CoordinatorView | None = None
    assigned_twice: tuple[TopicPartition, ...] = ()
    group_state: GroupState | None = None
    leader: MemberId | None = None
    settings: GroupSettings | None = None
    candidates: tuple[MemberId, ...] = ()
    foreign_members: tuple[ForeignMember, ...] = ()
    away: Mapping[Slot, MemberAssignment] = field(default_factory=dict)
    dynamic_config: DynamicConfig | None = field(default_factory=DynamicConfig)
    refused: str = ""
    closed: tuple[str, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    weights: int = 0
    was_joined: bool = True
    gone_topics: tuple[str, ...] = ()
    further: tuple[TopicPartition, ...] = ()
    round: RoundState | None = None
    workers: int = 0
    worker_urls: tuple[str, ...] = ()
    statuses: tuple[tuple[str, int | None, WorkStatus], ...] = ()
    is_partial: bool = False
    plan_znodes: Snapshot = field(default_factory=dict, repr=False, compare=False)

    @property
    def sight(self) -> Sight:
        """The kind of data that the view shows."""
        if self.coordinator is not None:
            return Sight.ANSWERS
        if not self.is_of_consumers:
            return Sight.PROGRAMS
        return Sight.SOME_ZNODES if self.closed else Sight.ZNODES

    @property
    def lag(self) -> int:
        """The lag of the whole group, in records. A partition with an unknown lag counts as 0."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def known_lag(self) -> int | None:
        """The total lag, or None if no lag is known, ACLs hide all partitions, or programs have no partitions."""
        has_none = self.sight in Sight.SOME_ZNODES | Sight.PROGRAMS and not self.partitions
        return None if has_none else lag_of(self.partitions)

    @property
    def owned(self) -> int:
        """The number of partitions with an owner. A dead member is an owner until its session expires."""
        return sum(partition.owner is not None for partition in self.partitions)

    @property
    def are_workers(self) -> bool:
        """Whether the members are workers. Workers share connectors and their tasks, not partitions."""
        return self.protocol_type == CONNECT_TYPE

    @property
    def failed_work(self) -> tuple[FailedWork, ...]:
        """The connectors and tasks that have failed."""
        return tuple(
            FailedWork(connector, task, cause_of(status.trace))
            for connector, task, status in self.statuses
            if status.state is WorkState.FAILED
        )

    @property
    def size(self) -> int:
        """The number of live members. Workers that brokers coordinate count, although they have no member znodes."""
        return len(self.members) or self.workers

    @property
    def generation(self) -> int | None:
        """The number of the newest plan or, for programs, of the newest rebalance; None before the first generation."""
        newest = self.group_state or self.round
        return None if newest is None else newest.generation

    @cached_property
    def member_ids(self) -> frozenset[MemberId]:
        return frozenset(member.member_id for member in self.members)

    @cached_property
    def member_names(self) -> frozenset[str]:
        """The names of all live members, including the members of other clients."""
        return self.member_ids.union(member.name for member in self.foreign_members)

    @cached_property
    def subscribed(self) -> frozenset[str]:
        """The topics that members subscribe to. Members with an unknown subscription are left out."""
        return frozenset(topic for member in self.members for topic in member.subscription or ())

    @property
    def allocator(self) -> str:
        """
        The allocator or the strategy that the next plan uses, or "" if unknown.

        The group's ``config`` overrides the leader's own allocator. Only the newest plan shows the leader's own
        allocator. If the group has no leader, the next leader may have another allocator.
        """
        if self.coordinator is not None:
            return self.coordinator.strategy
        if self.round is not None:
            return self.round.protocol
        configured = self.dynamic_config.allocator if self.dynamic_config is not None else None
        planned = self.group_state.allocator if self.group_state is not None and self.leader is not None else ""
        return configured or planned

    @property
    def exists(self) -> bool:
        """
        Whether the group exists. A group that brokers coordinate exists if its state is not ``Dead``, or if it has a
        committed offset.
        """
        has_state = self.coordinator is None or self.coordinator.state != "Dead"
        return has_state or any(each.committed is not None for each in self.partitions)

    @property
    def state(self) -> str:
        """
        The state of the group as a word.

        The state of consumers in ZooKeeper is ``unreadable`` (an ACL hides znodes), ``foreign`` (only foreign members),
        ``empty``, ``memberless`` (no member has ever joined), ``publishing``, ``moving`` or ``settled``. In a settled
        group, the plan includes all members and partitions, and each member owns exactly its target.

        The state of programs in ZooKeeper is ``unreadable``, ``empty``, ``joining``, the state of their newest
        rebalance, or ``by brokers`` if brokers coordinate the programs. The state of consumers that brokers coordinate
        is ``stable``, ``rebalancing``, ``empty``, ``memberless`` (not with brokers of 0.9), or a state of later brokers
        in lower case.
        """
        if self.coordinator is not None:
            if self.coordinator.state == "Empty" and not self.protocol_type:
                return "memberless"
            return _STATES.get(self.coordinator.state, self.coordinator.state.lower())
        if self.closed:
            return "unreadable"
        if not self.is_of_consumers:
            if not self.members:
                return "by brokers" if self.workers else "empty"
            return "joining" if self.round is None else self.round.state
        if not self.members:
            if self.foreign_members:
                return "foreign"
            return "empty" if self.was_joined else "memberless"
        return self._progress()

    @property
    def outline(self) -> str:
        """
        The state of a group whose owner znodes were not read.

        The state is ``unreadable``, ``foreign``, ``empty``, ``memberless``, ``unplanned``, ``publishing`` or ``done``.
        For programs, and for groups that brokers coordinate, the state is ``state``.
        """
        if self.sight is not Sight.ZNODES or not self.members:
            return self.state
        return "unplanned" if self.group_state is None else self.group_state.state

    def _progress(self) -> str:
        """Return the state of a group with members by its newest plan: ``publishing``, ``moving`` or ``settled``."""
        if self.group_state is None:
            return "moving"
        if self.group_state.state == "publishing":
            return "publishing"
        # The znodes are read one after the other: the assignment of a member that was made meanwhile may be missing.
        is_whole = not self.unassigned or bool(self.group_state.unassigned)
        return "settled" if is_whole and all(member.is_settled for member in self.members) else "moving"

    @property
    def unassigned(self) -> tuple[PartitionView, ...]:
        """
        The existing partitions of subscribed topics that the plan neither assigns to a member nor reserves for an
        absent static member.
        """
        reserved = {partition for assignment in self.away.values() for partition in assignment.partitions}
        return tuple(
            each
            for each in self.partitions
            if each.target is None
            and each.exists
            and each.topic_partition.topic in self.subscribed
            and each.topic_partition not in reserved
        )

    @property
    def slots(self) -> frozenset[Slot]:
        """The slots of the group's members, and of absent static members that may return."""
        return frozenset(member.slot for member in self.members) | self.away.keys()

    @property
    def offsets_in_kafka(self) -> bool:
        """Whether the group's offsets are in Kafka, so that the znodes do not show them."""
        return self.settings is not None and self.settings.store == BROKER_V1

    @property
    def has_any_store(self) -> bool:
        """Whether the store of the offsets is unknown, because no settings name it, as in groups of Java consumers."""
        return self.settings is None and self.sight is Sight.ZNODES

    @property
    def is_disputed(self) -> bool:
        """Whether ZooKeeper and Kafka have different offsets of the group."""
        return any(partition.is_disputed for partition in self.partitions)

    def with_log_ends(self, log_ends: Mapping[TopicPartition, int], brokers: int) -> GroupView:
        """Return the view with these log ends, and with the number of live brokers."""
        ended = [replace(each, log_end=log_ends.get(each.topic_partition)) for each in self.partitions]
        return replace(self._with_partitions(ended), brokers=brokers)

    def with_kafka_offsets(self, offsets: Mapping[TopicPartition, NotedOffset]) -> GroupView:
        """
        Return the view with offsets in Kafka.

        If the settings do not name the store, the offsets are added to ``stores``, and partitions of ``further`` with
        an offset are added to the view.
        """
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

    def with_broker_answers_of(self, earlier: GroupView) -> GroupView:
        """
        Return this view with the data that only brokers know, taken from an earlier view.

        These data are the ends of the logs, the offsets in Kafka, and the number of live brokers.
        """
        known = {each.topic_partition: each for each in earlier.partitions}
        ended = [_answered(each, known.get(each.topic_partition)) for each in self.partitions]
        return replace(self._with_partitions(ended), brokers=earlier.brokers)

    def with_partitions_of(self, earlier: GroupView) -> GroupView:
        """
        Return this view, which has only members, candidates and the plan, with the rest of an earlier view.

        A partition of a member that has left since has no owner: owner znodes end with the session of their member.
        """
        left = earlier.member_names - self.member_names
        targets = {each: member.member_id for member in self.members for each in member.target or ()}
        partitions = {
            each.topic_partition: _planned(each, targets.pop(each.topic_partition, None), left)
            for each in earlier.partitions
        }
        partitions |= {each: PartitionView(each, None, None, None, target) for each, target in targets.items()}
        # Which topics a pattern selects is known only by the topics.
        foreign = {each.path: each for each in earlier.foreign_members}
        owned: dict[MemberId | None, list[PartitionView]] = {}
        for each in partitions.values():
            owned.setdefault(each.owner, []).append(each)
        return replace(
            self,
            members=tuple(replace(each, owned=tuple(owned.get(each.member_id, ()))) for each in self.members),
            partitions=tuple(partitions[each] for each in sorted(partitions)),
            foreign_members=tuple(foreign.get(each.path, each) for each in self.foreign_members),
            missing_topics=earlier.missing_topics,
            gone_topics=earlier.gone_topics,
            further=earlier.further,
            unreadable=earlier.unreadable,
            brokers=earlier.brokers,
            is_partial=True,
        )

    def with_store(self, store: Store) -> GroupView:
        """Return the view in which partitions with an offset in ``store`` have only this offset."""
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


def _planned(partition: PartitionView, target: MemberId | None, left: Collection[str]) -> PartitionView:
    """Return a partition with its target in the newest plan, and without its owner if the owner has ``left``."""
    if partition.owner in left:
        return replace(partition, target=target, owner=None, claimed_ms=None, opened=False, claim=None, is_forged=False)
    return partition if partition.target == target else replace(partition, target=target)


def _answered(partition: PartitionView, earlier: PartitionView | None) -> PartitionView:
    if earlier is None:
        return partition
    if partition.committed is None or earlier.stores:
        partition = replace(
            partition, committed=earlier.committed, committed_ms=earlier.committed_ms, stores=earlier.stores
        )
    log_end = earlier.log_end
    if log_end is not None and partition.committed != earlier.committed:
        # The offset is newer than the end: the log has grown meanwhile, and the offset is not beyond its end.
        log_end = max(log_end, partition.committed or 0)
    return replace(partition, log_end=log_end)


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


class StoreTracker:
    """
    Finds the store to which each group commits, from successive views of the groups.

    A single view does not show whether a store has current offsets or old offsets that the group has left there.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, TopicPartition, Store], int] = {}
        self._moving: dict[str, set[Store]] = {}

    def take(self, view: GroupView) -> GroupView:
        """
        Add a view with the offsets of all stores, and return the view with the offsets that count.

        A group commits all its offsets to one store. So if offsets have moved in one store only, the returned view has
        the offsets of that store in all partitions with an offset there. Otherwise, the view has the offsets of both
        stores.
        """
        moving = self._moving.setdefault(view.group, set())
        for partition in view.partitions:
            for store in get_args(Store):
                offset, key = partition.stores.get(store), (view.group, partition.topic_partition, store)
                if offset is not None and self._seen.setdefault(key, offset) != offset:
                    self._seen[key] = offset
                    moving.add(store)
        return view.with_store(*moving) if len(moving) == 1 else view
