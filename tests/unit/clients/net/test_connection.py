"""A connection to a broker whose answers are wrong, late, out of order or missing."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from contextlib import ExitStack

import pytest

from kiel_groups.clients.net.connection import Connection
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerConnectionError, KielGroupsError, ProtocolError, RequestTimeoutError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import HeartbeatRequest
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.wire.produce import ProduceRequest
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault, Request
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit


def connection_to(broker: FakeBroker, **settings: int) -> Connection:
    """Return a connection to a fake broker."""
    return Connection(broker.address, broker.config(**settings), Metrics())


async def outcome(connection: Connection, **options: int) -> object:
    """Send a metadata request, and return its answer or its error."""
    try:
        return await connection.request(MetadataRequest(("t",)), **options)
    except KielGroupsError as error:
        return error


async def test_answers_come_in_the_order_of_the_requests() -> None:
    """Requests share one connection without waiting for each other, and each request gets its own answer."""
    async with FakeBroker({"a": 1, "b": 2}) as broker:
        connection = connection_to(broker)
        answers = await asyncio.gather(*(connection.request(MetadataRequest((topic,))) for topic in "abab"))
        assert [a.topics[0].topic for a in answers if a] == ["a", "b", "a", "b"]
        assert broker.connections == 1
        connection.close()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault.CLOSE, BrokerConnectionError, "closed by the other side"),
        (Fault.HALF, BrokerConnectionError, "closed by the other side"),
        (Fault.WRONG_CORRELATION_ID, BrokerConnectionError, "(correlation id 7) that nothing was asked for"),
        (Fault.HUGE, BrokerConnectionError, "(b'HTTP'); expected 4 to 67108864. Is this a Kafka broker?"),
        (Fault.SILENT, RequestTimeoutError, "no answer to a MetadataRequest within 50 ms"),
    ],
)
async def test_a_broken_answer_ends_the_connection(
    fault: Fault, kind: type[Exception], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A faulty answer ends the connection, and each kind of fault raises its own error, which names the broker. Later
    requests fail instead of hanging. No warning repeats the error of the first answer.
    """
    async with FakeBroker({"t": 1}, script=lambda _: fault) as broker:
        connection = connection_to(broker)
        error = await outcome(connection, timeout_ms=50 if fault is Fault.SILENT else 30_000)
        assert isinstance(error, kind)
        assert str(broker.address) in str(error)
        assert words in str(error)
        assert connection.closed
        assert isinstance(await outcome(connection), KielGroupsError)
        assert not caplog.records


async def test_an_answer_that_came_before_the_timeout_counts_after_a_stall() -> None:
    """The event loop stands still while the answer arrives, and until the timeout is over."""
    asked, answered = threading.Event(), threading.Event()

    def answer(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as requests:
            (size,) = struct.unpack(">i", requests.read(4))
            correlation_id = requests.read(size)[4:8]
            assert asked.wait(30)
            peer.sendall(struct.pack(">i", 6) + correlation_id + struct.pack(">h", 0))
            answered.set()
            requests.read()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=answer, args=(listener,))
        serving.start()
        address = HostPort(*listener.getsockname())
        connection = Connection(address, BrokerConfig(hosts=(address,)), Metrics())
        await connection.wait_open()
        asking = asyncio.ensure_future(connection.request(HeartbeatRequest("g", 1, "m"), timeout_ms=500))
        await run_ready_tasks()
        asked.set()
        assert answered.wait(30)
        time.sleep(0.6)  # noqa: ASYNC251 -- the stall
        assert await asking == NO_ERROR
        assert not connection.closed
        connection.close()
        await asyncio.to_thread(serving.join, 30)


async def test_answers_out_of_order_are_matched_to_their_requests() -> None:
    """If a broker answers four requests on one connection in reverse order, each request gets its own answer."""
    topics = {"a": 1, "b": 2, "c": 3, "d": 4}
    async with FakeBroker(topics) as broker:
        broker.reversed_by = 4
        connection = connection_to(broker)
        answers = await asyncio.gather(*(connection.request(MetadataRequest((topic,))) for topic in topics))
        assert [len(answer.topics[0].partitions) for answer in answers if answer] == [1, 2, 3, 4]
        assert broker.connections == 1
        assert not connection.closed
        connection.close()


async def test_an_answer_to_no_request_leaves_the_others_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """
    If the second of four answers has a wrong correlation id, the first request succeeds, and the other three fail with
    a retriable error.
    """
    faults = iter([None, Fault.WRONG_CORRELATION_ID])
    async with FakeBroker({"t": 1}, script=lambda _: next(faults, Fault.SILENT)) as broker:
        connection = connection_to(broker)
        first, *others = await asyncio.gather(*(outcome(connection) for _ in range(4)))
        assert not isinstance(first, Exception)
        assert [type(error) for error in others] == [BrokerConnectionError] * 3
        assert all(isinstance(error, KielGroupsError) and error.retriable for error in others)
        assert "closing the connection with 3 requests in flight" in caplog.text


