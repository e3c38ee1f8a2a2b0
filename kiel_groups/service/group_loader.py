"""Load views of groups from their znodes and the ends of their logs. The calls block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from kiel_groups.admin import cluster_admin
from kiel_groups.admin.group_inspection import check_group, list_groups, read_brokers, read_group, read_summaries
from kiel_groups.clients.coordinated.stored_in_kafka import find_kafka_offsets
from kiel_groups.clients.net.log_ends import LogEnds, find_log_ends
from kiel_groups.config import HostPort, check_name
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, ProtocolError
from kiel_groups.group.member.commit_note import NotedOffset, NotedText
from kiel_groups.group.znodes.contents import parse_broker
from kiel_groups.group.znodes.snapshot import Snapshot
from kiel_groups.ops.group_view import GroupView, view_group
from kiel_groups.service.loaded_groups import LoadedGroups

__all__ = ["load_group", "load_groups", "follow_group"]


def load_group(zookeeper: str, group: str, *, timeout_s: float = 10.0) -> LoadedGroups[GroupView]:
    """
    Load one group with its lag.

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
    with _loader(zookeeper, group, timeout_s) as load:
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
    while True:
        try:
            with _loader(zookeeper, group, timeout_s) as load:
                while True:
                    yield load()
        except ConfigError:
            raise
        except KielGroupsError as error:
            yield error


@contextmanager
def _loader(zookeeper: str, group: str, timeout_s: float) -> Iterator[Callable[[], LoadedGroups[GroupView]]]:
    check_name(group, "group")
    with cluster_admin.zookeeper(zookeeper, timeout_s=timeout_s) as client:
        yield partial(_load, client, zookeeper, group, timeout_s)


def _load(client: cluster_admin.Client, zookeeper: str, group: str, timeout_s: float) -> LoadedGroups[GroupView]:
    if not client.connected:
        # A read would wait without limit for a new connection.
        raise CoordinationError(f"the connection to ZooKeeper at {zookeeper} broke")
    check_group(client, group, zookeeper)
    brokers = read_brokers(client)
    znodes = read_group(client, group)
    return _with_lag((view_group(group, znodes),), brokers, cluster_admin.topics(client), timeout_s)


def load_groups(zookeeper: str, *, with_lag: bool, timeout_s: float = 10.0) -> LoadedGroups[GroupView]:
    """
    Load an outline of all groups: their members, the states of their plans and, with ``with_lag``, offsets and lag.

    Raises the errors of ``load_group``, except UnknownGroupError.
    """
    with cluster_admin.zookeeper(zookeeper, timeout_s=timeout_s) as client:
        groups, brokers = list_groups(client), read_brokers(client)
        znodes = read_summaries(client, groups, offsets=with_lag)
        topics = cluster_admin.topics(client) if with_lag else []
    views = tuple(view_group(group, znodes[group]) for group in groups)
    if not with_lag:
        return LoadedGroups(views, _count(brokers))
    return _with_lag(views, brokers, topics, timeout_s)


def _with_lag(
    views: tuple[GroupView, ...], brokers: Snapshot, topics: Iterable[str], timeout_s: float
) -> LoadedGroups[GroupView]:
    """Add the log ends of existing topics only, because a broker may create a missing topic when asked for it."""
    existing = frozenset(topics)
    partitions = {
        each.topic_partition for view in views for each in view.partitions if each.topic_partition.topic in existing
    }
    ends: LogEnds = asyncio.run(find_log_ends(_addresses(brokers), partitions, timeout_s=timeout_s))
    known = tuple(view.with_log_ends(ends.offsets, _count(brokers)) for view in views)
    return _with_kafka_offsets(
        LoadedGroups(known, _count(brokers), ends.problem), _addresses(brokers), existing, timeout_s
    )


def _with_kafka_offsets(
    loaded: LoadedGroups[GroupView], brokers: list[HostPort], topics: Collection[str], timeout_s: float
) -> LoadedGroups[GroupView]:
    """Add the offsets of groups that have them in Kafka."""
    groups, problem = [], loaded.lag_problem
    for view in loaded.groups:
        if view.offsets_in_kafka:
            wanted = [each.topic_partition for each in view.partitions if each.topic_partition.topic in topics]
            read = asyncio.run(find_kafka_offsets(brokers, view.group, wanted, timeout_s=timeout_s))
            problem = problem or read.problem
            found = {each: NotedOffset(at, NotedText.parse(text).note) for each, (at, text) in read.offsets.items()}
            view = view.with_kafka_offsets(found)
        groups.append(view)
    return replace(loaded, groups=tuple(groups), lag_problem=problem)


def _addresses(brokers: Snapshot) -> list[HostPort]:
    found = []
    for path, znode in sorted(brokers.items()):
        try:
            found.append(parse_broker(znode.data, path))
        except ProtocolError:
            continue  # The parent znode, or a registration without a usable address.
    return found


def _count(brokers: Snapshot) -> int:
    return len(_addresses(brokers))
