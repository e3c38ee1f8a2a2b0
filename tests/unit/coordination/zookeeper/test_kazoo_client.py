"""kazoo's client as ours: a Ctrl-C in the middle of a request is a Ctrl-C, a dead connection is an answer."""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.states import KeeperState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.coordination.zookeeper.kazoo_client import InterruptibleClient

pytestmark = pytest.mark.unit


class Socket:
    """The socket by which a request wakes kazoo's thread; raises, once, what is to hit it there."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.woken = 0

    def send(self, _wake: bytes) -> None:
        if self.errors:
            raise self.errors.pop()
        self.woken += 1


def client(wake: Socket | None) -> InterruptibleClient:
    """A client as a session has it, connected as far as it knows."""
    made = runtime.client(ZooKeeperConfig.parse("127.0.0.1:1"))
    assert isinstance(made, InterruptibleClient)
    made._state = KeeperState.CONNECTED
    made._connection._write_sock = wake
    return made


def test_a_ctrl_c_that_hits_a_request_is_not_swallowed() -> None:
    """kazoo's own client took it for a closed connection: the program went on, without its session."""
    wake = Socket(KeyboardInterrupt())
    interrupted = client(wake)
    with pytest.raises(KeyboardInterrupt):
        interrupted.get_async("/")
    assert wake.woken == len(interrupted._queue) == 1, "whatever is asked next, such as the close, is not held up"


@pytest.mark.parametrize("wake", [Socket(BrokenPipeError()), None])
def test_a_request_on_a_dead_connection_says_so(wake: Socket | None) -> None:
    """Its answer is the error; nothing is raised at the call."""
    answer = client(wake).get_async("/")
    assert isinstance(answer.exception, ConnectionClosedError)


def test_a_request_after_the_close_says_so() -> None:
    """What kazoo answers to a client that was closed is still its answer."""
    closed = client(Socket(AssertionError("nobody is to be woken")))
    closed._state = KeeperState.CLOSED
    assert isinstance(closed.get_async("/").exception, ConnectionClosedError)
