"""
Load the views of the groups that ZooKeeper coordinates, with offsets in Kafka and lag, once or at each change.

The functions block, and change nothing. Only ``WatchedGroups`` sets watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.config import HostPort, check_name
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError
from kiel_groups.group.commit_note import NotedOffset, NotedText
from kiel_groups.group.znodes.contents import Snapshot
from kiel_groups.group.znodes.layout import TOPICS, GroupLayout, WorkerLayout, topic_path
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import FoundGroup, LoadedGroups, LogEnds, find_log_ends
from kiel_groups.ops.views.group_view import GroupView, StoreTracker
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import Client, zookeeper
from kiel_groups.ops.zookeeper_reader import (
    broker_addresses,
    check_group,
    doubtful_brokers,
    found_children,
    list_groups,
    read_brokers,
    read_group,
    read_groups,
    read_summaries,
    read_znodes,
)
from kiel_groups.wire.offsets import OFFSETS_TOPIC
from kiel_groups.wording import some

if TYPE_CHECKING:
    from kiel_groups.members.brokers.offset_requests import FoundOffsets

#: The time between two loads that show to which of two stores a group commits, in seconds.
LOOK_S = 2.0

#: The parts of a group's znodes that the lag requires: the group's own znodes (empty), and two of its folders.
_OF_OFFSETS = ("", "offsets", "starts")

#: A group with more partitions is read in part when it changes.
_MOST_WHOLE = 500


class ZooKeeperGroups:
    """
    Reads the groups in a ZooKeeper. Each call opens sessions, and raises the errors of ``zookeeper``.

    Args:
        hosts: ``host:port,host:port/chroot``.
        timeout_s: The longest time to wait for ZooKeeper, and then for the brokers, in seconds.
    """

    def __init__(self, hosts: str, *, timeout_s: float = 10.0) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s

    def load(self, group: str) -> LoadedGroups:
        """
        Load one group with its lag.

        If ZooKeeper and Kafka have different offsets of the group, and its ``config`` does not name its store, the
        group is loaded again after ``LOOK_S`` seconds. If offsets have moved in one store only, the view has the
        offsets of this store.

        Raises:
            ConfigError: The group's name or an address is not legal.
            UnknownGroupError: The group does not exist. The text suggests the name of a similar group, if any.
        """
        return self.load_all(with_lag=True, groups=(group,))

    def follow(self, *groups: str) -> Generator[LoadedGroups | KielGroupsError, None, None]:
        """
        Load groups whenever the caller requests the next item. Yield the groups, or the error of a load.

        A single group is loaded with all its znodes. Several groups, or all groups if no group is named, are loaded as
        outlines with lag; see ``load_all``. All loads use one session, until a load fails. Successive loads show to
        which of two stores a group commits.

        Raises:
            ConfigError: A group does not exist, or was deleted meanwhile, or a name is not legal.
        """
        stores = StoreTracker()
        while True:
            try:
                with self._loader(groups, stores) as load:
                    while True:
                        yield load()
            except ConfigError:
                raise
            except KielGroupsError as error:
                yield error

    def load_all(self, *, with_lag: bool, groups: Sequence[str] = ()) -> LoadedGroups:
        """
        Load an outline of all groups: members, the states of plans and, with ``with_lag``, offsets and lag.

        Args:
            with_lag: Whether to read the offsets. If two stores have different offsets of a group, all groups are
                loaded again after ``LOOK_S`` seconds.
            groups: The groups to load, with their lag. A single group is loaded as by ``load``.

        Raises:
            ConfigError: One of ``groups`` does not exist, or its name is not legal.
        """
        if groups or with_lag:
            with self._loader(groups, StoreTracker()) as load:
                loaded = load()
                if any(view.is_disputed for view in loaded.groups):
                    time.sleep(LOOK_S)
                    loaded = load()
                return loaded
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            znodes = read_summaries(client, list_groups(client), offsets=False)
            views = tuple(view_group(group, found) for group, found in znodes.items())
            return LoadedGroups(views, len(broker_addresses(read_brokers(client))))

    def look_up(self, group: str) -> FoundGroup:
        """Return the view of a group without its lag, or the name of a similar group if the group does not exist."""
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            groups = list_groups(client)
            if group in groups:
                return FoundGroup(view_group(group, read_summaries(client, [group], offsets=True)[group]))
        return FoundGroup.similar_to(group, groups)

    def names(self) -> list[str]:
        """Return the names of all groups, in alphabetical order; see ``list_groups``."""
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            return list_groups(client)

    @contextmanager
    def watch(self, changed: Callable[[str], object]) -> Iterator[WatchedGroups]:
        """
        Open a session for a ``with`` block, and yield ``WatchedGroups``. The yielded object calls ``changed`` with the
        name of each group that changes.
        """
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            yield WatchedGroups(client, self._hosts, self._timeout_s, changed)

    @contextmanager
    def _loader(self, groups: Sequence[str], stores: StoreTracker) -> Iterator[Callable[[], LoadedGroups]]:
        for group in groups:
            check_name(group, "group")
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            yield partial(_load, client, self._hosts, groups, self._timeout_s, stores)


class WatchedGroups:
    """
    Reads all groups in a ZooKeeper over one session, and notifies the caller when a group changes.

    ``ZooKeeperGroups.watch`` creates this object.

    Args:
        client: The session.
        hosts: The servers of ZooKeeper, for errors.
        timeout_s: How long to wait for the brokers, in seconds.
        changed: Called on kazoo's thread with the name of a group, when its members, candidates, plan, workers or
            connectors have changed since the group was last read.
    """

    def __init__(self, client: Client, hosts: str, timeout_s: float, changed: Callable[[str], object]) -> None:
        self._client = client
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._changed = changed
        self._stores = StoreTracker()
        self._watched: set[tuple[str, str]] = set()

    def load(self) -> LoadedGroups:
        """
        Load all groups with all their znodes and their lag, and watch them.

        Raises:
            CoordinationError: The connection broke, or the groups cannot be listed.
        """
        _check_connected(self._client, self._hosts)
        brokers = read_brokers(self._client)
        views = self.read(list_groups(self._client))
        return _with_lag(self._client, tuple(views), brokers, self._timeout_s, self._stores)

    def read(self, groups: Collection[str]) -> list[GroupView]:
        """
        Read all znodes of groups, and watch the groups. The views lack log ends and offsets in Kafka.

        Raises:
            CoordinationError: The connection broke.
        """
        _check_connected(self._client, self._hosts)
        # First the watches: a change after the reads must not be missed.
        self._watch(groups)
        return [_with_plan_znodes(view_group(*each), each[1]) for each in read_groups(self._client, groups).items()]

    def read_changes(self, views: Collection[GroupView]) -> list[GroupView]:
        """
        Read groups that have changed, and watch the groups. Return newer views than ``views``.

        A small group is read as by ``read``. Of a large group, only the members, the candidates, the settings and the
        plan are read, and the result ``is_partial``: two further znodes of each partition would take seconds.

        Raises:
            CoordinationError: The connection broke.
        """
        found = self.read([view.group for view in views if not view.plan_znodes])
        large = [view for view in views if view.plan_znodes]
        self._watch(view.group for view in large)
        return found + [_read_plan(self._client, view) for view in large]

    def _watch(self, groups: Iterable[str]) -> None:
        reads = []
        for layout in map(GroupLayout, groups):
            workers = WorkerLayout(layout.group)
            # Members, candidates and workers are children; a plan and the offset of the connectors' settings are data.
            folders = (layout.members, layout.election, layout.ids, workers.workers)
            for path in (*folders, layout.group_state, workers.config):
                key = (layout.group, path)
                if key not in self._watched:
                    self._watched.add(key)
                    read = self._client.get_children_async if path in folders else self._client.get_async
                    reads.append((key, read(path, partial(self._fire, key))))
        for key, read in reads:
            try:
                read.get()
            except (NoNodeError, NoAuthError):
                self._watched.discard(key)

    def _fire(self, key: tuple[str, str], _event: object) -> None:
        self._watched.discard(key)
        self._changed(key[0])


def _with_plan_znodes(view: GroupView, znodes: Snapshot) -> GroupView:
    """
    Return a view of a large group with its ``plan_znodes``, and any other view unchanged.

    A group is always read whole if ACLs hide some of its znodes, or if its members are programs.
    """
    if len(view.partitions) <= _MOST_WHOLE or view.closed or not view.is_of_consumers:
        return view
    layout = GroupLayout(view.group)
    others = (f"{layout.owners}/", f"{layout.offsets}/", f"{layout.starts}/", f"{layout.orders}/", f"{TOPICS}/")
    return replace(view, plan_znodes={path: each for path, each in znodes.items() if not path.startswith(others)})


def _read_plan(client: Client, view: GroupView) -> GroupView:
    """
    Read the members, the candidates, the settings and the plan of a group, and return the newer view.

    Of the children that the view has already, only the assignments are read again, and these only after a new plan.
    Members and leaders do not write the others again, with one exception: a member that subscribes to other topics.
    The next read of the whole group shows these topics.
    """
    layout, known = GroupLayout(view.group), view.plan_znodes
    found = read_znodes(client, [layout.group_state, layout.config, layout.weights])
    is_same = found.get(layout.group_state) == known.get(layout.group_state)
    folders = (layout.members, layout.election, layout.ids, layout.kiel_members, layout.history)
    reads = [(folder, client.get_children_async(folder)) for folder in (*folders, layout.group_state)]
    try:
        paths = [f"{folder}/{child}" for folder, read in reads for child in found_children(read)]
    except NoAuthError:
        return view  # The next read of the whole group shows which znodes an ACL hides now.
    old = {path for path in paths if path in known and (is_same or not path.startswith(f"{layout.group_state}/"))}
    found |= {path: known[path] for path in (*old, *folders) if path in known and path not in found}
    found |= read_znodes(client, [path for path in paths if path not in old])
    return replace(view_group(view.group, found, earlier=view), plan_znodes=found)


def _check_connected(client: Client, hosts: str) -> None:
    if not client.connected:
        # A read would wait without limit for a new connection.
        raise CoordinationError(f"the connection to ZooKeeper at {hosts} broke")


def _load(client: Client, hosts: str, groups: Sequence[str], timeout_s: float, stores: StoreTracker) -> LoadedGroups:
    """
    Load one group, or the outlines of several groups, with lag. Without ``groups``, load the outlines of all groups.

    Raises:
        UnknownGroupError: One of ``groups`` does not exist.
        CoordinationError: The connection broke, or the groups cannot be listed.
    """
    _check_connected(client, hosts)
    for group in groups:
        check_group(client, group, hosts)
    brokers = read_brokers(client)
    if len(groups) == 1:
        znodes = {groups[0]: read_group(client, groups[0])}
    else:
        znodes = read_summaries(client, groups or list_groups(client), offsets=True)
    views = tuple(view_group(group, found) for group, found in znodes.items())
    return _with_lag(client, views, brokers, timeout_s, stores)


def _with_lag(
    client: Client, views: tuple[GroupView, ...], brokers: Snapshot, timeout_s: float, stores: StoreTracker
) -> LoadedGroups:
    """
    Return the loaded groups with their offsets in Kafka and the log ends of their existing partitions.

    Brokers are not asked for missing topics, because a request for a missing topic may create the topic.
    """
    addresses, doubtful = broker_addresses(brokers), doubtful_brokers(brokers)
    if client.exists(topic_path(OFFSETS_TOPIC)) is None:
        doubtful = None
    found, problem = asyncio.run(_with_kafka_offsets(views, addresses, doubtful, timeout_s))
    known = tuple(map(stores.take, found))
    partitions = {each.topic_partition for view in known for each in view.partitions if each.exists}
    ends: LogEnds = asyncio.run(find_log_ends(addresses, partitions, timeout_s=timeout_s))
    ended = tuple(view.with_log_ends(ends.offsets, len(addresses)) for view in known)
    hidden = [path for view in views for path in view.closed if "".join(path.split("/")[3:4]) in _OF_OFFSETS]
    why = f"an ACL denies reading {some(hidden)}" if hidden else ends.problem or problem
    return LoadedGroups(ended, len(addresses), why)


async def _with_kafka_offsets(
    views: Collection[GroupView],
    addresses: list[HostPort],
    doubtful: list[HostPort] | None,
    timeout_s: float,
) -> tuple[list[GroupView], str]:
    """
    Return the views with the offsets in Kafka, and the first reason why offsets are unknown, or "".

    A group whose settings name Kafka has its offsets there. A group without settings may have offsets there. If
    ``doubtful`` is None, no coordinator is asked about groups without settings. Brokers of 0.8.0 and 0.8.1 have no
    coordinators, and close the connection. Later brokers would create the topic of the offsets at the first request.
    """

    def wanted(view: GroupView) -> list[TopicPartition]:
        return [*(each.topic_partition for each in view.partitions if each.exists), *view.further]

    ours = {view.group: wanted(view) for view in views if view.offsets_in_kafka}
    others = {view.group: wanted(view) for view in views if view.has_any_store} if doubtful is not None else {}
    if not (ours or others):
        return list(views), ""
    # Most commands see no such group, and start without the clients of coordinators.
    from kiel_groups.members.brokers.offset_requests import find_kafka_offsets

    read = await find_kafka_offsets(addresses, ours, timeout_s=timeout_s)
    read |= await find_kafka_offsets(addresses, others, doubtful=doubtful or [], timeout_s=timeout_s)
    problems = [each.problem for each in read.values() if each.problem]
    return [_with_found(view, read.get(view.group)) for view in views], problems[0] if problems else ""


def _with_found(view: GroupView, read: FoundOffsets | None) -> GroupView:
    if read is None:
        return view
    found = {each: NotedOffset(at, NotedText.parse(text).note) for each, (at, text) in read.offsets.items()}
    return view.with_kafka_offsets(found)


def read_lags(client: Client, view: GroupView, timeout_s: float) -> tuple[dict[TopicPartition, int], str]:
    """Return the known lags of a group's partitions, and the reason why lags are unknown, or "" if all are known."""
    loaded = _with_lag(client, (view,), read_brokers(client), timeout_s, StoreTracker())
    (ended,) = loaded.groups
    return {each.topic_partition: each.lag for each in ended.partitions if each.lag is not None}, loaded.lag_problem
