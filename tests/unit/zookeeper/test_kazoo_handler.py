"""
The handler of kazoo's client runs callbacks on the thread that reads the answers, and polls sockets with one call.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator

import pytest
from kazoo.protocol.states import Callback

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.kazoo_client import ImmediateHandler
from kiel_groups.zookeeper.runtime import Runtime

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


def test_the_client_of_a_session_has_this_handler() -> None:
    """The runtime creates clients with an ImmediateHandler."""
    assert isinstance(Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1")).handler, ImmediateHandler)


def test_an_attempt_to_connect_is_limited() -> None:
    """An attempt to connect ends after the limit, so that time remains for the next server if a host drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                # These connections fill the server's queue, which no thread empties.
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            with pytest.raises(TimeoutError):
                ImmediateHandler(connect_limit_s=0.05).create_connection(full.getsockname(), timeout=3_600.0)
        finally:
            for each in waiting:
                each.close()


def test_the_limit_leaves_time_within_the_lease() -> None:
    """
    The limit is a twelfth of the session timeout. After a connection has died, a sixth remains: enough for that host
    and the next one.
    """
    handler = Runtime().client(ZooKeeperConfig.parse("127.0.0.1:1", session_timeout_ms=12_000)).handler
    assert handler._connect_limit_s == 1.0


def test_callbacks_run_in_order_on_the_calling_thread(handler: ImmediateHandler) -> None:
    """Callbacks of answers and watches run in order, on the thread that delivers them."""
    seen: list[tuple[str, int]] = []
    answer = handler.async_result()
    answer.rawlink(lambda result: seen.append((result.value, threading.get_ident())))
    handler.dispatch_callback(Callback("watch", lambda what: seen.append((what, threading.get_ident())), ("first",)))
    answer.set("second")
    late = handler.async_result()
    late.set("third")
    late.rawlink(lambda result: seen.append((result.value, threading.get_ident())))
    assert seen == [(what, threading.get_ident()) for what in ("first", "second", "third")]


def test_an_error_in_a_callback_is_logged(handler: ImmediateHandler, caplog: pytest.LogCaptureFixture) -> None:
    """An error in a callback is logged and not raised, so the thread that reads from the server continues."""
    answer = handler.async_result()
    answer.rawlink(lambda _: 1 / 0)
    answer.set("value")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


def test_sockets_are_polled_as_by_select(handler: ImmediateHandler, pair: tuple[socket.socket, socket.socket]) -> None:
    """
    ``select()`` reports a socket as readable if it has bytes or is at its end, and as writable if it has space. After
    the timeout, the lists are empty.
    """
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
    """
    ``select()`` with a closed socket raises the same error as kazoo's own handler. kazoo reconnects after this error.
    """
    near, _ = pair
    near.close()
    with pytest.raises(ValueError, match="negative integer"):
        handler.select([near], [], [], 0)


def test_descriptors_may_have_high_numbers(
    handler: ImmediateHandler, pair: tuple[socket.socket, socket.socket]
) -> None:
    """
    ``select()`` accepts descriptors with high numbers, as in a program with thousands of connections. ``select.select``
    cannot poll them.
    """
    near, far = pair
    number = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + 1), hard))
    os.dup2(near.fileno(), number)
    with socket.socket(fileno=number) as high:
        far.send(b"x")
        assert handler.select([high], [], [], 30) == ([high], [], [])
