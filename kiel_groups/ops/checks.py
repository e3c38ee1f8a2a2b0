"""What is wrong with a group: rules over its view, each a finding that names what it is about and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.group_view import GroupView, PartitionView
from kiel_groups.wording import counted, some

__all__ = ["SETTLING_MS", "UNOPENED_MS", "Finding", "check_group"]

#: For so long after a plan, partitions without their owner are what a rebalance looks like.
SETTLING_MS = 10_000
#: A claim that is not open for so long is no start that takes its time: as long as ``drain_alarm_ms``, after which the
#: owner's log says so, too.
UNOPENED_MS = 30_000


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something wrong.

    ``kind`` is one word for programs, ``text`` and ``remedy`` are sentences for people. ``passing`` means that it is
    expected to pass by itself within seconds. ``partitions`` and ``members`` are all that it is about; the text names
    some of them.
    """

    kind: str
    text: str
    remedy: str = ""
    passing: bool = False
    partitions: tuple[TopicPartition, ...] = ()
    members: tuple[MemberId, ...] = ()


def check_group(view: GroupView, now_ms: int) -> tuple[Finding, ...]:
    """
    What is wrong with a group, the gravest first.

    Args:
        view: The group.
        now_ms: Epoch milliseconds; only used to tell a rebalance from a partition that stays as it is.
    """
    # What is missing may stand where this reader is kept out: no rule about that can tell.
    rules = _RULES_OF_WHAT_IS_SEEN if view.closed else _RULES
    findings = [finding for rule in rules for finding in rule(view, now_ms)]
    return tuple(sorted(findings, key=lambda finding: finding.passing))


