"""
Read a worker group from ZooKeeper for operators.

The functions run in a process that is not a worker. The functions block, and change nothing in ZooKeeper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import Snapshot, whole_number
from kiel_groups.group.znodes.layout import CONNECTOR, WorkerLayout, connector_of
from kiel_groups.group.znodes.worker_contents import ConfigChange, WorkStatus, parse_config_offset
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.ops.zookeeper_reader import read_workers
from kiel_groups.workers.stores.config_store import entry_of
from kiel_groups.workers.stores.status_store import status_of
from kiel_groups.workers.values import ConfigSnapshot, ConnectorId, TaskId, Work

#: How often the znodes are read if the configuration changes meanwhile.
_MOST_TRIES = 5


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """
    A worker group as ZooKeeper has it.

    Args:
        workers: The content of each live worker's znode, by worker id.
        configuration: All connectors.
        owners: The id of the worker that has claimed each connector or task, even work that is not configured.
        statuses: The status of each connector and task that is configured.
        history: The latest changes of the configuration, in ascending order.
        closed: The paths of znodes whose ACL denies reading. What these have is left out.
    """

    workers: Mapping[str, bytes]
    configuration: ConfigSnapshot
    owners: Mapping[Work, str]
    statuses: Mapping[Work, WorkStatus]
    history: tuple[ConfigChange, ...]
    closed: tuple[str, ...] = ()


def describe_workers(client: Client, group: str) -> WorkerGroup:
    """
    Read a worker group from ZooKeeper until two reads have the same configuration offset, at most five times.

    Raises:
        ProtocolError: The znode of the configuration offset has garbage.
    """
    config = WorkerLayout(group).config
    found = read_workers(client, group)
    for _ in range(_MOST_TRIES - 1):
        before, found = found, read_workers(client, group)
        if before.get(config) == found.get(config):
            break
    return worker_group_of(group, found)


def worker_group_of(group: str, found: Snapshot) -> WorkerGroup:
    """
    Describe the workers of a group from its znodes.

    Raises:
        ProtocolError: The znode of the configuration offset has garbage.
    """
    layout = WorkerLayout(group)
    closed = tuple(sorted(path for path, znode in found.items() if znode.closed))
    found = {path: znode for path, znode in found.items() if not znode.closed}
    children = _children(found)
    connectors = {
        name: entry_of(name, path, found[path].data, found[path].czxid)
        for znode, path in children[layout.connectors]
        if (name := connector_of(znode)) is not None
    }
    offset = parse_config_offset(found[layout.config].data, layout.config) if layout.config in found else 0
    configuration = ConfigSnapshot(offset, connectors)
    return WorkerGroup(
        workers={worker_id: found[path].data for worker_id, path in children[layout.workers]},
        configuration=configuration,
        owners=dict(_owners(layout, found, children)),
        statuses={work: _status(layout, found, work) for work in configuration.works()},
        history=tuple(_history(layout, found, children)),
        closed=closed,
    )


#: The names and paths of the children of each znode, in the order of their names.
_Children: TypeAlias = Mapping[str, Sequence[tuple[str, str]]]


def _children(found: Snapshot) -> _Children:
    children: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted(found):
        folder, _, name = path.rpartition("/")
        children[folder].append((name, path))
    return children


def _owners(layout: WorkerLayout, found: Snapshot, children: _Children) -> Iterator[tuple[Work, str]]:
    for znode, folder in children[layout.owners]:
        if (connector := connector_of(znode)) is None:
            continue
        for name, path in children[folder]:
            worker_id = found[path].data.decode(errors="replace")
            if name == CONNECTOR:
                yield ConnectorId(connector), worker_id
            elif (number := whole_number(name)) is not None:
                yield TaskId(connector, number), worker_id


def _status(layout: WorkerLayout, found: Snapshot, work: Work) -> WorkStatus:
    path = layout.status(*work)
    connector = found.get(layout.connector(work.connector))
    return status_of(path, found.get(path), found.get(layout.owner(*work)), connector)


def _history(layout: WorkerLayout, found: Snapshot, children: _Children) -> Iterator[ConfigChange]:
    for _, path in children[layout.history]:
        with suppress(ProtocolError):
            yield ConfigChange.parse(found[path].data, path)
