"""The transaction log of a real ZooKeeper server contains the writes of its clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kiel_groups.embedded import ZooKeeperServer
from tests.chaos.transaction_log import Create, Delete, EndSession, Put, committed

pytestmark = pytest.mark.integration


def test_every_write_is_read_back(start_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """Creates, sets, deletes, transactions and ends of sessions are read in order, with their zxids and sessions."""
    server = start_zookeeper("3.9.5")
    client = KazooClient(server.hosts)
    client.start()
    session = client.client_id[0]
    _, created = client.create("/lasting", b"\x00first", include_data=True)
    changed = client.set("/lasting", b"second")
    _, ephemeral = client.create("/ephemeral", json.dumps({"pid": 7}).encode(), ephemeral=True, include_data=True)
    failed = client.transaction()
    failed.set_data("/lasting", b"never")
    failed.delete("/missing")
    assert isinstance(failed.commit()[1], NoNodeError)
    both = client.transaction()
    both.set_data("/lasting", b"third")
    both.delete("/ephemeral")
    both.commit()
    last = client.exists("/lasting")
    client.stop()
    client.close()

    logged = committed([logs_of(server)], majority=1)
    writes = [entry for entry in logged if entry.writes and entry.session == session]
    assert [entry.writes for entry in writes] == [
        (Create("/lasting", b"\x00first", False),),
        (Put("/lasting", b"second"),),
        (Create("/ephemeral", b'{"pid": 7}', True),),
        (Put("/lasting", b"third"), Delete("/ephemeral")),
        (EndSession(),),
    ]
    assert [entry.zxid for entry in writes[:4]] == [created.czxid, changed.mzxid, ephemeral.czxid, last.mzxid]
    assert [entry.at_ms for entry in writes[:4]] == [created.ctime, changed.mtime, ephemeral.ctime, last.mtime]


def test_a_commit_needs_a_majority(tmp_path: Path, start_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """A transaction that only one server of three has logged was not committed."""
    server = start_zookeeper("3.9.5")
    create_znode(server, "/one")
    assert committed([logs_of(server), tmp_path, tmp_path]) == []
    assert (Create("/one", b"", False),) in [
        entry.writes for entry in committed([logs_of(server), logs_of(server), tmp_path])
    ]


def create_znode(server: ZooKeeperServer, path: str) -> None:
    client = KazooClient(server.hosts)
    client.start()
    client.create(path)
    client.stop()
    client.close()


def logs_of(server: ZooKeeperServer) -> Path:
    return server.folder / "data" / "version-2"
