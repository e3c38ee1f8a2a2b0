"""Blocking reading of all that ZooKeeper holds about a group, for tools; it changes nothing and sets no watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kazoo.exceptions import NoNodeError

from kiel_groups.config import check_name
from kiel_groups.coordination.admin import Client, zookeeper
from kiel_groups.group.layout import GroupLayout, consumer_root

__all__ = ["group_reader"]


@contextmanager
def group_reader(hosts: str, group: str) -> Iterator[Callable[[], dict[str, bytes]]]:
    """
    A function that reads the znodes of a group: path below the chroot → data, empty where there is no such group.

    Not a snapshot: a level of the tree is read after the one above it, while members come and go.

    Raises:
        ConfigError: The group's name is not legal.
        CoordinationError: ZooKeeper did not answer; also from the function.
    """
    layout = GroupLayout(check_name(group, "group"))
    with zookeeper(hosts) as client:
        yield lambda: _read(client, [layout.root, consumer_root(group)])


def _read(client: Client, level: list[str]) -> dict[str, bytes]:
    """Breadth first, each level pipelined: a round trip or two a level whatever its width."""
    found: dict[str, bytes] = {}
    while level:
        reads = [(path, client.get_async(path), client.get_children_async(path)) for path in level]
        level = []
        for path, data, children in reads:
            try:
                found[path] = data.get()[0]
                level += [f"{path}/{child}" for child in children.get()]
            except NoNodeError:
                continue  # Gone since its parent was read, as ephemeral znodes do.
    return found
