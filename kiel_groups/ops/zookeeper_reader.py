"""
Read the znodes of groups from ZooKeeper, and return the znodes or the views of groups.

The functions block, and change nothing. Only ``WatchedGroups`` sets watches.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.config import HostPort, check_name
from kiel_groups.errors import ConfigError, CoordinationError, KielGroupsError, ProtocolError
from kiel_groups.group.commit_note import NotedOffset, NotedText
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    Snapshot,
    Znode,
    parse_broker,
    parse_broker_version,
)
from kiel_groups.group.znodes.layout import (
    BROKER_IDS,
    CONSUMERS,
    KIEL_GROUPS,
    ROOT,
    TOPICS,
    GroupLayout,
    WorkerLayout,
    topic_path,
)
from kiel_groups.group.znodes.round_contents import program_type, refusal_by_programs
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import FoundGroup, LoadedGroups, LogEnds, find_log_ends, unknown_group
from kiel_groups.ops.views.group_view import GroupView, StoreTracker
from kiel_groups.ops.views.znodes import GroupReading, view_group
from kiel_groups.ops.zookeeper_client import Client, broker_ids, children_of, zookeeper
from kiel_groups.wire.offsets import OFFSETS_TOPIC
from kiel_groups.wording import some

if TYPE_CHECKING:
    from kiel_groups.members.brokers.offset_requests import FoundOffsets


log = logging.getLogger(__name__)


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
        paths = [f"{folder}/{child}" for folder, read in reads for child in _children_of(read)]
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


def doubtful_brokers(brokers: Snapshot) -> list[HostPort] | None:
    """
    Return the addresses of brokers that may have release 0.8.1, or None if a broker has release 0.8.0.

    The registration of a broker of 0.8.0 begins with a brace and a blank.
    """
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


#: Reads in flight at once. More save a few percent of the time, but a read of another thread waits for all of them.
_MOST_READS = 250


@contextmanager
def group_session(hosts: str, group: str, *, timeout_s: float = 10.0) -> Iterator[Client]:
    """
    Open a session with ZooKeeper for a ``with`` block, check that a group exists, and yield the client.

    Raises:
        UnknownGroupError: The group does not exist; see ``check_group``.
        CoordinationError: As for ``zookeeper``, or the groups cannot be listed.
    """
    with zookeeper(hosts, timeout_s=timeout_s) as client:
        check_group(client, group, hosts)
        yield client


def read_group(client: Client, group: str) -> dict[str, Znode]:
    """Read all znodes of a group; see ``read_groups``."""
    return read_groups(client, [group])[group]


def read_groups(client: Client, groups: Collection[str]) -> dict[str, dict[str, Znode]]:
    """
    Read all znodes of groups, whether kiel-groups, Kafka or kiel writes them, and the znodes of the groups' topics.

    A topic belongs to a group if its members, or Java consumers in it, subscribe to the topic, or if the group has
    owners, offsets or first offsets in the topic. A group that does not exist has no znodes in the result. Znodes whose
    ACL denies reading are ``closed``.

    Returns:
        The znodes of each group, by the group's name.
    """
    found: dict[str, dict[str, Znode]] = {group: {} for group in groups}
    for path, znode in _read_trees(client, [root for group in groups for root in GroupLayout(group).roots]).items():
        found[path.split("/")[3 if path.startswith(KIEL_GROUPS) else 2]][path] = znode
    readings = {group: GroupReading(GroupLayout(group), znodes) for group, znodes in found.items()}
    java = {(group, each) for group, reading in readings.items() for each in reading.java_subscriptions().values()}
    existing: list[str] = []
    if any(each.is_pattern for _, each in java):
        with suppress(NoAuthError):
            existing = _children_of(client.get_children_async(TOPICS))
    topics = {group: consumed_topics(znodes) | _subscribed(readings[group]) for group, znodes in found.items()}
    for group, subscription in java:
        topics[group].update(subscription.topics(existing))
    read = read_znodes(client, [topic_path(topic) for topic in sorted(set().union(*topics.values()))])
    for group, names in topics.items():
        found[group] |= {path: read[path] for path in map(topic_path, names) if path in read}
    return found


def read_plan_inputs(client: Client, group: str, topics: Iterable[str]) -> dict[str, Znode]:
    """Read the znodes from which a leader computes a plan, and the znodes of further ``topics``."""
    layout = GroupLayout(group)
    found = _read_trees(client, [layout.members, layout.group_state, BROKER_IDS])
    found |= read_znodes(client, [layout.config, layout.weights])
    names = _subscribed(GroupReading(layout, found)).union(topics)
    return found | read_znodes(client, [topic_path(topic) for topic in sorted(names)])


def read_lags(client: Client, view: GroupView, timeout_s: float) -> tuple[dict[TopicPartition, int], str]:
    """Return the known lags of a group's partitions, and the reason why lags are unknown, or "" if all are known."""
    loaded = _with_lag(client, (view,), read_brokers(client), timeout_s, StoreTracker())
    (ended,) = loaded.groups
    return {each.topic_partition: each.lag for each in ended.partitions if each.lag is not None}, loaded.lag_problem


