"""
What is known about a group from outside: its znodes in, one value out.

Nothing here fails on a znode that is missing or unreadable: a tool that looks at a broken group has to show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.model import MemberId, Slot, TopicPartition
from kiel_groups.ops.znode_values import Reading

__all__ = ["Foreigner", "GroupView", "MemberView", "PartitionView", "lag_of", "view_group"]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """
    One partition: who owns it, where the group stands in it.

    ``owner`` is None while it is claimed by nobody, ``target`` where the plan gives it to nobody, ``committed`` None
    without an offset that can be read, ``log_end`` None where the brokers were not asked or did not answer.
    ``claimed_ms`` and ``committed_ms`` are when, in epoch milliseconds; the latter is None without an offset znode.
    ``opened`` is False where no offset was written since the claim: an owner that opens a claim rewrites the offset,
    or creates it, before it delivers anything. It is True where an operator sets the offset of an unopened claim.
    """

    topic_partition: TopicPartition
    owner: MemberId | None
    committed: int | None
    log_end: int | None
    target: MemberId | None = None
    claimed_ms: int | None = None
    committed_ms: int | None = None
    opened: bool = False

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end of the log; None where one of them is unknown."""
        if self.log_end is None or self.committed is None:
            return None
        return max(0, self.log_end - self.committed)


@dataclass(frozen=True, slots=True)
class MemberView:
    """A live member, what the plan gives it (``target``) and what it has claimed (``owned``)."""

    info: MemberInfo
    leads: bool
    target: frozenset[TopicPartition]
    owned: tuple[PartitionView, ...]

    @property
    def lag(self) -> int | None:
        """Of all it owns, in records; see ``lag_of``."""
        return lag_of(self.owned)

    @property
    def share(self) -> str:
        """How many partitions it owns; on the way to something else, both numbers."""
        owned = {partition.topic_partition for partition in self.owned}
        return str(len(owned)) if owned == self.target else f"{len(owned)} → {len(self.target)}"


@dataclass(frozen=True, slots=True)
class Foreigner:
    """A live member that does not take part in the protocol: a Java consumer (under ``/consumers``), one of kiel's."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class GroupView:
    """
    A group at one moment.

    ``group_state`` is None before the first plan, ``settings`` before the first member. ``candidates`` are those that
    stand for election, the leader first; one that is no member is an allocator's. ``missing_topics`` are
    subscribed to and do not exist. ``away`` are the shares of static members that went and may return. ``unreadable``
    lists what stands in the way of a complete picture. ``tuning`` is what people have set for the group, None
    where that is refused, for the reason ``refused``. ``brokers`` is how many are registered, None where nobody looked.
    ``closed`` are paths of znodes whose ACL keeps whoever looked out: what stands there, and below, is not known.
    ``history`` is of its last generations, the newest first; ``weights`` how many partitions somebody gave one.
    ``was_joined`` tells whether a member has ever registered.
    """

    group: str
    group_state: GroupState | None
    leader: MemberId | None
    members: tuple[MemberView, ...]
    partitions: tuple[PartitionView, ...]
    unreadable: tuple[str, ...]
    settings: GroupSettings | None = None
    candidates: tuple[MemberId, ...] = ()
    foreign_members: tuple[Foreigner, ...] = ()
    missing_topics: tuple[str, ...] = ()
    away: Mapping[Slot, MemberAssignment] = field(default_factory=dict)
    tuning: DynamicConfig | None = field(default_factory=DynamicConfig)
    refused: str = ""
    brokers: int | None = None
    closed: tuple[str, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    weights: int = 0
    was_joined: bool = True

    @property
    def lag(self) -> int:
        """Of the whole group, in records; partitions of unknown lag count nothing."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def known_lag(self) -> int | None:
        """``lag``, or None where that of no partition is known, or no partition is seen because offsets are closed."""
        return None if self.closed and not self.partitions else lag_of(self.partitions)

    @property
    def owned(self) -> int:
        """How many partitions have a live owner or one whose session has not ended yet."""
        return sum(partition.owner is not None for partition in self.partitions)

    @property
    def member_ids(self) -> frozenset[MemberId]:
        return frozenset(member.info.member_id for member in self.members)

    @property
    def state(self) -> str:
        """
        One word.

        ``unreadable`` (part of it is closed), ``foreign``, ``empty``, ``memberless`` (no member has ever joined),
        ``publishing``, ``moving`` (not everybody owns its share) or ``settled``.
        """
        if self.closed:
            return "unreadable"
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
        """Of its members, and of static ones that may return."""
        return frozenset(member.info.slot for member in self.members) | self.away.keys()

    def with_log_ends(self, log_ends: Mapping[TopicPartition, int], brokers: int) -> GroupView:
        """The same, with what the brokers that are registered said."""
        known = {
            each.topic_partition: replace(each, log_end=log_ends.get(each.topic_partition)) for each in self.partitions
        }
        members = tuple(
            replace(member, owned=tuple(known[each.topic_partition] for each in member.owned))
            for member in self.members
        )
        return replace(self, partitions=tuple(known.values()), members=members, brokers=brokers)


