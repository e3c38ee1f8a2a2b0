"""Load views of groups that brokers coordinate, from the brokers alone. The calls block."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Iterable
from difflib import get_close_matches
from typing import NamedTuple

from kiel_groups.errors import ConfigError, KielGroupsError, UnknownGroupError
from kiel_groups.ops.broker_reader import (
    BrokerSession,
    CommittedOffsets,
    CoordinatedGroup,
    LogEnds,
    check_present,
    committed_offsets,
    describe_group,
    find_log_ends,
    list_groups,
    offsets_of_groups,
)
from kiel_groups.ops.group_loader import LoadedGroups
from kiel_groups.ops.views.coordinated import CoordinatedGroupView, GroupAnswers, view_coordinated_group

__all__ = [
    "follow_coordinated_group",
    "load_coordinated_group",
    "load_coordinated_groups",
    "look_up_group",
    "names_of_coordinated_groups",
]


class FoundGroup(NamedTuple):
    """A group as it is, or None if there is none; then ``similar`` is the name of one with a similar name, or ""."""

    view: CoordinatedGroupView | None
    similar: str = ""


def load_coordinated_group(brokers: str, group: str, *, timeout_s: float = 10.0) -> LoadedGroups[CoordinatedGroupView]:
    """
    Load one group with its lag.

    Args:
        brokers: ``host:port`` of some brokers, separated by commas.
        group: The name of the group.
        timeout_s: How long a broker may take for an answer, in seconds.

    Raises:
        ConfigError: An address is not legal, or the brokers are too old or too new.
        UnknownGroupError: There is no such group; the text suggests a similar name, if there is one.
        NoBrokersError: No broker answers.
        BrokerError: The group has no coordinator now, or it does not answer.
    """
    if not group:
        raise ConfigError("group: '' is not the name of a group")
    return asyncio.run(_load_group(brokers, group, timeout_s))


def follow_coordinated_group(
    brokers: str, group: str, *, timeout_s: float = 10.0
) -> Generator[LoadedGroups[CoordinatedGroupView] | KielGroupsError, None, None]:
    """
    Load the group whenever the caller requests the next item, and yield the views, or the error if the load failed.

    Raises the ConfigErrors of ``load_coordinated_group``, whose arguments it has.
    """
    while True:
        try:
            yield load_coordinated_group(brokers, group, timeout_s=timeout_s)
        except ConfigError:
            raise
        except KielGroupsError as error:
            yield error


def load_coordinated_groups(
    brokers: str, *, with_lag: bool, timeout_s: float = 10.0
) -> LoadedGroups[CoordinatedGroupView]:
    """
    Load all groups, with ``with_lag`` also their offsets and lag.

    Raises the errors of ``load_coordinated_group``, except UnknownGroupError.
    """
    return asyncio.run(_load_groups(brokers, with_lag, timeout_s))


def names_of_coordinated_groups(brokers: str, timeout_s: float) -> list[str]:
    """Return the names of the groups that live brokers list; raises as ``load_coordinated_groups``."""
    return [view.group for view in load_coordinated_groups(brokers, with_lag=False, timeout_s=timeout_s).groups]


def look_up_group(brokers: str, group: str, topics: Collection[str], *, timeout_s: float) -> FoundGroup:
    """
    Look up a group before a member joins it, and check that the topics exist.

    Raises:
        UnknownTopicError: A topic does not exist.
        ConfigError: As for ``load_coordinated_group``, and so are the other errors.
    """
    return asyncio.run(_look_up(brokers, group, topics, timeout_s))


async def _load_group(brokers: str, group: str, timeout_s: float) -> LoadedGroups[CoordinatedGroupView]:
    async with BrokerSession(brokers, timeout_s=timeout_s) as session:
        if not session.has_coordinators:
            raise UnknownGroupError(f"group {group!r} does not exist {session.place}, nor does any other")
        described = await describe_group(session, group)
        offsets = await committed_offsets(session, group)
        (view,) = _views(session, [(described, offsets)])
        if not view.exists:
            raise await _unknown(session, group)
        return await _with_lag(session, (view,), [offsets.problem], timeout_s)


async def _load_groups(brokers: str, with_lag: bool, timeout_s: float) -> LoadedGroups[CoordinatedGroupView]:
    async with BrokerSession(brokers, timeout_s=timeout_s) as session:
        found = await list_groups(session)
        if not with_lag:
            views = _views(session, ((each, CommittedOffsets({})) for each in found.groups))
            lists_empty = not session.is_of_0_9
            return LoadedGroups(views, len(session.brokers), problems=found.problems, lists_empty=lists_empty)
        offsets = await offsets_of_groups(session, (each.described.group for each in found.groups))
        views = _views(session, zip(found.groups, offsets, strict=True))
        problems = [each.problem for each in offsets]
        return await _with_lag(session, views, problems, timeout_s, found.problems)


def _views(
    session: BrokerSession, groups: Iterable[tuple[CoordinatedGroup, CommittedOffsets]]
) -> tuple[CoordinatedGroupView, ...]:
    topics = {name: tuple(each.partition for each in topic.partitions) for name, topic in session.topics.items()}
    return tuple(
        view_coordinated_group(
            GroupAnswers(group.described, session.name_of(group.coordinator), topics, offsets.offsets)
        )
        for group, offsets in groups
    )


async def _with_lag(
    session: BrokerSession,
    views: tuple[CoordinatedGroupView, ...],
    problems: Iterable[str],
    timeout_s: float,
    missing: tuple[str, ...] = (),
) -> LoadedGroups[CoordinatedGroupView]:
    """Add the log ends of existing topics only, because a broker may create a missing topic when asked for it."""
    topics = session.topics
    partitions = {
        each.topic_partition for view in views for each in view.partitions if each.topic_partition.topic in topics
    }
    addresses = list(session.brokers.values())
    ends = await find_log_ends(addresses, partitions, timeout_s=timeout_s) if addresses else LogEnds()
    return LoadedGroups(
        tuple(view.with_log_ends(ends.offsets) for view in views),
        len(addresses),
        next((problem for problem in (*problems, ends.problem) if problem), ""),
        missing,
        lists_empty=not session.is_of_0_9,
    )


async def _look_up(brokers: str, group: str, topics: Collection[str], timeout_s: float) -> FoundGroup:
    async with BrokerSession(brokers, timeout_s=timeout_s) as session:
        check_present(session, topics)
        if not session.has_coordinators:
            return FoundGroup(None)
        described, offsets = await describe_group(session, group), await committed_offsets(session, group)
        (view,) = _views(session, [(described, offsets)])
        if view.exists:
            return FoundGroup(view)
        found = [each.described.group for each in (await list_groups(session)).groups]
        return FoundGroup(None, next(iter(get_close_matches(group, found, 1)), ""))


async def _unknown(session: BrokerSession, group: str) -> UnknownGroupError:
    found = [each.described.group for each in (await list_groups(session)).groups]
    text = f"group {group!r} does not exist {session.place}"
    if near := get_close_matches(group, found, 1):
        return UnknownGroupError(f"{text}; did you mean {near[0]!r}?")
    if found:
        return UnknownGroupError(f"{text}; 'kiel-groups groups' lists the {len(found)} that do")
    return UnknownGroupError(f"{text}, nor does any other that has members")