def _brokerless(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.brokers == 0:
        yield Finding(
            "brokerless",
            "no broker is registered: nothing can be consumed, and how far behind the group is nobody knows",
            "start the brokers; where they run, look whether they register under this chroot",
        )


def _unconsumed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    behind = [each for each in view.partitions if each.lag]
    # A group that no member has ever joined belongs to a program that only commits offsets, such as an archive between
    # two of its runs: a member would take its partitions over.
    if behind and view.was_joined and not view.members and not view.foreign_members:
        yield Finding(
            "unconsumed",
            f"no member consumes; {sum(each.lag or 0 for each in behind):,} behind, in "
            f"{counted(behind, 'partition', 'partitions')}",
            "if a Spark job commits these offsets, start it: a member would take over; otherwise start a member",
            partitions=_names(behind),
        )


def _refused(view: GroupView, now_ms: int) -> Iterator[Finding]:
    remedy = "correct that znode; the leader follows what stood there before, and what it was started with"
    if view.refused:
        yield Finding("refused", f"config is refused: {view.refused}", remedy)
    for text in view.tuning.misspelt() if view.tuning is not None else ():
        yield Finding("misspelt", f"config: {text}", "correct that znode; the leader goes on without that field")


def _foreign(view: GroupView, now_ms: int) -> Iterator[Finding]:
    # By themselves they are a group like any other, just not one of ours.
    if view.foreign_members and (view.members or view.group_state is not None):
        names = tuple(foreigner.name for foreigner in view.foreign_members)
        folders = " and ".join(sorted({foreigner.path.rpartition("/")[0] for foreigner in view.foreign_members}))
        what = counted(names, "live consumer does", "live consumers do")
        yield Finding(
            "foreign",
            f"{what} not take part in the group's protocol: {some(names)} (under {folders})",
            "they read the same partitions; stop them, or give them another group",
            members=names,
        )


def _unreadable(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for text in view.unreadable:
        yield Finding("unreadable", text, "correct that znode; what stands in it is not known to the group either")


def _closed(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.closed:
        what = counted(view.closed, "znode keeps", "znodes keep")
        yield Finding(
            "closed",
            f"{what} whoever looks from here out: {some(view.closed)}",
            "ask whoever closed them; the world has to be let read (zkCli: getAcl, setAcl PATH …,world:anyone:r)",
        )


def _leaderless(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.members and not view.candidates:
        yield Finding(
            "leaderless",
            "nobody stands for election: no plan is made",
            "members stand again within a minute; look at their logs for refused writes",
        )


def _unplanned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.members and view.group_state is None:
        yield Finding("unplanned", "no plan has been published yet", "the leader's log says why", passing=True)
    elif view.group_state is not None and view.group_state.state == "publishing":
        yield Finding(
            "publishing",
            f"generation {view.group_state.generation} is not published to its end",
            "a living leader ends it; look at its log",
            passing=_is_young(view, now_ms),
        )


def _fallback(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.group_state is not None and view.group_state.fallback:
        yield Finding("fallback", view.group_state.fallback, "correct the allocator of the leader, then restart that")


def _unassigned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if not view.members or view.group_state is None:
        return
    subscribed = {topic for member in view.members for topic in member.info.subscription}
    kept = {partition for share in view.away.values() for partition in share.partitions}
    left = [
        each
        for each in view.partitions
        if each.target is None and each.topic_partition.topic in subscribed and each.topic_partition not in kept
    ]
    if left:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in view.group_state.unassigned.items())
        what = counted(left, "partition is", "partitions are")
        yield Finding(
            "unassigned",
            f"{what} given to nobody: {some(_names(left))}{f' ({reasons})' if reasons else ''}",
            "" if reasons else "the leader plans anew when it sees them; its log says what keeps it",
            passing=not reasons and _is_young(view, now_ms),
            partitions=_names(left),
        )


def _away(view: GroupView, now_ms: int) -> Iterator[Finding]:
    for slot, share in sorted(view.away.items()):
        seconds = max(0, now_ms - (share.away_since_ms or now_ms)) // 1000
        partitions = tuple(sorted(share.partitions))
        what = counted(partitions, "partition is", "partitions are")
        yield Finding(
            "away",
            f"{what} kept for instance {slot}, which went {seconds} s ago: {some(partitions)}",
            passing=True,
            partitions=partitions,
        )


def _unowned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    left = [each for each in view.partitions if each.owner is None and each.target is not None]
    if left:
        what = counted(left, "partition is", "partitions are")
        members = tuple(sorted({each.target for each in left if each.target is not None}))
        yield Finding(
            "unowned",
            f"{what} owned by nobody: {some(_names(left))}, to be claimed by {some(map(short_name, members))}",
            "look at the log of that member; a healthy one claims within a second",
            _is_young(view, now_ms),
            _names(left),
            members,
        )


def _unopened(view: GroupView, now_ms: int) -> Iterator[Finding]:
    left = [
        each
        for each in view.partitions
        if each.owner in view.member_ids and not each.opened and now_ms - (each.claimed_ms or now_ms) >= UNOPENED_MS
    ]
    if left:
        what = counted(left, "partition is", "partitions are")
        seconds = max(now_ms - (each.claimed_ms or now_ms) for each in left) // 1000
        topics = sorted({each.topic_partition.topic for each in left})
        yield Finding(
            "unopened",
            f"{what} claimed, for up to {seconds:,} s, and without an offset stored since: {some(_names(left))}; their"
            " owners do not know where to start, or somebody deleted the offsets",
            f"look at the logs of their owners; 'kiel-groups topics describe {topics[0]}' shows which partitions have"
            " no leader: start their brokers",
            partitions=_names(left),
            members=tuple(sorted({each.owner for each in left if each.owner is not None})),
        )


def _wrongly_owned(view: GroupView, now_ms: int) -> Iterator[Finding]:
    held: dict[MemberId, list[PartitionView]] = defaultdict(list)
    for each in view.partitions:
        if each.owner in view.member_ids and each.target != each.owner and each.owner is not None:
            held[each.owner].append(each)
    for owner, partitions in sorted(held.items()):
        what = counted(partitions, "partition is", "partitions are")
        targets = sorted({short_name(each.target) for each in partitions if each.target is not None})
        yield Finding(
            "wrongly-owned",
            f"{what} held by {short_name(owner)}, to be given to {some(targets) or 'nobody'}: "
            f"{some(_names(partitions))}",
            f"it finishes the record in hand first, and its log says how long it has been at it; 'kiel-groups release"
            f" {view.group} {short_name(owner)}' takes them from it",
            _is_young(view, now_ms),
            _names(partitions),
            (owner,),
        )


def _orphans(view: GroupView, now_ms: int) -> Iterator[Finding]:
    foreign = {foreigner.name for foreigner in view.foreign_members}
    known = view.member_ids | foreign
    held: dict[MemberId, list[PartitionView]] = defaultdict(list)
    for each in view.partitions:
        if each.owner is not None and each.owner not in known:
            held[each.owner].append(each)
    for owner, partitions in sorted(held.items()):
        what = counted(partitions, "partition is", "partitions are")
        yield Finding(
            "orphans",
            f"{what} held by {owner}, which is no member any more: {some(_names(partitions))}",
            f"its session, if any, is open still: end that process, or 'kiel-groups release {view.group} {owner}'",
            partitions=_names(partitions),
            members=(owner,),
        )


def _beyond(view: GroupView, now_ms: int) -> Iterator[Finding]:
    beyond = [
        each
        for each in view.partitions
        if each.committed is not None and each.log_end is not None and each.committed > each.log_end
    ]
    if beyond:
        what = counted(beyond, "offset lies", "offsets lie")
        yield Finding(
            "beyond-end",
            f"{what} beyond the end of the log: {some(_names(beyond))}",
            "the topic was created again, or a broker lost records; set the offset, or let the reset policy act",
            partitions=_names(beyond),
        )


def _missing_topics(view: GroupView, now_ms: int) -> Iterator[Finding]:
    if view.missing_topics:
        what = counted(view.missing_topics, "topic does", "topics do")
        yield Finding(
            "missing-topic",
            f"{what} not exist, though subscribed to: {some(view.missing_topics)}",
            "create it, or correct the name; it is consumed as soon as it exists",
        )


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

_RULES_OF_WHAT_IS_SEEN: tuple[_Rule, ...] = (_brokerless, _closed, _unreadable)


def short_name(member_id: MemberId) -> str:
    """The session at the end of a member's id: it tells members apart, and is what ZooKeeper knows them by."""
    return member_id.rpartition("-")[2] or member_id


def _is_young(view: GroupView, now_ms: int) -> bool:
    """Whether the plan is so new that its members may still be at it."""
    return view.group_state is None or now_ms - view.group_state.created_at_ms < SETTLING_MS


def _names(partitions: Iterable[PartitionView]) -> tuple[TopicPartition, ...]:
    return tuple(each.topic_partition for each in partitions)
