"""Wake-ups of the thread that sends to ZooKeeper: each is received once, and none blocks its sender."""

from __future__ import annotations

import threading

import pytest
from kazoo.protocol.states import KeeperState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.kazoo_client import ImmediateHandler
from kiel_groups.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit

#: More than the 278 bytes, sent one at a time, that fit into the buffer of a socket pair.
MANY = 10_000


def test_each_wakeup_is_received_once() -> None:
    """kazoo receives one byte for each wake-up. The socket is ready while unread bytes remain."""
    handler = ImmediateHandler()
    reading, writing = handler.create_socket_pair()
    assert handler.select([reading], [], [], 0) == ([], [], [])
    writing.send(b"\0")
    writing.send(b"\0\0")
    for _ in range(3):
        assert handler.select([reading], [], [], 0) == ([reading], [], [])
        assert reading.recv(1) == b"\0"
    assert handler.select([reading], [], [], 0) == ([], [], [])
    with pytest.raises(BlockingIOError):
        reading.recv(1)


def test_a_closed_socket_raises_an_error() -> None:
    """After kazoo has closed both ends, a call raises the same error as a real socket."""
    reading, writing = ImmediateHandler().create_socket_pair()
    writing.close()
    reading.close()
    for use in (lambda: writing.send(b"\0"), lambda: reading.recv(1)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


def test_a_request_never_waits_for_the_thread_that_sends_it() -> None:
    """
    A request never waits for the thread that sends it, even if that thread receives no wake-ups because there is no
    server.
    """
    client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1"))
    reading, client._connection._write_sock = client.handler.create_socket_pair()
    client._state = KeeperState.CONNECTING

    def request_many() -> None:
        for _ in range(MANY):
            client.get_async("/")

    requests = threading.Thread(target=request_many, daemon=True)
    requests.start()
    requests.join(120.0)
    assert not requests.is_alive()
    assert len(client._queue) == MANY
    for _ in range(MANY):
        reading.recv(1)
    with pytest.raises(BlockingIOError):
        reading.recv(1)
