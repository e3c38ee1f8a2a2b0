"""Rules that find the problems of a group; each finding names its partitions, its members and a remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.wording import counted, some

__all__ = [
    "Finding",
    "beyond_end",
    "missing_topics",
    "partition_names",
    "short_name",
    "unconsumed",
    "SETTLING_MS",
    "UNOPENED_MS",
    "check_group",
    "STUCK_MS",
    "WATCHED_MS",
    "ProgressTracker",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One problem of a group.

    ``kind`` is one word for programs; ``text`` and ``remedy`` are for people. ``passing`` means that the problem should
    disappear without an operator. ``partitions`` and ``members`` list all that are affected; the text names only some.
    """

    kind: str
    text: str
    remedy: str = ""
    passing: bool = False
    partitions: tuple[TopicPartition, ...] = ()
    members: tuple[MemberId, ...] = ()


def unconsumed(partitions: Iterable[PartitionView]) -> Iterator[Finding]:
    """Yield a finding if partitions of a group without members have a lag."""
    behind = [each for each in partitions if each.lag]
    if behind:
        yield Finding(
            "unconsumed",
            f"the group has no members; its lag is {sum(each.lag or 0 for each in behind):,}, in "
            f"{counted(behind, 'partition', 'partitions')}",
            "start a member; if a Spark job commits these offsets, start that job instead: a member would take over",
            partitions=partition_names(behind),
        )


