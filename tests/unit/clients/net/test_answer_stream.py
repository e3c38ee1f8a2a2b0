"""What arrives in pieces, what is not sent, and the ends of connections that were not closed in order."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from kiel_groups.clients.net.connection import AnswerStream, Connection, ReceiveBuffers
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerConnectionError, RequestTimeoutError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.wire.produce import ProduceRequest
from tests.helpers.fake_broker import FakeBroker
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

#: More than the kernel takes for a peer that does not read.
MUCH = 64 << 20


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """Provide a listening socket; the test accepts its connections, and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connection_to(listening: socket.socket, **settings: int) -> Connection:
    address = HostPort(*listening.getsockname())
    return Connection(address, BrokerConfig(hosts=(address,), **settings), Metrics())


def produce(acks: int, size: int = 10) -> ProduceRequest:
    return ProduceRequest(acks, 1_000, {TopicPartition("t", 0): bytes(size)})


async def opened(connection: Connection, listening: socket.socket) -> socket.socket:
    """Open the connection, and return the other side's socket."""
    await connection.wait_open()
    return listening.accept()[0]


def reset(peer: socket.socket) -> None:
    """Have the kernel send RST."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("piece_bytes", [1, 3, 7, 8, 9, 50, 10_000])
async def test_answers_come_in_pieces_of_any_size(piece_bytes: int) -> None:
    """Headers and payloads may be divided anywhere, and several answers may arrive together."""
    async with FakeBroker({"a": 1, "b": 2}) as broker:
        connection = Connection(broker.address, broker.config(), Metrics())
        stream = await connection.wait_open()
        offered = stream.get_buffer
        stream.get_buffer = lambda sizehint: offered(sizehint)[:piece_bytes]  # type: ignore[method-assign]
        for _ in range(2):
            answers = await asyncio.gather(*(connection.request(MetadataRequest((topic,))) for topic in "abab"))
            assert [answer.topics[0].topic for answer in answers if answer] == ["a", "b", "a", "b"]
        connection.close()


async def test_what_was_not_sent_is_lost_by_a_close(silent: socket.socket) -> None:
    """A produce request without an answer fails if the connection is closed before all of it has left the process."""
    connection = connection_to(silent)
    asked = asyncio.ensure_future(connection.request(produce(0, MUCH)))
    await eventually(lambda: connection._stream is not None, "the connection is open")
    await run_ready_tasks()
    assert not asked.done()
    connection.close()
    async with asyncio.timeout(5.0):
        with pytest.raises(BrokerConnectionError, match="closed by this client"):
            await asked


async def test_a_request_without_an_answer_fails_on_a_connection_that_was_reset(silent: socket.socket) -> None:
    """The event loop has not seen the reset yet, and nothing is left to be sent: the request is lost all the same."""
    connection = connection_to(silent)
    reset(await opened(connection, silent))
    with pytest.raises(BrokerConnectionError, match="reset"):
        await connection.request(produce(0))


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_broker_that_sends_no_more_ends_the_connection(silent: socket.socket, acks: int) -> None:
    """A half-closed connection ends at once, although the broker does not take the rest of a request."""
    connection = connection_to(silent, request_timeout_ms=60_000)
    with await opened(connection, silent) as peer:
        asked = asyncio.ensure_future(connection.request(produce(acks, MUCH)))
        await run_ready_tasks()
        peer.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(5.0):
            with pytest.raises(BrokerConnectionError, match="closed by the other side"):
                await asked


async def test_a_broker_that_takes_nothing_is_given_up(silent: socket.socket) -> None:
    """A request without an answer has the time-out of the others."""
    connection = connection_to(silent, request_timeout_ms=50)
    with await opened(connection, silent):
        with pytest.raises(RequestTimeoutError, match="has not taken a ProduceRequest within 50 ms"):
            await connection.request(produce(0, MUCH))
        assert connection.closed


@pytest.mark.parametrize("address", [HostPort("127.0.0.1", 70_000), HostPort("a" * 70, 9092), HostPort("a..b", 9092)])
async def test_an_address_that_is_none_cannot_be_connected(address: HostPort) -> None:
    """A broker may advertise a port or a name that cannot exist."""
    connection = Connection(address, BrokerConfig(hosts=(address,)), Metrics())
    with pytest.raises(BrokerConnectionError, match="cannot connect: "):
        await connection.request(MetadataRequest(()))


def test_a_connection_that_is_left_closes_with_its_event_loop(silent: socket.socket) -> None:
    """A program may end its loop without closing its client: no socket waits for the garbage collector."""
    connections: list[Connection] = []
    peers: list[socket.socket] = []

    async def leave() -> None:
        connections.append(connection_to(silent))
        peers.append(await opened(connections[0], silent))

    asyncio.run(leave())
    with peers[0] as peer:
        peer.settimeout(5.0)
        assert peer.recv(1) == b""
    assert connections[0].closed


async def test_half_an_answer_is_not_kept_after_the_connection(silent: socket.socket) -> None:
    """The memory of an answer whose rest was lost is free, although the connection is still referred to."""
    connection = connection_to(silent)
    peer = await opened(connection, silent)
    asked = asyncio.ensure_future(connection.request(MetadataRequest(())))
    await run_ready_tasks()
    peer.sendall(struct.pack(">ii", 1 << 20, 0) + bytes(100))
    assert connection._stream is not None
    stream = connection._stream
    await eventually(lambda: stream._payload is not None, "half of the answer is received")
    reset(peer)
    with pytest.raises(BrokerConnectionError):
        await asked
    await run_ready_tasks()
    assert stream._payload is None


async def test_a_request_without_an_answer_waits_for_the_transport_below_tls() -> None:
    """TLS passes bytes on at once. Those that the kernel has not taken would be lost with the connection."""
    stream, carrier = AnswerStream(ReceiveBuffers()), Mock()
    carrier.get_write_buffer_size.side_effect = [5, 5, 0]
    stream.carrier = carrier
    await stream.wait_written()
    assert carrier.get_write_buffer_size.call_count == 3


async def test_the_reason_of_an_end_before_the_owner_is_known_is_passed_on() -> None:
    """A broker may refuse the client's certificate after the handshake."""
    stream, owner, refusal = AnswerStream(ReceiveBuffers()), Mock(), ssl.SSLError(1, "ALERT_BAD_CERTIFICATE")
    stream.connection_made(Mock())
    stream.connection_lost(refusal)
    stream.start(owner)
    owner.lost.assert_called_once_with(refusal)
