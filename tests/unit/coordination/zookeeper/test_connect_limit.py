"""How long a server has for answering Connect: little where a lease runs on, more and more where none does."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.serialization import Connect

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.coordination.zookeeper.kazoo_client import observe_connect
from kiel_groups.coordination.zookeeper.kazoo_handler import ImmediateHandler

pytestmark = pytest.mark.unit

TIMEOUT_S = 12.0
LIMIT_S = 1.0


class Servers:
    """Those behind a client; each Connect is noted with the time that it has, and answered where they are well."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.well = False
        self.client = runtime.client(ZooKeeperConfig.parse("127.0.0.1:1", session_timeout_ms=int(1000 * TIMEOUT_S)))
        self.client._connection._invoke = self.invoke
        self.granted: list[int] = []
        observe_connect(self.client, int(1000 * TIMEOUT_S), lambda session_id, _: self.granted.append(session_id))

    def invoke(self, timeout: float, _request: Any, _xid: int | None) -> Any:
        self.waits_s.append(timeout)
        if not self.well:
            raise TimeoutError
        return SimpleNamespace(session_id=7, time_out=1000 * TIMEOUT_S), None

    def fail(self, times: int) -> list[float]:
        """The times that so many attempts had, in seconds."""
        self.waits_s.clear()
        for _ in range(times):
            with pytest.raises(TimeoutError):
                self.connect()
        return self.waits_s

    def connect(self) -> None:
        self.client._connection._invoke(TIMEOUT_S, Connect(0, 0, 0, 0, b"", False))


def test_slow_servers_are_joined() -> None:
    """Without a session each attempt has twice the time of the last one, up to that of kazoo's own."""
    waits_s = Servers().fail(2_000)
    assert waits_s[:5] == [LIMIT_S, 2 * LIMIT_S, 4 * LIMIT_S, 8 * LIMIT_S, TIMEOUT_S]
    assert set(waits_s[4:]) == {TIMEOUT_S}


def test_a_lease_has_no_time_for_slow_servers() -> None:
    """With a session each has as much as the lease allows, however long the first one took."""
    servers = Servers()
    servers.fail(3)
    servers.well = True
    servers.connect()
    assert servers.granted == [7]
    servers.client._session_id, servers.well = 7, False
    assert servers.fail(3) == [LIMIT_S] * 3


def test_a_connection_without_a_time_of_its_own_has_the_limit() -> None:
    """kazoo opens such ones to find a server that may be written to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = ImmediateHandler(connect_limit_s=30.0).create_connection(server.getsockname())
        with connection:
            assert 0 < connection.gettimeout() <= 30.0
