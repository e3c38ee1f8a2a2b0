"""Find the problems of a group by rules. Each finding has its partitions, its members and, mostly, a remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.group_view import GroupView, MemberView, PartitionView, Sight
from kiel_groups.wording import counted, own_command, some


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One problem of a group or of its cluster.

    ``kind`` is one word for programs. ``text`` and ``remedy`` are for people. ``passing`` means that the problem should
    disappear without an operator. ``partitions`` and ``members`` list all partitions and members that the problem
    affects. The text names only some of them.
    """

    kind: str
    text: str
    remedy: str = ""
    passing: bool = False
    partitions: tuple[TopicPartition, ...] = ()
    members: tuple[MemberId, ...] = ()


def short_name(member_id: MemberId) -> str:
    """Return the part of a member id after its last dash. The part is enough to identify the member."""
    return member_id.rpartition("-")[2] or member_id


def partition_names(partitions: Iterable[PartitionView]) -> tuple[TopicPartition, ...]:
    """Return the topic and the number of each partition, in the same order."""
    return tuple(each.topic_partition for each in partitions)


#: For this long after a plan, partitions without their owner are part of a normal rebalance.
SETTLING_MS = 10_000
#: A claim that is still unopened after this time is a problem. This is the default of ``drain_alarm_ms``, after which
#: the owner logs an error.
UNOPENED_MS = 30_000


def check_group(view: GroupView, now_ms: int) -> tuple[Finding, ...]:
    """
    Return the problems that one view of a group shows. Problems that need an operator come first.

    ``ProgressTracker`` finds the problems that only several views can show.

    Args:
        view: The group.
        now_ms: The present time in epoch milliseconds. The age of a rebalance distinguishes it from a lasting problem.
    """
    findings = [finding for rule, needs in RULES if view.sight in needs for finding in rule(view, now_ms)]
    return tuple(sorted(findings, key=lambda finding: finding.passing))