def beyond_end(partitions: Iterable[PartitionView]) -> Iterator[Finding]:
    """Yield a finding if committed offsets are beyond the ends of their logs."""
    beyond = [
        each
        for each in partitions
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


def missing_topics(topics: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if there are subscribed topics that do not exist."""
    if topics:
        what = counted(topics, "subscribed topic does", "subscribed topics do")
        yield Finding(
            "missing-topic",
            f"{what} not exist: {some(topics)}",
            "create the topic, or correct its name in the subscription; it is consumed as soon as it exists",
        )


def short_name(member_id: MemberId) -> str:
    """Return the part of a member id after its last dash, which is enough to identify the member."""
    return member_id.rpartition("-")[2] or member_id


def partition_names(partitions: Iterable[PartitionView]) -> tuple[TopicPartition, ...]:
    """Return the names of partitions, in the same order."""
    return tuple(each.topic_partition for each in partitions)


#: For this long after a plan, partitions without their owner are part of a normal rebalance.
SETTLING_MS = 10_000
#: A claim that is still unopened after this time is a problem. This is the default of ``drain_alarm_ms``, after which
#: the owner logs an error.
UNOPENED_MS = 30_000


def check_group(view: GroupView, now_ms: int) -> tuple[Finding, ...]:
    """
    Return the problems of a group. Problems that need an operator come first.

    Args:
        view: The group.
        now_ms: Epoch milliseconds; used for durations, and to distinguish a rebalance from a lasting problem.
    """
    # A znode that seems to be missing may be one that an ACL hides, so rules about missing znodes do not apply.
    rules = _RULES_OF_PROGRAMS if view.programs is not None else _RULES_WHEN_CLOSED if view.closed else _RULES
    findings = [finding for rule in rules for finding in rule(view, now_ms)]
    return tuple(sorted(findings, key=lambda finding: finding.passing))


def _brokerless(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.brokers == 0:
        yield Finding(
            "brokerless",
            "no broker is registered in ZooKeeper: nothing can be consumed, and the lag of the group is unknown",
            "start the brokers; if they are running, check that they register under this chroot",
        )


def _unconsumed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    # A group that never had a member belongs to a program that only commits offsets, such as an archive between two of
    # its runs; a member that joins would take over its partitions.
    if view.was_joined and not view.members and not view.foreign_members:
        yield from unconsumed(view.partitions)


def _refused(view: GroupView, now_ms: int) -> Iterator[Finding]:
    remedy = "correct this znode; until then the leader keeps the previous config and the options it was started with"
    if view.refused:
        yield Finding("refused", f"config is refused: {view.refused}", remedy)
    for text in view.dynamic_config.unknown_field_hints() if view.dynamic_config is not None else ():
        yield Finding("misspelt", f"config: {text}", "correct this znode; the leader ignores the field")


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
    for text in view.unreadable:
        yield Finding("unreadable", text, "correct this znode; members cannot read it either")


def _closed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.closed:
        yield Finding(
            "closed",
            f"an ACL denies reading {counted(view.closed, 'znode', 'znodes')}: {some(view.closed)}",
            "have their ACLs allow everyone to read (zkCli: getAcl PATH, then setAcl PATH …,world:anyone:r)",
        )


def _refused_programs(view: GroupView, now_ms: int) -> Iterator[Finding]:
    newest = view.programs.round if view.programs is not None else None
    for member_id, why in sorted(newest.refused.items()) if newest is not None else ():
        yield Finding(
            "refused",
            f"the leader refuses {short_name(member_id)}: {why}",
            "give all members a protocol in common",
            members=(member_id,),
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
        partitions = tuple(sorted(assignment.partitions))
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
            f"{what} no owner: {some(partition_names(unowned))}, to be claimed by {some(map(short_name, members))}",
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
            f"look at the log of the owner; 'kiel-groups topics describe {topics[0]}' shows the partitions without a"
            " leader: start their brokers",
            partitions=partition_names(unopened),
            members=tuple(sorted({each.owner for each in unopened if each.owner is not None})),
        )


def _wrongly_owned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    owned: dict[MemberId, list[PartitionView]] = defaultdict(list)
    for each in view.partitions:
        if each.owner in view.member_ids and each.target != each.owner and each.owner is not None:
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
    foreign = {member.name for member in view.foreign_members}
    known = view.member_ids | foreign
    owned: dict[MemberId, list[PartitionView]] = defaultdict(list)
    for each in view.partitions:
        if each.owner is not None and each.owner not in known:
            owned[each.owner].append(each)
    for owner, partitions in sorted(owned.items()):
        what = counted(partitions, "partition is", "partitions are")
        yield Finding(
            "orphans",
            f"{what} owned by {owner}, which is no longer a member: {some(partition_names(partitions))}",
            f"its session may still be open: end that process, or run 'kiel-groups release {view.group} {owner}'",
            partitions=partition_names(partitions),
            members=(owner,),
        )


def _beyond(view: GroupView, now_ms: int) -> Iterator[Finding]:
    yield from beyond_end(view.partitions)


def _missing_topics(view: GroupView, now_ms: int) -> Iterator[Finding]:
    yield from missing_topics(view.missing_topics)


_Rule: TypeAlias = Callable[[GroupView, int], Iterator[Finding]]

_RULES: tuple[_Rule, ...] = (
    _brokerless,
    _unconsumed,
    _foreign,
    _unreadable,
    _refused,
    _leaderless,
    _orphans,
    _wrongly_owned,
    _unowned,
    _unopened,
    _unassigned,
    _away,
    _unplanned,
    _fallback,
    _beyond,
    _missing_topics,
)

#: Programs own no partitions.
_RULES_OF_PROGRAMS: tuple[_Rule, ...] = (_closed, _unreadable, _refused_programs)

_RULES_WHEN_CLOSED: tuple[_Rule, ...] = (_brokerless, _closed, _unreadable)


def _is_young(view: GroupView, now_ms: int) -> bool:
    """Return whether the plan is so new that members may still be claiming and releasing."""
    return view.group_state is None or now_ms - view.group_state.created_at_ms < SETTLING_MS


# The progress of partitions between two views of a group.
#
# One view cannot distinguish a stuck partition from an idle one whose next record has just arrived; two views can.


#: The default of ``max_poll_interval_ms``: the time after which the watchdog ends the session of a member that hangs.
STUCK_MS = 300_000

#: How long a partition may lag between two views without a commit: three times the default commit interval.
WATCHED_MS = 15_000


class ProgressTracker:
    """
    Tracks over successive views of one group which partitions lag, and since when they have had no commit.

    A lag in one view proves nothing, because the record may have just arrived. If an earlier view had a lag and the
    same commit, the record has been waiting since then.
    """

    def __init__(self) -> None:
        #: Each lagging partition as last viewed, and the time of the first view with that commit and a lag.
        self._waiting: dict[TopicPartition, tuple[PartitionView, int]] = {}

    def take(self, view: GroupView, now_ms: int) -> tuple[Finding, ...]:
        """
        Add a view. Return a finding if the views so far show stuck partitions.

        Args:
            view: The group as it is now.
            now_ms: Epoch milliseconds.
        """
        waiting = {}
        for each in view.partitions:
            if each.lag and each.owner in view.member_ids:
                before, since_ms = self._waiting.get(each.topic_partition, (each, now_ms))
                is_unmoved = before.owner == each.owner and before.committed_ms == each.committed_ms
                waiting[each.topic_partition] = (each, since_ms if is_unmoved else now_ms)
        self._waiting = waiting
        stuck = [each for each, since_ms in waiting.values() if now_ms - since_ms >= WATCHED_MS and _old(each, now_ms)]
        return (_finding(stuck, now_ms),) if stuck else ()

    def suspects(self, now_ms: int) -> bool:
        """Return whether another view, ``WATCHED_MS`` after the last view, may show a stuck partition."""
        return any(_old(each, now_ms) for each, _ in self._waiting.values())


def _old(partition: PartitionView, now_ms: int) -> bool:
    return now_ms - _last_ms(partition) >= STUCK_MS


def _last_ms(partition: PartitionView) -> int:
    """Return the time of the partition's last commit or claim."""
    return max(partition.committed_ms or 0, partition.claimed_ms or 0)


def _finding(stuck: list[PartitionView], now_ms: int) -> Finding:
    names = tuple(each.topic_partition for each in stuck)
    members = tuple(sorted({each.owner for each in stuck if each.owner is not None}))
    minutes = min(now_ms - _last_ms(each) for each in stuck) // 60_000
    lag = sum(each.lag or 0 for each in stuck)
    return Finding(
        "stuck",
        f"{counted(stuck, 'partition makes', 'partitions make')} no progress: lag {lag:,}, and no commit for {minutes}"
        f" min: {some(names)}, owned by {some(map(short_name, members))}",
        "look at the log of that member: its application hangs, or does not commit; 'kiel-groups release' takes its"
        " partitions from it",
        partitions=names,
        members=members,
    )
