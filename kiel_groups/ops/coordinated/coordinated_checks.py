"""Rules that find the problems of a group that brokers coordinate, in one view of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from kiel_groups.ops.coordinated.coordinated_view import CoordinatedGroupView, CoordinatedMemberView
from kiel_groups.ops.findings import Finding, beyond_end, missing_topics, partition_names, short_name, unconsumed
from kiel_groups.wording import counted, some

__all__ = ["check_coordinated_group"]


def check_coordinated_group(view: CoordinatedGroupView) -> tuple[Finding, ...]:
    """
    Return the problems that one view of a group shows.

    ``CoordinatedProgress`` finds those that only several views can show.
    """
    return tuple(finding for rule in _RULES for finding in rule(view))


def _unconsumed(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.state == "empty":
        yield from unconsumed(view.partitions)


def _unreadable(view: CoordinatedGroupView) -> Iterator[Finding]:
    for text in view.unreadable:
        yield Finding(
            "unreadable", text, "the member's client sends what others cannot read; stop it, or update its library"
        )


def _assigned_twice(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.assigned_twice:
        what = counted(view.assigned_twice, "partition is", "partitions are")
        owners = [
            member.member_id
            for member in view.members
            if not {each.topic_partition for each in member.owned}.isdisjoint(view.assigned_twice)
        ]
        yield Finding(
            "assigned-twice",
            f"{what} assigned to several members: {some(view.assigned_twice)}, by the strategy {view.protocol!r}",
            "the strategy of the group's leader is wrong: its records are delivered twice; configure another one",
            partitions=view.assigned_twice,
            members=tuple(owners),
        )


def _unassigned(view: CoordinatedGroupView) -> Iterator[Finding]:
    if view.state != "stable" or view.unreadable:
        return
    subscribed = {topic for member in view.members for topic in member.subscription or ()}
    unassigned = [each for each in view.partitions if each.owner is None and each.topic_partition.topic in subscribed]
    if unassigned:
        what = counted(unassigned, "partition is", "partitions are")
        yield Finding(
            "unassigned",
            f"{what} assigned to no member: {some(partition_names(unassigned))}",
            "the leader assigns new partitions when it next reads metadata (metadata.max.age.ms, 5 min by default); if"
            " that time is over, look at its log",
            partitions=partition_names(unassigned),
        )


def _idle(view: CoordinatedGroupView) -> Iterator[Finding]:
    idle = [member for member in view.members if _could_own(member, view)]
    if idle:
        what = counted(idle, "member has", "members have")
        yield Finding(
            "idle",
            f"{what} no partition, although others have several of the same topics: "
            f"{some(short_name(member.member_id) for member in idle)}",
            "the strategy 'range' divides each topic apart; choose another, such as 'roundrobin', for all members"
            if view.protocol == "range"
            else f"the strategy {view.protocol!r} divides them so; choose another for all members",
            members=tuple(member.member_id for member in idle),
        )


def _could_own(member: CoordinatedMemberView, view: CoordinatedGroupView) -> bool:
    """Return whether a member has no partition, and another has several of the topics that it subscribes to."""
    if member.owned or not member.subscription:
        return False
    topics = set(member.subscription)
    return any(sum(each.topic_partition.topic in topics for each in other.owned) > 1 for other in view.members)


def _beyond(view: CoordinatedGroupView) -> Iterator[Finding]:
    yield from beyond_end(view.partitions)


def _missing_topics(view: CoordinatedGroupView) -> Iterator[Finding]:
    yield from missing_topics(view.missing_topics)


_Rule: TypeAlias = Callable[[CoordinatedGroupView], Iterator[Finding]]

_RULES: tuple[_Rule, ...] = (
    _unconsumed,
    _unreadable,
    _assigned_twice,
    _unassigned,
    _idle,
    _beyond,
    _missing_topics,
)