def _brokerless(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.brokers == 0:
        yield Finding(
            "brokerless",
            "no broker is registered in ZooKeeper: nothing can be consumed, and the lag of the group is unknown",
            "start the brokers; if they are running, check that they register under this chroot",
        )


def check_unconsumed(
    view: GroupView,
    now_ms: int,
    state: str = "empty",
    why: str = "the group has no members",
    remedy: str = "start a member; if a Spark job commits these offsets, start that job: a member would take over",
) -> Iterator[Finding]:
    """Yield a finding if the group is in this ``state`` and has a lag: no member consumes the records."""
    # A group that never had a member belongs to a program that only commits offsets, such as an archive between two of
    # its runs; a member that joins would take over its partitions.
    behind = [each for each in view.partitions if each.lag]
    if view.state == state and behind:
        text = f"{why}; its lag is {sum(each.lag or 0 for each in behind):,}, in {counted(behind, 'partition')}"
        yield Finding("unconsumed", text, remedy, partitions=partition_names(behind))


def _refused(view: GroupView, now_ms: int) -> Iterator[Finding]:
    remedy = f"{own_command('config', 'unset', view.group, 'FIELD')} removes a field"
    if view.refused:
        until = "until then, the leader keeps the previous config, and the options it was started with"
        yield Finding("refused", f"config is refused: {view.refused}", f"{remedy}; {until}")
    for text in view.dynamic_config.unknown_field_hints() if view.dynamic_config is not None else ():
        yield Finding("misspelt", f"config: {text}", f"{remedy}; the leader ignores this one")


def _foreign(view: GroupView, now_ms: int) -> Iterator[Finding]:
    # Foreign members alone are a healthy group of another client.
    if view.foreign_members and (view.members or view.group_state is not None):
        names = tuple(member.name for member in view.foreign_members)
        folders = " and ".join(sorted({member.path.rpartition("/")[0] for member in view.foreign_members}))
        what = counted(names, "live consumer does", "live consumers do")
        yield Finding(
            "foreign",
            f"{what} not take part in the group's protocol: {some(names)} (under {folders})",
            "they read the same partitions as the members; stop them, or give them another group",
            members=names,
        )


def _unreadable(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for text, remedy in view.unreadable:
        yield Finding("unreadable", text, remedy)


def _closed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.closed:
        yield Finding(
            "closed",
            f"an ACL denies reading {counted(view.closed, 'znode', 'znodes')}: {some(view.closed)}",
            "give --security with credentials that may read them, or have their ACLs allow everyone to read (zkCli:"
            " getAcl PATH, then setAcl PATH …,world:anyone:r)",
        )


def _refused_programs(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for member_id, why in sorted(view.round.refused.items()) if view.round is not None else ():
        yield Finding(
            "refused",
            f"the leader refuses {short_name(member_id)}: {why}",
            "give all members a protocol in common",
            members=(member_id,),
        )


def _failed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if not view.failed_work:
        return
    connector, task, cause = view.failed_work[0]
    others = [name if number is None else f"{name}-{number}" for name, number, _ in view.failed_work[1:]]
    what = f"connector {connector}" if task is None else f"task {connector}-{task}"
    address = ("--url", view.worker_urls[0]) if view.worker_urls else ()
    restart = own_command("connectors", "restart", connector, "--with-tasks", "--only-failed", *address)
    yield Finding(
        "failed",
        f"{what:.200} has failed: {cause:.300}" + (f"; so have {some(others):.300}" if others else ""),
        f"{restart} starts it again when the cause is removed; {own_command('workers', 'describe', view.group)} shows"
        " all causes",
    )


def _leaderless(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.members and not view.candidates:
        yield Finding(
            "leaderless",
            "no member is a candidate in the election: no plan is made",
            "members become candidates again within a minute; if not, look for refused writes in their logs",
        )


def _unplanned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.members and view.group_state is None:
        yield Finding("unplanned", "no plan has been published yet", "the leader's log says why", passing=True)
    elif view.group_state is not None and view.group_state.state == "publishing":
        yield Finding(
            "publishing",
            f"generation {view.group_state.generation} is published only in part",
            "a live leader completes it; look at the log of the leader",
            passing=_is_young(view, now_ms),
        )


def _fallback(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.group_state is not None and view.group_state.fallback:
        yield Finding("fallback", view.group_state.fallback, "correct the allocator of the leader, then restart it")


def _patterns(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for pattern, match in sorted({} if view.group_state is None else view.group_state.patterns.items()):
        if match.problem and (members := tuple(each.member_id for each in view.members if each.pattern == pattern)):
            text = f"pattern {pattern!r} of {counted(members, 'member')}: {match.problem}"
            yield Finding("pattern", text, "subscribe to another pattern, or to topics", members=members)


def _unassigned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    unassigned = view.unassigned
    if unassigned and view.group_state is not None:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in view.group_state.unassigned.items())
        what = counted(unassigned, "partition is", "partitions are")
        yield Finding(
            "unassigned",
            f"{what} assigned to no member: {some(partition_names(unassigned))}{f' ({reasons})' if reasons else ''}",
            "" if reasons else "the leader plans again when it sees them; its log says what delays it",
            passing=not reasons and _is_young(view, now_ms),
            partitions=partition_names(unassigned),
        )


def _away(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for slot, assignment in sorted(view.away.items()):
        seconds = max(0, now_ms - (assignment.away_since_ms or now_ms)) // 1000
        # An instance for which nothing is reserved delays nothing.
        if partitions := tuple(sorted(assignment.partitions)):
            what = counted(partitions, "partition is", "partitions are")
            yield Finding(
                "away",
                f"{what} reserved for instance {slot}, which has been away for {seconds} s: {some(partitions)}",
                passing=True,
                partitions=partitions,
            )


def _unowned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    unowned = [each for each in view.partitions if each.owner is None and each.target is not None]
    if unowned:
        what = counted(unowned, "partition has", "partitions have")
        members = tuple(sorted({each.target for each in unowned if each.target is not None}))
        yield Finding(
            "unowned",
            f"{what} no owner: {some(partition_names(unowned))}, to be claimed by {short_names(members)}",
            "look at the log of that member; a healthy member claims within a second",
            _is_young(view, now_ms),
            partition_names(unowned),
            members,
        )


def _unopened(view: GroupView, now_ms: int) -> Iterator[Finding]:
    unopened = [
        each
        for each in view.partitions
        if each.owner in view.member_ids and not each.opened and now_ms - (each.claimed_ms or now_ms) >= UNOPENED_MS
    ]
    if unopened:
        what = counted(unopened, "partition has", "partitions have")
        seconds = max(now_ms - (each.claimed_ms or now_ms) for each in unopened) // 1000
        topics = sorted({each.topic_partition.topic for each in unopened})
        yield Finding(
            "unopened",
            f"{what} been claimed for up to {seconds:,} s, and no offset has been stored since: "
            f"{some(partition_names(unopened))}; the owner cannot find out where to start, or an operator deleted the"
            " offset",
            f"look at the log of the owner; {own_command('topics', 'describe', topics[0])} shows the partitions without"
            " a leader: start their brokers",
            partitions=partition_names(unopened),
            members=owners_of(unopened),
        )


def _wrongly_owned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    owned: dict[MemberId, list[PartitionView]] = defaultdict(list)
    twice = set(view.assigned_twice)
    for each in view.partitions:
        is_wrong = each.owner in view.member_ids and each.target != each.owner
        # Other findings have the cause, and its remedy; to release the member would not help.
        is_wrong = is_wrong and not each.is_forged and each.topic_partition not in twice
        if is_wrong and each.owner is not None:
            owned[each.owner].append(each)
    for owner, partitions in sorted(owned.items()):
        what = counted(partitions, "partition is", "partitions are")
        targets = sorted({short_name(each.target) for each in partitions if each.target is not None})
        yield Finding(
            "wrongly-owned",
            f"{what} owned by {short_name(owner)}, but assigned to {some(targets) or 'no member'}: "
            f"{some(partition_names(partitions))}",
            f"the owner finishes its record in flight first, and its log says how long that has taken; 'kiel-groups"
            f" release {view.group} {short_name(owner)}' takes the partitions from it",
            _is_young(view, now_ms),
            partition_names(partitions),
            (owner,),
        )


def _orphans(view: GroupView, now_ms: int) -> Iterator[Finding]:
    owned: dict[MemberId, list[PartitionView]] = defaultdict(list)
    for each in view.partitions:
        if each.owner is not None and each.owner not in view.member_names:
            owned[each.owner].append(each)
    for owner, partitions in sorted(owned.items()):
        what = counted(partitions, "partition is", "partitions are")
        yield Finding(
            "orphans",
            f"{what} owned by {owner}, which is no longer a member: {some(partition_names(partitions))}",
            f"its session may still be open: end that process, or run {own_command('release', view.group, owner)}",
            partitions=partition_names(partitions),
            members=(owner,),
        )


def _forged(view: GroupView, now_ms: int) -> Iterator[Finding]:
    forged = [each for each in view.partitions if each.is_forged]
    if forged:
        what = counted(forged, "owner znode names a member", "owner znodes name members")
        yield Finding(
            "forged",
            f"{what} whose session did not create it: {some(partition_names(forged))}, in the name of"
            f" {short_names(owners_of(forged))}: written by hand, so another member may consume the partition, too",
            f"delete it below {GroupLayout(view.group).owners}; the assigned member claims the partition within a"
            " minute",
            partitions=partition_names(forged),
            members=owners_of(forged),
        )


def _orphan_offsets(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if not view.members or any(member.subscription is None for member in view.members):
        return
    orphans = [
        each
        for each in view.partitions
        if each.committed is not None
        and each.owner is None
        and each.exists
        and each.topic_partition.topic not in view.subscribed
    ]
    if orphans:
        topics = sorted({each.topic_partition.topic for each in orphans})
        yield Finding(
            "orphan-offsets",
            f"{counted(orphans, 'offset is of a topic', 'offsets are of topics')} that no member reads:"
            f" {some(topics)}; the lag of the group includes theirs",
            f"{own_command('offsets', 'delete', view.group, '--topic', topics[0])} deletes them; if members should read"
            " the topic, subscribe to it",
            passing=view.coordinator is None and _is_young(view, now_ms),
            partitions=partition_names(orphans),
        )


def _gone_offsets(view: GroupView, now_ms: int) -> Iterator[Finding]:
    gone = partition_names(each for each in view.partitions if not each.exists and each.committed_ms is not None)
    # A topic that is subscribed to may be created again; ``missing-topic`` has it.
    topics = [topic for topic in view.gone_topics if topic not in view.subscribed and _is_legal(topic)]
    names = [*topics, *(str(each) for each in gone if each.topic not in view.gone_topics)]
    if not names:
        return
    what = f"{counted(names, 'topic or partition that does', 'topics or partitions that do')} not exist: {some(names)}"
    has_others = any(
        each.exists and (each.committed_ms is not None or view.offsets_in_kafka) for each in view.partitions
    )
    if has_others or view.size or view.foreign_members:
        named = [word for name in names[:10] for word in ("--topic", name)]
        remedy = f"{own_command('offsets', 'delete', view.group, *named)} deletes them"
        yield Finding("gone-offsets", f"the group has offsets in {what}", remedy, partitions=gone)
    else:
        yield Finding(
            "dead-group",
            f"the group has no members, and offsets only in {what}",
            f"{own_command('groups', 'delete', view.group)} deletes it, if nothing commits these offsets any more",
            partitions=gone,
        )


def _is_legal(topic: str) -> bool:
    """Return whether Kafka permits the name of a topic. The client pykafka also writes names that Kafka refuses."""
    try:
        check_name(topic, "topic")
    except ConfigError:
        return False
    return True


def _beyond(view: GroupView, now_ms: int) -> Iterator[Finding]:
    beyond = [
        each
        for each in view.partitions
        if each.committed is not None and each.log_end is not None and each.committed > each.log_end
    ]
    if beyond:
        what = counted(beyond, "committed offset is", "committed offsets are")
        yield Finding(
            "beyond-end",
            f"{what} beyond the end of the log: {some(partition_names(beyond))}",
            "the topic was created again, or a broker lost records; set the offset, or let the reset policy act",
            partitions=partition_names(beyond),
        )


def _missing_topics(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.missing_topics:
        what = counted(view.missing_topics, "subscribed topic does", "subscribed topics do")
        yield Finding(
            "missing-topic",
            f"{what} not exist: {some(view.missing_topics)}",
            "create the topic, or correct its name in the subscription; it is consumed as soon as it exists",
        )


def _assigned_twice(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.assigned_twice:
        what = counted(view.assigned_twice, "partition is", "partitions are")
        twice = set(view.assigned_twice)
        owners = [
            member.member_id
            for member in view.members
            if not twice.isdisjoint(member.target or (each.topic_partition for each in member.owned))
        ]
        by, remedy = (
            (
                "by hand",
                "the next plan of the leader replaces the assignments;"
                f" {own_command('rebalance', view.group)} has it made now",
            )
            if view.coordinator is None
            else (
                f"by the strategy {_strategy(view)!r}",
                "the strategy of the group's leader is wrong: its records are delivered twice; configure another one",
            )
        )
        yield Finding(
            "assigned-twice",
            f"{what} assigned to several members: {some(view.assigned_twice)}, {by}",
            remedy,
            partitions=view.assigned_twice,
            members=tuple(owners),
        )


def _unassigned_by_strategy(view: GroupView, now_ms: int) -> Iterator[Finding]:
    unassigned = view.unassigned if view.state == "stable" and not view.unreadable else ()
    if unassigned:
        what = counted(unassigned, "partition is", "partitions are")
        yield Finding(
            "unassigned",
            f"{what} assigned to no member: {some(partition_names(unassigned))}",
            "the leader assigns new partitions when it next reads metadata (metadata.max.age.ms, 5 min by default); if"
            " that time is over, look at its log",
            partitions=partition_names(unassigned),
        )


def _idle(view: GroupView, now_ms: int) -> Iterator[Finding]:
    idle = [member for member in view.members if _could_own(member, view)]
    if idle:
        what = counted(idle, "member has", "members have")
        yield Finding(
            "idle",
            f"{what} no partition, although others have several of the same topics: "
            f"{some(short_name(member.member_id) for member in idle)}",
            "the strategy 'range' divides each topic apart; choose another, such as 'roundrobin', for all members"
            if _strategy(view) == "range"
            else f"the strategy {_strategy(view)!r} divides them so; choose another for all members",
            members=tuple(member.member_id for member in idle),
        )


def _could_own(member: MemberView, view: GroupView) -> bool:
    """
    Return whether a member has no partition although another member owns several partitions of the first member's
    topics.
    """
    topics = frozenset(() if member.owned else member.subscription or ())
    return any(sum(each.topic_partition.topic in topics for each in other.owned) > 1 for other in view.members)


def _strategy(view: GroupView) -> str:
    return view.coordinator.strategy if view.coordinator is not None else ""


_Rule: TypeAlias = Callable[[GroupView, int], Iterator[Finding]]

#: The rules, each with the kinds of views that it applies to.
RULES: tuple[tuple[_Rule, Sight], ...] = (
    (_brokerless, Sight.ZNODES | Sight.SOME_ZNODES),
    (check_unconsumed, Sight.ZNODES | Sight.ANSWERS),
    (_foreign, Sight.ZNODES),
    (_closed, Sight.SOME_ZNODES | Sight.PROGRAMS),
    (_unreadable, Sight.ALL),
    (_refused, Sight.ZNODES),
    (_refused_programs, Sight.PROGRAMS),
    (_failed, Sight.PROGRAMS),
    (_leaderless, Sight.ZNODES),
    (_orphans, Sight.ZNODES),
    (_forged, Sight.ZNODES),
    (_wrongly_owned, Sight.ZNODES),
    (_unowned, Sight.ZNODES),
    (_unopened, Sight.ZNODES),
    (_unassigned, Sight.ZNODES),
    (_away, Sight.ZNODES),
    (_unplanned, Sight.ZNODES),
    (_fallback, Sight.ZNODES),
    (_patterns, Sight.ZNODES),
    (_assigned_twice, Sight.ZNODES | Sight.ANSWERS),
    (_unassigned_by_strategy, Sight.ANSWERS),
    (_idle, Sight.ANSWERS),
    (_beyond, Sight.ZNODES | Sight.ANSWERS),
    (_orphan_offsets, Sight.ZNODES | Sight.ANSWERS),
    (_gone_offsets, Sight.ZNODES),
    (_missing_topics, Sight.ZNODES | Sight.ANSWERS),
)


def _is_young(view: GroupView, now_ms: int) -> bool:
    """
    Return whether members may still be claiming and releasing: the plan is less than 10 s old, or there is no plan.
    """
    return view.group_state is None or now_ms - view.group_state.created_at_ms < SETTLING_MS


def short_names(members: Iterable[MemberId]) -> str:
    """Return a text with the short names of some members, and the number of the others."""
    return some(map(short_name, members))


def owners_of(partitions: Iterable[PartitionView]) -> tuple[MemberId, ...]:
    """Return the owners of partitions, in alphabetical order."""
    return tuple(sorted({each.owner for each in partitions if each.owner is not None}))
