"""Load views of groups from their znodes and the ends of their logs. The calls block."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from kiel_groups.config import HostPort, check_name
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, ProtocolError
from kiel_groups.group.commit_note import NotedOffset, NotedText
from kiel_groups.group.znodes.contents import Snapshot, parse_broker, parse_broker_version
from kiel_groups.members.brokers.offset_requests import FoundOffsets, find_kafka_offsets
from kiel_groups.model import TopicPartition
from kiel_groups.ops import cluster_admin
from kiel_groups.ops.broker_reader import LogEnds, find_log_ends
from kiel_groups.ops.group_inspection import (
    broker_addresses,
    check_group,
    list_groups,
    read_brokers,
    read_group,
    read_summaries,
)
from kiel_groups.ops.views.group_view import GroupView, view_group
from kiel_groups.ops.views.offset_stores import StoreTracker
from kiel_groups.wire.offsets import OFFSETS_TOPIC
from kiel_groups.wording import some

__all__ = [
    "LoadedGroups",
    "ViewT",
    "LOOK_S",
    "load_group",
    "load_groups",
    "follow_group",
]


ViewT = TypeVar("ViewT")


@dataclass(frozen=True, slots=True)
class LoadedGroups(Generic[ViewT]):
    """
    The views of groups at one moment.

    ``brokers`` is the number of live brokers. ``lag_problem`` is the reason why some offsets or log ends are unknown,
    or "" if all are known. ``problems`` are the reasons why groups may be missing; ``lists_empty`` is False if groups
    without members are, because brokers do not list them. ``seen_ms`` is the time at which the groups were read, in
    epoch milliseconds.
    """

    groups: tuple[ViewT, ...]
    brokers: int
    lag_problem: str = ""
    problems: tuple[str, ...] = ()
    lists_empty: bool = True
    seen_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


#: How long to look which of two stores a group commits to, in seconds.
LOOK_S = 2.0


#: The folders of a group without which its lag is not known, and (empty) the group's own znodes.
_OF_OFFSETS = ("", "offsets", "starts")


def load_group(zookeeper: str, group: str, *, timeout_s: float = 10.0) -> LoadedGroups[GroupView]:
    """
    Load one group with its lag.

    If ZooKeeper and Kafka have different offsets of it, and its ``config`` does not say which count, the group is
    loaded again after ``LOOK_S`` seconds: those that have moved meanwhile count.

    Args:
        zookeeper: ``host:port,host:port/chroot``.
        group: The name of the group.
        timeout_s: How long to wait for ZooKeeper, and then for the brokers, in seconds.

    Raises:
        ConfigError: The group's name or an address is not legal.
        UnknownGroupError: ZooKeeper has no znode of this group; the text suggests a similar name, if there is one.
        NoZooKeeperError: No server answered.
        ChrootMissingError: The chroot does not exist.
        CoordinationError: Reading from ZooKeeper failed.
    """
    with _loader(zookeeper, group, timeout_s, StoreTracker()) as load:
        loaded = load()
        if not any(view.is_disputed for view in loaded.groups):
            return loaded
        time.sleep(LOOK_S)
        return load()


def follow_group(
    zookeeper: str, group: str, *, timeout_s: float = 10.0
) -> Generator[LoadedGroups[GroupView] | KielGroupsError, None, None]:
    """
    Load the group whenever the caller requests the next item, and yield the views, or the error if the load failed.

    All loads use one session, until a load fails. The arguments have the same meaning as in ``load_group``.

    Raises:
        ConfigError: The group does not exist (any more), or a name is not legal.
    """
    stores = StoreTracker()
    while True:
        try:
            with _loader(zookeeper, group, timeout_s, stores) as load:
                while True:
                    yield load()
        except ConfigError:
            raise
        except KielGroupsError as error:
            yield error


@contextmanager
def _loader(
    zookeeper: str, group: str, timeout_s: float, stores: StoreTracker
) -> Iterator[Callable[[], LoadedGroups[GroupView]]]:
    check_name(group, "group")
    with cluster_admin.zookeeper(zookeeper, timeout_s=timeout_s) as client:
        yield partial(_load, client, zookeeper, group, timeout_s, stores)


def _load(
    client: cluster_admin.Client, zookeeper: str, group: str, timeout_s: float, stores: StoreTracker
) -> LoadedGroups[GroupView]:
    if not client.connected:
        # A read would wait without limit for a new connection.
        raise CoordinationError(f"the connection to ZooKeeper at {zookeeper} broke")
    check_group(client, group, zookeeper)
    brokers = read_brokers(client)
    znodes = read_group(client, group)
    view = view_group(group, znodes)
    loaded = _with_lag((view,), brokers, cluster_admin.topics(client), timeout_s, stores)
    hidden = [path for path in view.closed if "".join(path.split("/")[3:4]) in _OF_OFFSETS]
    return replace(loaded, lag_problem=f"an ACL denies reading {some(hidden)}") if hidden else loaded


def load_groups(zookeeper: str, *, with_lag: bool, timeout_s: float = 10.0) -> LoadedGroups[GroupView]:
    """
    Load an outline of all groups: their members, the states of their plans and, with ``with_lag``, offsets and lag.

    Raises the errors of ``load_group``, except UnknownGroupError.
    """
    with cluster_admin.zookeeper(zookeeper, timeout_s=timeout_s) as client:
        groups, brokers = list_groups(client), read_brokers(client)
        znodes = read_summaries(client, groups, offsets=with_lag)
        views = tuple(view_group(group, znodes[group]) for group in groups)
        if not with_lag:
            return LoadedGroups(views, len(broker_addresses(brokers)))
        topics, stores = cluster_admin.topics(client), StoreTracker()
        loaded = _with_lag(views, brokers, topics, timeout_s, stores)
        disputed = [view.group for view in loaded.groups if view.is_disputed]
        if not disputed:
            return loaded
        time.sleep(LOOK_S)
        znodes = read_summaries(client, disputed, offsets=True)
        views = tuple(view_group(group, znodes[group]) for group in disputed)
        later = {view.group: view for view in _with_lag(views, brokers, topics, timeout_s, stores).groups}
    return replace(loaded, groups=tuple(later.get(view.group, view) for view in loaded.groups))


def _with_lag(
    views: tuple[GroupView, ...], brokers: Snapshot, topics: Iterable[str], timeout_s: float, stores: StoreTracker
) -> LoadedGroups[GroupView]:
    """Add the log ends of existing topics only, because a broker may create a missing topic when asked for it."""
    existing, addresses = frozenset(topics), broker_addresses(brokers)
    found, problem = asyncio.run(_with_kafka_offsets(views, addresses, _doubtful(brokers), existing, timeout_s))
    known = tuple(map(stores.take, found))
    partitions = {
        each.topic_partition for view in known for each in view.partitions if each.topic_partition.topic in existing
    }
    ends: LogEnds = asyncio.run(find_log_ends(addresses, partitions, timeout_s=timeout_s))
    ended = tuple(view.with_log_ends(ends.offsets, len(addresses)) for view in known)
    return LoadedGroups(ended, len(addresses), ends.problem or problem)


async def _with_kafka_offsets(
    views: Collection[GroupView],
    addresses: list[HostPort],
    doubtful: list[HostPort] | None,
    topics: Collection[str],
    timeout_s: float,
) -> tuple[list[GroupView], str]:
    """
    Add the offsets of groups that have them in Kafka, or may have, and return why some are unknown.

    Of groups that may have, no coordinator is asked for unless one was before, because a broker would create the topic
    of the offsets then. Brokers of 0.8.0 and 0.8.1 have no coordinators, and close the connection.
    """

    def wanted(view: GroupView) -> list[TopicPartition]:
        partitions = [*(each.topic_partition for each in view.partitions), *view.further]
        return [each for each in partitions if each.topic in topics]

    read = await find_kafka_offsets(
        addresses, {view.group: wanted(view) for view in views if view.offsets_in_kafka}, timeout_s=timeout_s
    )
    if OFFSETS_TOPIC in topics and doubtful is not None:
        others = {view.group: wanted(view) for view in views if view.has_any_store}
        read |= await find_kafka_offsets(addresses, others, doubtful=doubtful, timeout_s=timeout_s)
    problems = [each.problem for each in read.values() if each.problem]
    return [_with_found(view, read.get(view.group)) for view in views], problems[0] if problems else ""


def _with_found(view: GroupView, read: FoundOffsets | None) -> GroupView:
    if read is None:
        return view
    found = {each: NotedOffset(at, NotedText.parse(text).note) for each, (at, text) in read.offsets.items()}
    return view.with_kafka_offsets(found)


def _doubtful(brokers: Snapshot) -> list[HostPort] | None:
    """Return the brokers that may be of 0.8.1 by their znodes, or None if one is of 0.8.0, which writes a blank."""
    found = []
    for path, znode in sorted(brokers.items()):
        try:
            if parse_broker_version(znode.data, path) == 1:
                if znode.data.startswith(b"{ "):
                    return None
                found.append(parse_broker(znode.data, path))
        except ProtocolError:
            continue  # As for ``broker_addresses``.
    return found
