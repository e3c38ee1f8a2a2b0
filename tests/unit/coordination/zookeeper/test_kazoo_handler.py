"""What kazoo runs on in a member: answers at once, on the thread that read them; sockets looked at with one call."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest
from kazoo.protocol.states import Callback

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.coordination.zookeeper.kazoo_handler import ImmediateHandler

pytestmark = pytest.mark.unit


@pytest.fixture
def handler() -> Iterator[ImmediateHandler]:
    started = ImmediateHandler()
    started.start()
    yield started
    started.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_members_have_it() -> None:
    """Each session's client is run by one of its own."""
    assert isinstance(runtime.client(ZooKeeperConfig.parse("127.0.0.1:1")).handler, ImmediateHandler)


def test_a_host_that_takes_no_connection_is_given_up() -> None:
    """It swallows packets, as one does that is cut off: kazoo waits no longer for it than the next server needs."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                # Its queue is full with these, and nobody empties it.
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            with pytest.raises(TimeoutError):
                ImmediateHandler(connect_limit_s=0.05).create_connection(full.getsockname(), timeout=3_600.0)
        finally:
            for each in waiting:
                each.close()


def test_members_give_such_a_host_up_while_the_lease_runs() -> None:
    """After a dead connection a sixth of the session timeout is left: enough for that host, and the next one."""
    handler = runtime.client(ZooKeeperConfig.parse("127.0.0.1:1", session_timeout_ms=12_000)).handler
    assert handler._connect_limit_s == 1.0


def test_answers_and_watches_are_told_in_their_order_on_the_calling_thread(handler: ImmediateHandler) -> None:
    """No thread stands between who reads them and who waits for them."""
    told: list[tuple[str, int]] = []
    answer = handler.async_result()
    answer.rawlink(lambda result: told.append((result.value, threading.get_ident())))
    handler.dispatch_callback(Callback("watch", lambda what: told.append((what, threading.get_ident())), ("first",)))
    answer.set("second")
    late = handler.async_result()
    late.set("third")
    late.rawlink(lambda result: told.append((result.value, threading.get_ident())))
    assert told == [(what, threading.get_ident()) for what in ("first", "second", "third")]


def test_a_callback_that_fails_stops_nobody(handler: ImmediateHandler, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the thread that reads from the server goes on."""
    answer = handler.async_result()
    answer.rawlink(lambda _: 1 / 0)
    answer.set("well")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_sockets_are_ready_as_select_says(handler: ImmediateHandler, pair: tuple[socket.socket, socket.socket]) -> None:
    """Readable with bytes or an end in sight, writable with room, neither within the time: empty lists."""
    near, far = pair
    assert handler.select([near], [], [], 0) == ([], [], [])
    assert handler.select([], [near], []) == ([], [near], [])
    far.send(b"x")
    assert handler.select([near, far], [], [], 30) == ([near], [], [])
    assert near.recv(1) == b"x"
    far.close()
    assert handler.select([near], [], [], 30) == ([near], [], [])


def test_a_closed_socket_is_an_error_as_kazoo_expects_it(
    handler: ImmediateHandler, pair: tuple[socket.socket, socket.socket]
) -> None:
    """kazoo reconnects on it, as on that of its own handler."""
    near, _ = pair
    near.close()
    with pytest.raises(ValueError, match="negative integer"):
        handler.select([near], [], [], 0)


def test_descriptors_may_be_high(handler: ImmediateHandler, pair: tuple[socket.socket, socket.socket]) -> None:
    """A program with thousands of connections has numbers that ``select.select`` refuses."""
    near, far = pair
    number = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 1), hard))
    os.dup2(near.fileno(), number)
    with socket.socket(fileno=number) as high:
        far.send(b"x")
        assert handler.select([high], [], [], 30) == ([high], [], [])