async def test_an_answer_over_its_bound_leaves_the_others_unknown() -> None:
    """
    A request whose answer is over its bound fails with a ProtocolError. Later requests on the connection fail with a
    connection error, which is retriable.
    """
    async with FakeBroker({"t": 100}) as broker:
        connection = connection_to(broker)
        long, other = await asyncio.gather(outcome(connection, max_response_bytes=64), outcome(connection))
        assert isinstance(long, ProtocolError)
        assert isinstance(other, BrokerConnectionError)


async def test_a_timeout_fails_the_requests_behind_it() -> None:
    """
    A broker answers requests in order, so a request that times out also fails the requests after it on the same
    connection.
    """
    async with FakeBroker({"t": 1}, script=lambda _: Fault.SILENT) as broker:
        connection = connection_to(broker)
        first, second = await asyncio.gather(outcome(connection, timeout_ms=30), outcome(connection, timeout_ms=5_000))
        assert isinstance(first, RequestTimeoutError)
        assert isinstance(second, BrokerConnectionError)


async def test_an_undecodable_answer_fails_its_own_request_only() -> None:
    """
    An answer that cannot be decoded fails only its own request. The frame was complete, so later answers can be read.
    """
    nonsense = iter([b"\x00\x00"])
    async with FakeBroker({"t": 1}, script=lambda _: next(nonsense, None)) as broker:
        connection = connection_to(broker)
        first, second = await asyncio.gather(outcome(connection), outcome(connection))
        assert isinstance(first, ProtocolError)
        assert not isinstance(second, Exception)
        connection.close()


async def test_a_cancelled_request_does_not_shift_the_answers() -> None:
    """The answer to a cancelled request is read and dropped."""
    async with FakeBroker({"a": 1, "b": 1}) as broker:
        connection = connection_to(broker)
        await connection.request(MetadataRequest(("a",)))
        forgotten = asyncio.create_task(connection.request(MetadataRequest(("a",))))
        await asyncio.sleep(0)
        forgotten.cancel()
        answer = await connection.request(MetadataRequest(("b",)))
        assert answer is not None
        assert answer.topics[0].topic == "b"
        connection.close()


async def test_a_request_without_an_answer_returns_at_once() -> None:
    """A produce request with acks 0 has no answer, so it returns at once. The next request gets its own answer."""
    async with FakeBroker({"t": 1}) as broker:
        connection = connection_to(broker)
        assert await connection.request(ProduceRequest(0, 100, {})) is None
        assert not isinstance(await outcome(connection), Exception)
        connection.close()


async def test_a_refused_connection() -> None:
    """If a broker refuses the connection, the error has the address and the reason."""
    async with FakeBroker() as broker:
        connection = connection_to(broker)
    error = await outcome(connection)
    assert isinstance(error, BrokerConnectionError)
    assert f"{broker.address}: cannot connect: Connection refused" in str(error)


async def test_an_answer_over_its_bound_is_refused() -> None:
    """A request may set a lower limit for the size of its answer. A larger answer is refused with a ProtocolError."""
    async with FakeBroker({"t": 100}) as broker:
        assert isinstance(await outcome(connection_to(broker), max_response_bytes=64), ProtocolError)


async def test_a_close_fails_the_requests_in_flight() -> None:
    """A close of the connection fails the requests in flight, which ends the wait of their callers."""
    arrived = asyncio.Event()

    def swallow(request: Request) -> Fault:
        assert request.api_key == METADATA
        arrived.set()
        return Fault.SILENT

    async with FakeBroker(script=swallow) as broker:
        connection = connection_to(broker)
        waiting = asyncio.create_task(outcome(connection))
        await arrived.wait()
        connection.close()
        assert isinstance(await waiting, BrokerConnectionError)


async def test_an_answer_that_comes_while_the_connection_is_closed_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request has failed already. The answer is dropped without a warning."""

    def close_before_the_answer(_: Request) -> None:
        connection.close()

    async with FakeBroker({"t": 1}, script=close_before_the_answer) as broker:
        connection = connection_to(broker)
        assert isinstance(await outcome(connection), BrokerConnectionError)
        assert broker.requests
        await run_ready_tasks()
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_a_close_ends_the_opening_to_a_host_that_drops_packets() -> None:
    """The request fails with the reason, and no task is left until the connect timeout."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        # The kernel drops further packets of new connections once the backlog is full.
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        address = HostPort(*full.getsockname())
        connection = Connection(address, BrokerConfig(hosts=(address,), connect_timeout_ms=60_000), Metrics())
        asked = asyncio.ensure_future(outcome(connection))
        await eventually(lambda: connection._opening is not None, "it connects")
        await run_ready_tasks()
        assert not asked.done()
        connection.close()
        async with asyncio.timeout(5.0):
            assert "closed by this client" in str(await asked)
        assert connection._opening is not None
        assert connection._opening.cancelled()
