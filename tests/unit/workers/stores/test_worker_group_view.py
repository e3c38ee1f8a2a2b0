"""A worker group as tools see it, from its znodes."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import StoredConnector, WorkState, WorkStatus, encode_config_offset
from kiel_groups.workers.stores.worker_group_view import worker_group_of
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId

pytestmark = pytest.mark.unit

LAYOUT = WorkerLayout("g")
RUNNING = WorkStatus(WorkState.RUNNING, "h:1")
UNASSIGNED = WorkStatus(WorkState.UNASSIGNED, "")


def test_a_group_without_workers_is_empty() -> None:
    """A group in which no worker has ever run has the configuration offset 0."""
    group = worker_group_of("g", {})
    assert group.configuration == ConfigSnapshot()
    assert (group.workers, group.owners, group.statuses, group.history) == ({}, {}, {}, ())


def test_garbage_and_foreign_znodes_do_not_hide_the_rest() -> None:
    """One unreadable connector has a problem; an unreadable entry and znodes of other names are left out."""
    found = {
        LAYOUT.config: Znode(encode_config_offset(5)),
        LAYOUT.connectors: Znode(),
        LAYOUT.connector("a/b"): Znode(StoredConnector(name="a/b", config={}, tasks=({},)).encode(), czxid=2),
        LAYOUT.connector("bad"): Znode(b"{"),
        f"{LAYOUT.connectors}/a b": Znode(),
        LAYOUT.history_entry(5): Znode(b"{"),
        LAYOUT.history_entry(6): Znode(closed=True),
        LAYOUT.worker("w"): Znode(b"{}"),
        LAYOUT.connector_owners("a/b"): Znode(),
        LAYOUT.owner("a/b", 0): Znode(b"w", czxid=3),
        LAYOUT.connector_owners("gone"): Znode(),
        LAYOUT.owner("gone"): Znode(b"w"),
        f"{LAYOUT.connector_owners('a/b')}/x": Znode(b"w"),
        f"{LAYOUT.owners}/a b/0": Znode(b"w"),
        LAYOUT.status("a/b"): Znode(),
        LAYOUT.status("a/b", 0): Znode(RUNNING.encode(), mzxid=4),
        LAYOUT.status("a/b", 7): Znode(RUNNING.encode(), mzxid=4),
    }
    group = worker_group_of("g", found)
    assert group.configuration.offset == 5
    assert group.configuration.connectors["a/b"] == ConnectorEntry({}, tasks=({},))
    assert group.configuration.connectors["bad"].problem
    assert group.workers == {"w": b"{}"}
    assert group.owners == {TaskId("a/b", 0): "w", ConnectorId("gone"): "w"}
    assert group.statuses == {
        ConnectorId("a/b"): UNASSIGNED,
        ConnectorId("bad"): UNASSIGNED,
        TaskId("a/b", 0): RUNNING,
    }
    assert (group.history, group.closed) == ((), (LAYOUT.history_entry(6),))


def test_garbage_in_the_offsets_znode_is_an_error() -> None:
    """Without a configuration offset there is no configuration to describe."""
    with pytest.raises(ProtocolError, match=LAYOUT.config):
        worker_group_of("g", {LAYOUT.config: Znode(b"{")})
