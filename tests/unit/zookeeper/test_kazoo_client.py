"""
The subclass of kazoo's client raises Ctrl-C during a request, and answers requests on a dead connection with the error.
"""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.states import KeeperState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.kazoo_client import InterruptibleClient
from kiel_groups.zookeeper.runtime import Runtime

pytestmark = pytest.mark.unit


class Socket:
    """The socket that wakes kazoo's thread for a request. Its first calls raise ``errors``."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.woken = 0

    def send(self, _wake: bytes) -> None:
        if self.errors:
            raise self.errors.pop()
        self.woken += 1


def connected_client(wake: Socket | None) -> InterruptibleClient:
    """Return a client with a session, in the state "connected"."""
    client = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1"))
    assert isinstance(client, InterruptibleClient)
    client._state = KeeperState.CONNECTED
    client._connection._write_sock = wake
    return client


def test_a_ctrl_c_during_a_request_is_raised() -> None:
    """
    Ctrl-C during a request is raised. kazoo's own client would treat it as a closed connection, and the program would
    continue without its session.
    """
    wake = Socket(KeyboardInterrupt())
    interrupted = connected_client(wake)
    with pytest.raises(KeyboardInterrupt):
        interrupted.get_async("/")
    assert wake.woken == len(interrupted._queue) == 1, "the request is queued, and the next one is not blocked"


@pytest.mark.parametrize("wake", [Socket(BrokenPipeError()), None])
def test_a_request_on_a_dead_connection_is_answered_with_the_error(wake: Socket | None) -> None:
    """A request on a dead connection is answered with the error. The call itself raises nothing."""
    answer = connected_client(wake).get_async("/")
    assert isinstance(answer.exception, ConnectionClosedError)


def test_a_request_after_the_close_is_answered_with_the_error() -> None:
    """A request after the close is answered with the same error as by kazoo's own client."""
    closed = connected_client(Socket(AssertionError("a closed client wakes no thread")))
    closed._state = KeeperState.CLOSED
    assert isinstance(closed.get_async("/").exception, ConnectionClosedError)
