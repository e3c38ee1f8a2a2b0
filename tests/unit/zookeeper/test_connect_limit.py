"""The time limit of a server's answer, and of the answer to Connect: it grows until there is a session."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Connect

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.ops.zookeeper_client import zookeeper
from kiel_groups.zookeeper.kazoo_client import ImmediateHandler, SecuredClient, observe_connect
from kiel_groups.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit

TIMEOUT_S = 12.0
LIMIT_S = 1.0


class Servers:
    """The servers of a client, which answer Connect if ``healthy``. ``waits_s`` lists the timeout of each Connect."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.healthy = False
        self.client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1", session_timeout_ms=int(1000 * TIMEOUT_S)))
        self.client._connection._invoke = self.invoke
        self.granted: list[int] = []
        observe_connect(self.client, int(1000 * TIMEOUT_S), lambda session_id, _: self.granted.append(session_id))

    def invoke(self, timeout: float, _request: Any, _xid: int | None) -> Any:
        self.waits_s.append(timeout)
        if not self.healthy:
            raise TimeoutError
        return SimpleNamespace(session_id=7, time_out=1000 * TIMEOUT_S), None

    def fail(self, times: int) -> list[float]:
        """Connect ``times`` times without an answer, and return the timeouts in seconds."""
        self.waits_s.clear()
        for _ in range(times):
            with pytest.raises(TimeoutError):
                self.connect()
        return self.waits_s

    def connect(self) -> None:
        self.client._connection._invoke(TIMEOUT_S, Connect(0, 0, 0, 0, b"", False))


def test_without_a_session_each_attempt_has_twice_the_time() -> None:
    """
    Without a session, each attempt to connect has twice the time of the one before, up to kazoo's own timeout. So the
    client can connect to a slow server in the end.
    """
    waits_s = Servers().fail(2_000)
    assert waits_s[:5] == [LIMIT_S, 2 * LIMIT_S, 4 * LIMIT_S, 8 * LIMIT_S, TIMEOUT_S]
    assert set(waits_s[4:]) == {TIMEOUT_S}


def test_with_a_session_each_attempt_has_the_time_that_the_lease_allows() -> None:
    """
    With a session, each attempt to connect has the time that the lease allows, however many attempts failed before the
    session.
    """
    servers = Servers()
    servers.fail(3)
    servers.healthy = True
    servers.connect()
    assert servers.granted == [7]
    servers.client._session_id, servers.healthy = 7, False
    assert servers.fail(3) == [LIMIT_S] * 3


def test_a_connection_without_a_timeout_has_the_limit() -> None:
    """
    A connection that kazoo opens without a timeout has the limit, too. kazoo opens such connections when it looks for a
    server that accepts writes.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = ImmediateHandler(connect_limit_s=30.0).create_connection(server.getsockname())
        with connection:
            assert 0 < connection.gettimeout() <= 30.0


@pytest.fixture
def dripping() -> Iterator[str]:
    """Yield the address of a server that announces a response of 1000 bytes, and sends one of them each 20 ms."""
    ended = threading.Event()

    def drip() -> None:
        peer, _ = server.accept()
        with peer, suppress(OSError):
            peer.sendall((1000).to_bytes(4, "big"))
            while not ended.wait(0.02):
                peer.sendall(b"\0")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()


def test_the_limit_is_for_the_whole_answer(dripping: str) -> None:
    """The limit does not begin anew with each byte, and an answer without end is not read at all."""
    client = Runtime().client(ZooKeeperConfig.parse(dripping))
    with socket.create_connection(client.hosts[0]) as client._connection._socket:
        size = int.from_bytes(client._connection._read(4, 30.0))
        with pytest.raises(KazooTimeoutError):
            client._connection._read(size, 0.1)
        with pytest.raises(ConnectionDropped, match="is this a ZooKeeper server"):
            client._connection._read(int.from_bytes(b"HTTP"), 0.1)


def test_a_ctrl_c_while_a_command_gives_up_its_session_is_raised(
    dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo's ``close`` would raise an exception of its own, because its thread still waits for the server."""
    interrupted = iter([KeyboardInterrupt()])
    wait_and_close = SecuredClient._safe_close

    def close(client: SecuredClient) -> None:
        if client._connection._socket is not None:
            for error in interrupted:
                raise error
        wait_and_close(client)

    monkeypatch.setattr(SecuredClient, "_safe_close", close)
    with pytest.raises(KeyboardInterrupt), zookeeper(dripping, timeout_s=0.1):
        pass
