"""The blocking connection of heartbeats, against a server that misbehaves as a test says."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import ProtocolError
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.wire.error_codes import NO_ERROR, REBALANCE_IN_PROGRESS
from kiel_groups.wire.group_requests import HeartbeatRequest
from tests.helpers.running_time import running_s

pytestmark = pytest.mark.unit

BEAT = HeartbeatRequest("g", 5, "m")
OK = struct.pack(">h", 0)


class Received:
    """A request that a server has received, and the socket to answer it on."""

    def __init__(self, link: socket.socket, correlation_id: int) -> None:
        self.link = link
        self.correlation_id = correlation_id

    def answer(self, body: bytes = OK, *, add: int = 0) -> None:
        frame = struct.pack(">i", self.correlation_id + add) + body
        self.link.sendall(struct.pack(">i", len(frame)) + frame)


@contextmanager
def server(*behaviours: Callable[[Received], None]) -> Iterator[HostPort]:
    """Serve one connection after the other. Each request gets the next behaviour, which may close its connection."""
    left = list(behaviours)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while left:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            with link, suppress(OSError):
                while left and link.fileno() >= 0 and (head := link.recv(4, socket.MSG_WAITALL)):
                    frame = link.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                    left.pop(0)(Received(link, struct.unpack_from(">i", frame, 4)[0]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield HostPort(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


@pytest.fixture
def connection() -> Iterator[HeartbeatConnection]:
    connection = HeartbeatConnection(BrokerConfig(hosts=(), client_id="client"))
    yield connection
    connection.close()


def good(received: Received) -> None:
    received.answer()


def test_requests_share_a_connection(connection: HeartbeatConnection) -> None:
    """Each request has its own correlation id, and the codes of answers are returned."""
    ids: list[int] = []

    def rebalancing(received: Received) -> None:
        ids.append(received.correlation_id)
        received.answer(struct.pack(">h", 27))

    with server(lambda received: (ids.append(received.correlation_id), good(received))[0], rebalancing) as address:
        assert connection.request(address, BEAT, 5) == NO_ERROR
        assert connection.request(address, BEAT, 5) == REBALANCE_IN_PROGRESS
    assert ids == [1, 2]


def in_parts(received: Received) -> None:
    for byte in struct.pack(">iih", 6, received.correlation_id, 0):
        received.link.sendall(bytes([byte]))


def test_an_answer_may_come_in_parts(connection: HeartbeatConnection) -> None:
    """An answer is complete when its last byte has arrived."""
    with server(in_parts) as address:
        assert connection.request(address, BEAT, 5) == NO_ERROR


def half(received: Received) -> None:
    received.link.sendall(struct.pack(">ii", 6, received.correlation_id))
    received.link.close()


BAD: dict[str, tuple[Callable[[Received], None], type[Exception], str]] = {
    "another correlation id": (lambda received: received.answer(add=-1), ProtocolError, "an answer to another request"),
    "half an answer": (half, ConnectionError, "closed by the other side"),
    "no answer": (lambda received: received.link.close(), ConnectionError, "closed by the other side"),
    "too short": (lambda received: received.answer(b""), ProtocolError, "heartbeat response"),
    "too long": (lambda received: received.answer(OK + b"more"), ProtocolError, "heartbeat response"),
    "no broker": (lambda received: received.link.sendall(b"HTTP/1.1 400"), ProtocolError, "Is this a Kafka broker"),
}


@pytest.mark.parametrize("case", BAD)
def test_after_a_failure_the_next_request_has_a_new_connection(connection: HeartbeatConnection, case: str) -> None:
    """What is left of a bad answer is not taken for the answer to the next request."""
    behaviour, kind, words = BAD[case]
    with server(behaviour, good) as address:
        with pytest.raises(kind, match=words):
            connection.request(address, BEAT, 5)
        assert connection.request(address, BEAT, 5) == NO_ERROR


def test_a_late_answer_is_not_that_to_the_next_request(connection: HeartbeatConnection) -> None:
    """A coordinator that hangs for longer than the limit costs its connection; its late answer is lost with that."""
    waits = threading.Event()

    def late(received: Received) -> None:
        waits.wait(5)
        received.answer(struct.pack(">h", 25))

    with server(late, good) as address:
        started_s = running_s()
        with pytest.raises(TimeoutError):
            connection.request(address, BEAT, 0.1)
        assert running_s() - started_s < 3
        waits.set()
        assert connection.request(address, BEAT, 5) == NO_ERROR


def test_the_limit_is_for_the_whole_answer(connection: HeartbeatConnection) -> None:
    """A coordinator that sends a byte at a time does not extend the limit."""

    def dripping(received: Received) -> None:
        for byte in struct.pack(">iih", 6, received.correlation_id, 0):
            received.link.sendall(bytes([byte]))
            time.sleep(0.05)

    with server(dripping) as address, pytest.raises(TimeoutError):
        connection.request(address, BEAT, 0.2)


def test_another_coordinator_has_another_connection(connection: HeartbeatConnection) -> None:
    """A request to another address closes the connection to the last one."""
    with server(good, good) as first, server(good) as second:
        for address in (first, second, first):
            assert connection.request(address, BEAT, 5) == NO_ERROR


def test_a_coordinator_that_is_down_is_an_error(connection: HeartbeatConnection) -> None:
    """A refused connection is an OSError, and the next request tries again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = HostPort(*listener.getsockname())
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            connection.request(address, BEAT, 5)
