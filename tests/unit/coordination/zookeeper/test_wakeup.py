"""What wakes the thread that speaks to ZooKeeper: as many times as it was woken, and nobody waits to wake it."""

from __future__ import annotations

import threading

import pytest
from kazoo.protocol.states import KeeperState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.coordination.zookeeper.kazoo_handler import ImmediateHandler

pytestmark = pytest.mark.unit

#: A pair of sockets holds 278 bytes, sent one at a time.
MANY = 100_000


def test_there_is_a_wake_for_each_request_and_none_beyond() -> None:
    """kazoo takes one for each request that it sends: it looks ready for so long, and not longer."""
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


def test_a_closed_one_wakes_nobody() -> None:
    """kazoo closes both ends, one after the other; who writes later gets the error of a socket."""
    reading, writing = ImmediateHandler().create_socket_pair()
    writing.close()
    reading.close()
    for use in (lambda: writing.send(b"\0"), lambda: reading.recv(1)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


def test_a_request_never_waits_for_the_thread_that_sends_it() -> None:
    """That thread takes none while there is no server: who asks, and who closes the client, goes on all the same."""
    client = runtime.client(ZooKeeperConfig.parse("127.0.0.1:1"))
    reading, client._connection._write_sock = client.handler.create_socket_pair()
    client._state = KeeperState.CONNECTING

    def ask() -> None:
        for _ in range(MANY):
            client.get_async("/")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(120.0)
    assert not asking.is_alive()
    assert len(client._queue) == MANY
    for _ in range(MANY):
        reading.recv(1)
    with pytest.raises(BlockingIOError):
        reading.recv(1)
