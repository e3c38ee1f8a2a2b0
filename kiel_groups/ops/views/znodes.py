"""
Compute the view of a group that ZooKeeper coordinates from its znodes.

Missing or unreadable znodes raise no error, because operators need the view of a broken group most.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain

from kiel_groups.config import BROKER_V1
from kiel_groups.group.znodes.contents import MemberInfo, Snapshot
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import RoundSettings, RoundState
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.views.group_view import GroupView, MemberView, PartitionView


def view_group(
    group: str,
    znodes: Snapshot,
    log_ends: Mapping[TopicPartition, int] | None = None,
    earlier: GroupView | None = None,
) -> GroupView:
    """
    Return the view of a group of consumers or programs from its znodes.

    Args:
        group: The name of the group.
        znodes: The znodes of the group and of its topics.
        log_ends: The known log ends of partitions. Each of these partitions is in the view.
        earlier: An earlier view, with the owners, offsets and topics of consumers. ``znodes`` then lacks these.
    """
    reading = GroupReading(GroupLayout(group), znodes)
    protocol_type = reading.program_type()
    if protocol_type is not None:
        return _view_of_programs(group, protocol_type, reading, log_ends or {})
    candidates, members = reading.candidates(), [info for _, info in reading.registered()]
    leader, assignments = candidates[0] if candidates else None, reading.assignments()
    # An assignment may name an earlier member of the slot.
    stored = [(info.member_id, assignments.get(info.slot)) for info in members]
    targets = {name: found.partitions for name, found in stored if found is not None and found.member_id == name}
    settings = reading.settings()
    in_kafka = settings is not None and settings.store == BROKER_V1
    partitions: tuple[PartitionView, ...] = ()
    if earlier is None:
        partitions = _partitions(
            reading, members, targets, log_ends or {}, in_kafka=in_kafka, has_any_store=settings is None
        )
    foreign_members, further = reading.foreign_members(), set[TopicPartition]()
    if settings is None:
        topics = (*reading.consumed_topics(), *(topic for member in foreign_members for topic in member.topics))
        further = reading.partitions_of(topics) - {each.topic_partition for each in partitions}
    owned: defaultdict[MemberId | None, list[PartitionView]] = defaultdict(list)
    for partition in partitions:
        owned[partition.owner].append(partition)
    dynamic_config, refused = reading.dynamic_config()
    view = GroupView(
        group=group,
        members=tuple(
            _member(info, tuple(owned[info.member_id]), targets.get(info.member_id), leader) for info in members
        ),
        partitions=partitions,
        group_state=reading.group_state(),
        leader=leader,
        settings=settings,
        candidates=candidates,
        foreign_members=foreign_members,
        missing_topics=reading.missing_topics({topic for info in members for topic in info.subscription}),
        gone_topics=reading.gone_topics(),
        assigned_twice=_assigned_twice(targets.values()),
        away={slot: each for slot, each in assignments.items() if each and each.away_since_ms is not None},
        dynamic_config=dynamic_config,
        refused=refused,
        history=reading.history(),
        weights=reading.weights(),
        was_joined=reading.was_joined(),
        unreadable=reading.unreadable() if earlier is None else (),
        closed=reading.closed,
        further=tuple(sorted(further)),
    )
    return view if earlier is None else view.with_partitions_of(earlier)


def _member(
    info: MemberInfo,
    owned: tuple[PartitionView, ...],
    target: frozenset[TopicPartition] | None,
    leader: MemberId | None,
) -> MemberView:
    return MemberView(
        member_id=info.member_id,
        client=info.client,
        host=info.host,
        subscription=info.subscription,
        pattern=info.pattern,
        owned=owned,
        target=target,
        leads=info.member_id == leader,
        pid=info.pid,
        started_at_ms=info.started_at_ms,
        session_timeout_ms=info.session_timeout_ms,
        instance_id=info.instance_id,
        settings=dict(info.settings)
        | ({"capacity": info.capacity} if info.capacity != 1 else {})
        | ({"rack": info.rack} if info.rack is not None else {}),
    )


def _assigned_twice(assigned: Iterable[frozenset[TopicPartition]]) -> tuple[TopicPartition, ...]:
    counts = Counter(chain.from_iterable(assigned))
    return tuple(sorted(partition for partition, count in counts.items() if count > 1))


def _view_of_programs(
    group: str, protocol_type: str, reading: GroupReading, log_ends: Mapping[TopicPartition, int]
) -> GroupView:
    """
    Return the view of a group of programs.

    The view includes offsets and members that other clients have in a group of the same name.
    """
    candidates = reading.candidates()
    leader = candidates[0] if candidates else None
    layout, members = GroupLayout(group), reading.programs()
    settings = reading.parsed(RoundSettings.parse, layout.config)
    if settings is not None:
        protocol_type = settings.protocol_type
    elif members:
        protocol_type = members[0].offer.protocol_type
    return GroupView(
        group=group,
        members=tuple(
            MemberView(
                member_id=member.member_id,
                client=member.client,
                host=member.host,
                subscription=None,
                leads=member.member_id == leader,
                pid=member.pid,
                started_at_ms=member.started_at_ms,
                session_timeout_ms=member.session_timeout_ms,
                joined=member.joined,
                protocols=tuple(each.name for each in member.offer.protocols),
            )
            for member in sorted(members, key=lambda each: (each.started_at_ms, each.member_id))
        ),
        partitions=_partitions(reading, [], {}, log_ends, in_kafka=False, has_any_store=False),
        protocol_type=protocol_type,
        is_of_consumers=False,
        unreadable=reading.unreadable(),
        leader=leader,
        candidates=candidates,
        foreign_members=reading.foreign_members(),
        closed=reading.closed,
        round=reading.parsed(RoundState.parse, layout.group_state),
        workers=reading.workers(),
        worker_urls=reading.worker_urls(),
        statuses=tuple(reading.statuses()),
    )


def _partitions(
    reading: GroupReading,
    members: list[MemberInfo],
    targets: Mapping[MemberId, frozenset[TopicPartition]],
    log_ends: Mapping[TopicPartition, int],
    *,
    in_kafka: bool,
    has_any_store: bool,
) -> tuple[PartitionView, ...]:
    """
    Return the views of all partitions that are subscribed to, assigned or owned, or have an offset or a known log end.

    The partitions of topics that the group has begun to read are also included, because they may have offsets in Kafka.
    If the offsets are ``in_kafka``, offsets in ZooKeeper are ignored. If the group ``has_any_store``, offsets are
    marked as offsets in ZooKeeper.
    """
    owners, committed = reading.owners(), {} if in_kafka else reading.offsets()
    target = {partition: member_id for member_id, assigned in targets.items() for partition in assigned}
    subscribed = {topic for info in members for topic in info.subscription} | set(reading.begun_topics())
    found = []
    for partition in sorted({*owners, *committed, *target, *reading.partitions_of(subscribed), *log_ends}):
        claim, commit = owners.get(partition), committed.get(partition)
        offset = commit.offset if commit else None
        found.append(
            PartitionView(
                partition,
                claim.member_id if claim else None,
                offset,
                log_ends.get(partition),
                target.get(partition),
                claim.znode.created_ms if claim else None,
                commit.znode.modified_ms if commit else None,
                opened=claim is not None and commit is not None and commit.znode.mzxid >= claim.znode.czxid,
                claim=claim.znode.czxid if claim else None,
                is_forged=claim is not None and reading.is_forged(claim),
                stores={"zookeeper": offset} if has_any_store and offset is not None else {},
                exists=reading.exists(partition),
            )
        )
    return tuple(found)