def read_settings(hosts: str, group: str) -> GroupSettings | None:
    """
    Return the settings that the members of a group share, or None if the group never had a member.

    Raises:
        CoordinationError: ZooKeeper failed; see ``zookeeper``.
        GroupConfigError: The members are programs, such as workers.
        ProtocolError: The settings cannot be read.
    """
    path = GroupLayout(group).config
    with zookeeper(hosts) as client:
        refuse_programs(client, group)
        try:
            data, _ = client.get(path)
        except NoNodeError:
            return None
    return GroupSettings.parse(data, path)


def refuse_programs(client: Client, group: str) -> None:
    """
    Check that the members of a group are consumers, or that consumers may join it.

    Raises:
        GroupConfigError: The members are programs, such as workers. Programs share no partitions.
    """
    layout = WorkerLayout(group)
    settings = GroupLayout(group).config
    found = _read_trees(client, [layout.workers]) | read_znodes(client, [settings, layout.config])
    data = {path: None if znode.closed else znode.data for path, znode in found.items()}
    has_workers = any(path.startswith(f"{layout.workers}/") for path in found)
    protocol_type = program_type(data.get(settings), data.get(layout.config), has_workers=has_workers)
    if protocol_type is not None:
        raise refusal_by_programs(group, protocol_type)


def list_groups(client: Client) -> list[str]:
    """
    Return the names of all groups of kiel-groups, of Kafka's consumers and of kiel, in alphabetical order.

    Raises:
        CoordinationError: The ACL of a parent znode of groups denies reading.
    """
    return sorted(set().union(*_names_by_folder(client).values()))


def _names_by_folder(client: Client) -> dict[str, set[str]]:
    """Return the names of the groups below each parent znode of groups. Raise errors as ``list_groups`` does."""
    reads = [(folder, client.get_children_async(folder)) for folder in (ROOT, CONSUMERS, KIEL_GROUPS)]
    names = {}
    for folder, read in reads:
        try:
            names[folder] = set(_children_of(read))
        except NoAuthError:
            raise CoordinationError(
                f"ZooKeeper refuses to list {folder}: its ACL keeps us out; let the world read that folder"
            ) from None
    return names


def check_group(client: Client, group: str, place: str) -> None:
    """
    Check that a group exists. ``place`` is the address of ZooKeeper for the error's text.

    Raises:
        UnknownGroupError: ZooKeeper has no znode of the group. The text suggests the name of a similar group, if any.
        CoordinationError: The groups cannot be listed; see ``list_groups``.
    """
    groups = list_groups(client)
    if group not in groups:
        aside = "" if groups or broker_ids(client) else ", and no broker: is the chroot right?"
        raise unknown_group(group, f"in ZooKeeper at {place}", groups, aside)


def list_topics(client: Client) -> list[str]:
    """Return the names of all topics, in alphabetical order."""
    return children_of(client, TOPICS)


def list_members(client: Client, group: str) -> list[str]:
    """Return the ids of a group's members, in alphabetical order."""
    return children_of(client, GroupLayout(group).members)


def read_summaries(client: Client, groups: Iterable[str], *, offsets: bool) -> dict[str, dict[str, Znode]]:
    """
    Read the members, candidates, settings and group state of each group and, with ``offsets``, its committed offsets.

    The znodes of live workers are included; with ``offsets``, so are the znodes of the topics with offsets, and of the
    topics of owners. For a group of Kafka's consumers, only the members, the offsets and these topics are read, because
    a cluster may have thousands of such groups.

    Returns:
        The znodes of each group, by the group's name.

    Raises:
        CoordinationError: The groups cannot be listed; see ``list_groups``.
    """
    names = _names_by_folder(client)
    layouts = [GroupLayout(group) for group in groups]
    of_consumers = [layout for layout in layouts if layout.group in names[CONSUMERS]]
    ours = [(layout, WorkerLayout(layout.group)) for layout in layouts if layout.group in names[ROOT]]
    trees = [layout.ids for layout in of_consumers]
    trees += [path for layout, workers in ours for path in (layout.members, layout.election, workers.workers)]
    trees += [layout.kiel_members for layout in layouts if layout.group in names[KIEL_GROUPS]]
    if offsets:
        # The topics of groups whose offsets are in Kafka are known from their first offsets.
        trees += [layout.offsets for layout in of_consumers] + [layout.starts for layout, _ in ours]
    further = [p for own, workers in ours for p in (own.root, own.group_state, own.config, workers.config)]
    found: dict[str, dict[str, Znode]] = {layout.group: {} for layout in layouts}
    for path, znode in (_read_trees(client, trees) | read_znodes(client, further)).items():
        found[path.split("/")[3 if path.startswith(KIEL_GROUPS) else 2]][path] = znode
    if not offsets:
        return found
    for layout, topics in _owned_topics(
        client, [each for each in of_consumers if each.config not in found[each.group]]
    ):
        found[layout.group] |= {f"{layout.owners}/{topic}": Znode() for topic in topics}
    consumed = {group: consumed_topics(znodes) for group, znodes in found.items()}
    read = read_znodes(client, [topic_path(topic) for topic in sorted(set().union(*consumed.values()))])
    for group, names_of_topics in consumed.items():
        found[group] |= {path: read[path] for path in map(topic_path, names_of_topics) if path in read}
    return found