def lag_of(partitions: Collection[PartitionView]) -> int | None:
    """In records; partitions of unknown lag count nothing, and None is that of no partition is known."""
    known = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(known) if known or not partitions else None


def view_group(group: str, znodes: Snapshot, log_ends: Mapping[TopicPartition, int] | None = None) -> GroupView:
    """
    Make the view of a group.

    Args:
        group: Its name.
        znodes: Its znodes, and those of its topics.
        log_ends: The next offset of each partition that was asked for.
    """
    reading = Reading(GroupLayout(group), znodes)
    candidates, members = reading.candidates(), reading.members()
    leader = candidates[0] if candidates else None
    targets = {info.member_id: reading.target(info) for info in members}
    partitions = _partitions(reading, members, targets, log_ends or {})
    settings = reading.settings()
    tuning, refused = reading.tuning()
    return GroupView(
        group=group,
        group_state=reading.group_state(),
        leader=leader,
        members=tuple(_member(info, leader, targets, partitions) for info in members),
        partitions=partitions,
        settings=settings,
        candidates=candidates,
        foreign_members=tuple(Foreigner(path.rpartition("/")[2], path) for path in reading.foreign_members()),
        missing_topics=reading.missing_topics(members),
        away=reading.away(),
        tuning=tuning,
        refused=refused,
        history=reading.history(),
        weights=reading.weights(),
        was_joined=reading.was_joined(),
        unreadable=tuple(dict.fromkeys(reading.unreadable)),
        closed=reading.closed,
    )


def _member(
    info: MemberInfo,
    leader: MemberId | None,
    targets: Mapping[MemberId, frozenset[TopicPartition]],
    partitions: tuple[PartitionView, ...],
) -> MemberView:
    owned = tuple(partition for partition in partitions if partition.owner == info.member_id)
    return MemberView(info, info.member_id == leader, targets[info.member_id], owned)


def _partitions(
    reading: Reading,
    members: list[MemberInfo],
    targets: Mapping[MemberId, frozenset[TopicPartition]],
    log_ends: Mapping[TopicPartition, int],
) -> tuple[PartitionView, ...]:
    """Every partition that is subscribed to, owned or has an offset."""
    owners, committed = reading.owners(), reading.offsets()
    target = {partition: member_id for member_id, share in targets.items() for partition in share}
    subscribed = {topic for info in members for topic in info.subscription}
    known = {partition for topic in sorted(subscribed) for partition in reading.partitions_of(topic)}
    found = []
    for partition in sorted({*owners, *committed, *target, *known, *log_ends}):
        owner, claim = owners.get(partition, (None, None))
        offset, written = committed.get(partition, (None, None))
        found.append(
            PartitionView(
                partition,
                owner,
                offset,
                log_ends.get(partition),
                target.get(partition),
                claim.created_ms if claim else None,
                written.modified_ms if written else None,
                opened=claim is not None and written is not None and written.mzxid >= claim.czxid,
            )
        )
    return tuple(found)
