"""Read the znodes of groups, topics and brokers from ZooKeeper. The functions block, and change nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.broker_security import BrokerSecurity
from kiel_groups.config import HostPort, security_path
from kiel_groups.errors import ConfigError, CoordinationError, ProtocolError
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    Snapshot,
    Znode,
    parse_broker,
    parse_broker_version,
    parse_listeners,
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
from kiel_groups.ops.loaded_groups import unknown_group
from kiel_groups.ops.views.group_reading import GroupReading
from kiel_groups.ops.zookeeper_client import Client, broker_ids, children_of, zookeeper
from kiel_groups.security_file import table_for

log = logging.getLogger(__name__)


def registered_address(data: bytes, path: str) -> HostPort:
    """
    Return the address of a broker from its znode: that of the first listener for whose protocol the file with the
    credentials has a table, or else of the listener in plain text.

    Raises:
        ProtocolError: The data is invalid, or the broker has no such listener.
    """
    file = security_path()
    for protocol, address in parse_listeners(data, path).items() if file is not None else ():
        # A table may be for another listener of the broker.
        with suppress(ConfigError):
            if table_for(file, BrokerSecurity, [address]).protocol == protocol:
                return address
    return parse_broker(data, path)


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
                found.append(registered_address(znode.data, path))
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
            existing = found_children(client.get_children_async(TOPICS))
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
            names[folder] = set(found_children(read))
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
            found.append((layout, found_children(read)))
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
            found.append(registered_address(znode.data, path))
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
                    level += [f"{path}/{child}" for child in found_children(read)]
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


def found_children(read: Any) -> list[str]:
    """Return the children that an asynchronous read finds. A znode that does not exist has none."""
    try:
        return list(read.get())
    except NoNodeError:
        return []


def _subscribed(reading: GroupReading) -> set[str]:
    """Return the topics that the members of a group subscribe to. Members with unreadable znodes are left out."""
    return {topic for _, info in reading.registered() for topic in info.subscription}