#: The folders of a group whose children are topics.
_OF_TOPICS = ("starts", "owners", "offsets")


def consumed_topics(paths: Iterable[str]) -> set[str]:
    """
    Return the topics of a group's owners, offsets and first offsets. ``paths`` has the paths of the group's znodes.
    """
    parts = (path.split("/") for path in paths)
    return {each[4] for each in parts if len(each) > 4 and each[3] in _OF_TOPICS}


def _owned_topics(client: Client, layouts: Iterable[GroupLayout]) -> list[tuple[GroupLayout, list[str]]]:
    """
    Return the topics in which each of these groups has, or had, owners.

    The function sends one request for each group. A group whose ACL denies reading is left out.
    """
    found = []
    for layout, read in [(layout, client.get_children_async(layout.owners)) for layout in layouts]:
        with suppress(NoAuthError):
            found.append((layout, _children_of(read)))
    return found


def read_tree(client: Client, path: str) -> dict[str, Znode]:
    """Read a znode and all znodes below it. The result is empty if the znode does not exist."""
    return _read_trees(client, [path])


def read_workers(client: Client, group: str) -> dict[str, Znode]:
    """
    Read the znodes of a group's workers and connectors, without the offsets of source connectors.

    The znode of the configuration offset is read last, so that the offset shows a change during this call.
    """
    layout = WorkerLayout(group)
    trees = [layout.workers, layout.connectors, layout.history, layout.statuses, layout.owners]
    return _read_trees(client, trees) | read_znodes(client, [layout.config])


def read_brokers(client: Client) -> dict[str, Znode]:
    """Read the znodes of the brokers that are registered now, and the parent of these znodes."""
    return _read_trees(client, [BROKER_IDS])


def broker_addresses(brokers: Snapshot) -> list[HostPort]:
    """Return the addresses of registered brokers. A registration without a usable address is logged and left out."""
    found = []
    for path, znode in sorted(brokers.items()):
        if path == BROKER_IDS:
            continue
        try:
            found.append(parse_broker(znode.data, path))
        except ProtocolError as error:
            log.info("%s; not asking that broker", error)
    return found


def _read_trees(client: Client, level: list[str]) -> dict[str, Znode]:
    """Read trees of znodes level by level. Every ``_MOST_READS`` znodes of a level cost two round trips."""
    found: dict[str, Znode] = {}
    while level:
        parents: list[str] = []
        found |= read_znodes(client, level, parents)
        level = []
        for portion in _portions(parents):
            reads = [(path, client.get_children_async(path)) for path in portion]
            for path, read in reads:
                try:
                    level += [f"{path}/{child}" for child in _children_of(read)]
                except NoAuthError:  # Its ACL was changed since it was read.
                    found[path] = Znode(closed=True)
    return found


def read_znodes(client: Client, paths: Sequence[str], parents: list[str] | None = None) -> dict[str, Znode]:
    """Read the znodes that exist. Append the paths of znodes with children to ``parents``."""
    found = {}
    for portion in _portions(paths):
        for path, read in [(path, client.get_async(path)) for path in portion]:
            try:
                data, stat = read.get()
            except NoNodeError:
                continue  # Deleted since its parent was read; ephemeral znodes often are.
            except NoAuthError:
                found[path] = Znode(closed=True)
                continue
            # zkCli and Kafka write null if no data is given.
            found[path] = Znode(
                data or b"",
                stat.ephemeralOwner,
                stat.ctime,
                stat.mtime,
                czxid=stat.czxid,
                mzxid=stat.mzxid,
                version=stat.version,
            )
            if parents is not None and stat.numChildren:
                parents.append(path)
    return found


def _portions(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[start : start + _MOST_READS] for start in range(0, len(paths), _MOST_READS))


def _children_of(read: Any) -> list[str]:
    try:
        return list(read.get())
    except NoNodeError:
        return []


def _subscribed(reading: GroupReading) -> set[str]:
    """Return the topics that the members of a group subscribe to. Members with unreadable znodes are left out."""
    return {topic for _, info in reading.registered() for topic in info.subscription}
