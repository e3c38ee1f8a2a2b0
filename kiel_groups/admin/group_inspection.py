"""Blocking reading of all that ZooKeeper holds about groups, for tools; it changes nothing and sets no watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.admin.cluster_admin import Client, broker_ids, zookeeper
from kiel_groups.config import check_name
from kiel_groups.errors import CoordinationError, ProtocolError, UnknownGroupError
from kiel_groups.group.znodes.contents import GroupSettings, MemberInfo
from kiel_groups.group.znodes.layout import (
    BROKER_IDS,
    CONSUMERS,
    KIEL_GROUPS,
    ROOT,
    GroupLayout,
    consumer_root,
    topic_path,
)
from kiel_groups.group.znodes.snapshot import Snapshot, Znode

__all__ = [
    "check_group",
    "group_reader",
    "list_groups",
    "list_members",
    "read_brokers",
    "read_group",
    "read_outlines",
    "read_plan",
    "read_settings",
]

#: Reads that are under way at once; more only fill kazoo's queue.
_MOST_READS = 1_000


@contextmanager
def group_reader(hosts: str, group: str) -> Iterator[Callable[[], Snapshot]]:
    """
    A function that reads the znodes of a group, on one session: ``read_group`` without its client.

    Raises:
        ConfigError: The group's name is not legal.
        CoordinationError: ZooKeeper did not answer; also from the function.
    """
    check_name(group, "group")
    with zookeeper(hosts) as client:
        yield lambda: read_group(client, group)


def read_group(client: Client, group: str) -> dict[str, Znode]:
    """
    All znodes of a group: ours, Kafka's and kiel's, and those of the topics that it subscribes to or has offsets in.

    Nothing but brokers and topics where there is no such group. Znodes whose ACL keeps this reader out are ``closed``.
    """
    layout = GroupLayout(group)
    found = _read_trees(client, [layout.root, consumer_root(group), layout.kiel_members])
    folders = (f"{layout.owners}/", f"{layout.offsets}/")
    topics = {path.split("/")[4] for path in found if path.startswith(folders)}
    members = [(path, znode.data) for path, znode in found.items() if path.startswith(f"{layout.members}/")]
    topics |= {topic for path, data in members for topic in _subscribed(path, data)}
    return found | _read(client, [topic_path(topic) for topic in sorted(topics)])


def read_settings(hosts: str, group: str) -> GroupSettings | None:
    """
    What the members of a group agreed on; None where it never had one.

    Raises:
        CoordinationError: ZooKeeper did not answer.
        ProtocolError: The znode holds something else.
    """
    path = GroupLayout(group).config
    with zookeeper(hosts) as client:
        try:
            data, _ = client.get(path)
        except NoNodeError:
            return None
    return GroupSettings.parse(data, path)


def list_groups(client: Client) -> list[str]:
    """
    The names of all groups: ours, of Kafka's consumers, of kiel's; in the order of the alphabet.

    Raises:
        CoordinationError: One of the folders that groups stand in is closed to this reader.
    """
    reads = [(folder, client.get_children_async(folder)) for folder in (ROOT, CONSUMERS, KIEL_GROUPS)]
    names: set[str] = set()
    for folder, read in reads:
        try:
            names.update(_children_of(read))
        except NoAuthError:
            raise CoordinationError(
                f"ZooKeeper refuses to list {folder}: its ACL keeps us out; let the world read that folder"
            ) from None
    return sorted(names)


def check_group(client: Client, group: str, place: str) -> None:
    """
    Refuse a group that there is not; ``place`` is what to call ZooKeeper.

    Raises:
        UnknownGroupError: Nothing of it stands in ZooKeeper; names one that is called alike.
        CoordinationError: As of ``list_groups``.
    """
    groups = list_groups(client)
    if group in groups:
        return
    text = f"group {group!r} does not exist in ZooKeeper at {place}"
    if near := get_close_matches(group, groups, 1):
        raise UnknownGroupError(f"{text}; did you mean {near[0]!r}?")
    if groups:
        raise UnknownGroupError(f"{text}; 'kiel-groups groups' lists the {len(groups)} that do")
    aside = "" if broker_ids(client) else ", and no broker: is the chroot right?"
    raise UnknownGroupError(f"{text}, nor does any other{aside}")


def list_members(client: Client, group: str) -> list[str]:
    """The ids of a group's members, in the order of the alphabet."""
    return sorted(_children_of(client.get_children_async(GroupLayout(group).members)))


def read_outlines(client: Client, groups: Iterable[str], *, offsets: bool) -> dict[str, Znode]:
    """Who is in each of these groups, and their pointers; with ``offsets`` what they have committed, too."""
    layouts = [GroupLayout(group) for group in groups]
    trees = [folder for layout in layouts for folder in (layout.members, layout.election, layout.ids)]
    trees += [layout.kiel_members for layout in layouts]
    trees += [layout.offsets for layout in layouts] if offsets else []
    found = _read_trees(client, trees)
    return found | _read(client, [path for layout in layouts for path in (layout.root, layout.group_state)])


def read_plan(client: Client, group: str) -> dict[str, Znode]:
    """The pointer of a group, and the slices below it."""
    return _read_trees(client, [GroupLayout(group).group_state])


def read_brokers(client: Client) -> dict[str, Znode]:
    """The registrations of the brokers that live at this moment."""
    return _read_trees(client, [BROKER_IDS])


def _read_trees(client: Client, level: list[str]) -> dict[str, Znode]:
    """Breadth first, each level pipelined: two round trips a level whatever its width."""
    found: dict[str, Znode] = {}
    while level:
        parents: list[str] = []
        found |= _read(client, level, parents)
        level = []
        for some in _portions(parents):
            reads = [(path, client.get_children_async(path)) for path in some]
            for path, read in reads:
                try:
                    level += [f"{path}/{child}" for child in _children_of(read)]
                except NoAuthError:  # Closed since it was read.
                    found[path] = Znode(closed=True)
    return found


def _read(client: Client, paths: Sequence[str], parents: list[str] | None = None) -> dict[str, Znode]:
    """Those of the znodes that are there; the paths of those that have children are added to ``parents``."""
    found = {}
    for some in _portions(paths):
        for path, read in [(path, client.get_async(path)) for path in some]:
            try:
                data, stat = read.get()
            except NoNodeError:
                continue  # Gone since its parent was read, as ephemeral znodes do.
            except NoAuthError:
                found[path] = Znode(closed=True)
                continue
            # zkCli and Kafka make znodes without any data: null.
            found[path] = Znode(
                data or b"", stat.ephemeralOwner, stat.ctime, stat.mtime, czxid=stat.czxid, mzxid=stat.mzxid
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


def _subscribed(member_id: str, data: bytes) -> tuple[str, ...]:
    """The topics of a member; whoever makes a picture of the group says that its znode is unreadable."""
    try:
        return MemberInfo.parse(member_id, data, member_id).subscription
    except ProtocolError:
        return ()
