"""The paths of the znodes of a group's workers."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.layout import WorkerLayout, connector_of, history_offset_of, znode_name

pytestmark = pytest.mark.unit

LAYOUT = WorkerLayout("g.1")

PATHS = {
    "workers": (LAYOUT.workers, "/kiel-groups/g.1/workers"),
    "worker": (LAYOUT.worker("w-1"), "/kiel-groups/g.1/workers/w-1"),
    "config": (LAYOUT.config, "/kiel-groups/g.1/connect"),
    "connectors": (LAYOUT.connectors, "/kiel-groups/g.1/connect/connectors"),
    "connector": (LAYOUT.connector("a/b"), "/kiel-groups/g.1/connect/connectors/a%2Fb"),
    "history": (LAYOUT.history_entry(12), "/kiel-groups/g.1/connect/history/0000000012"),
    "status of a connector": (LAYOUT.status("c"), "/kiel-groups/g.1/connect/status/c"),
    "status of a task": (LAYOUT.status("c", 0), "/kiel-groups/g.1/connect/status/c/0"),
    "source offset": (LAYOUT.source_offset("c", "12ab"), "/kiel-groups/g.1/connect/offsets/c/12ab"),
    "owner of a connector": (LAYOUT.owner("c"), "/kiel-groups/g.1/connect/owners/c/connector"),
    "owner of a task": (LAYOUT.owner("c", 10), "/kiel-groups/g.1/connect/owners/c/10"),
}


@pytest.mark.parametrize("name", PATHS)
def test_path(name: str) -> None:
    """Each path of the workers is the one that other versions use."""
    found, expected = PATHS[name]
    assert found == expected


@pytest.mark.parametrize(
    ("connector", "znode"),
    [
        ("files", "files"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a.b", "a.b"),
        ("grüße 1", "gr%C3%BC%C3%9Fe%201"),
        ("%", "%25"),
    ],
)
def test_names_of_connectors_become_names_of_znodes(connector: str, znode: str) -> None:
    """A connector's name becomes one that ZooKeeper permits, and is read back from it."""
    assert znode_name(connector) == znode
    assert connector_of(znode) == connector


@pytest.mark.parametrize("connector", ["", "x" * 256, "\ud800"])
def test_illegal_names_of_connectors(connector: str) -> None:
    """A name that is empty, too long, or half of a surrogate pair is refused."""
    with pytest.raises(ConfigError, match="connector: "):
        znode_name(connector)


@pytest.mark.parametrize("znode", ["a b", "%2f", "%41", "%FF", "", ".", "%zz"])
def test_other_znodes_have_no_connector(znode: str) -> None:
    """A znode whose name no connector's name becomes is not the znode of a connector."""
    assert connector_of(znode) is None


def test_offsets_in_names_of_history_entries() -> None:
    """The name of a history entry has its offset, of ten digits or more; other names have none."""
    entry = LAYOUT.history_entry(10**11).rpartition("/")[2]
    assert history_offset_of(entry) == 10**11
    assert history_offset_of("0000000007") == 7
    assert [history_offset_of(name) for name in ("7", "000000000x", "")] == [None] * 3


def test_folders_are_those_above_what_workers_write() -> None:
    """Each folder that workers write into is created before, or belongs to one connector."""
    above = {path.rpartition("/")[0] for path in (LAYOUT.worker("w"), LAYOUT.connector("c"), LAYOUT.history_entry(1))}
    above |= {LAYOUT.statuses, LAYOUT.offsets, LAYOUT.owners}
    assert above == set(LAYOUT.folders)
