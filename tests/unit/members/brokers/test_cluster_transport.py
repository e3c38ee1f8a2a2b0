"""Requests to the coordinator through a client's connections, and heartbeats beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import BrokerConnectionError, RequestTimeoutError
from kiel_groups.members.brokers.transport import BeatAnswer, ClusterTransport, FindError
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest
from tests.helpers.coordinator_answers import coordinator
from tests.helpers.fake_broker import FakeBroker, Fault, Request

pytestmark = pytest.mark.unit

FIND, HEARTBEAT, LEAVE, SYNC = 10, 12, 13, 14
BEAT = HeartbeatRequest("g", 5, "m")
SYNCING = SyncGroupRequest("g", *GenerationToken(5, "m"), {})


@asynccontextmanager
async def transport_to(broker: FakeBroker, **settings: int) -> AsyncIterator[ClusterTransport]:
    """Provide a transport whose client knows the broker and its peers."""
    cluster = ClusterMetadata(broker.config(**settings), Metrics())
    transport = ClusterTransport(cluster, "g")
    try:
        await cluster.refresh((), "test")
        yield transport
    finally:
        transport.close_beats()
        cluster.close()


def coordinating(broker: FakeBroker, answers: dict[int, bytes | Fault] | None = None) -> None:
    """Have a broker name itself as the coordinator, with node id 7, and answer other requests so."""

    def script(request: Request) -> bytes | Fault | None:
        if request.api_key == FIND:
            return coordinator(0, 7, "127.0.0.1", broker.port)
        return {HEARTBEAT: bytes(2), LEAVE: bytes(2), SYNC: bytes(6), **(answers or {})}.get(request.api_key)

    broker.script = script


async def test_any_broker_names_the_coordinator() -> None:
    """The coordinator is reached at the address that a broker has named, even if metadata does not list it."""
    async with FakeBroker() as broker, transport_to(broker) as transport:
        coordinating(broker)
        assert await transport.find() == 7
        assert await transport.send(7, LeaveGroupRequest("g", "m"), 5, aside=True) == NO_ERROR


async def test_a_broker_that_names_no_coordinator_says_why() -> None:
    """
    The error has the broker's code, by which the member decides whether to ask again, and names the setting that keeps
    a cluster of too few brokers from ever having a coordinator.
    """
    async with FakeBroker() as broker, transport_to(broker) as transport:
        broker.script = lambda request: coordinator(15) if request.api_key == FIND else None
        with pytest.raises(
            FindError,
            match=r"COORDINATOR_NOT_AVAILABLE \(15\): .*; 1 broker is alive; .* offsets\.topic\.replication\.factor",
        ) as raised:
            await transport.find()
    assert raised.value.code == 15


@pytest.mark.parametrize("fault", [Fault.CLOSE, Fault.SILENT, Fault.HALF])
async def test_a_broker_that_does_not_answer_is_replaced_by_another(fault: Fault) -> None:
    """A failed question has no code, and the next one goes to another broker."""
    async with FakeBroker(node_id=1) as first, FakeBroker(node_id=2) as second:
        first.peers = second.peers = [first, second]
        first.script = lambda request: fault if request.api_key == FIND else None
        coordinating(second)
        async with transport_to(first, connect_timeout_ms=800) as transport:
            with pytest.raises(FindError, match="no broker has named the group's coordinator") as raised:
                await transport.find()
            assert raised.value.code is None
            assert await transport.find() == 7


async def test_a_coordinator_is_not_asked_first_whether_it_still_is_one() -> None:
    """One that is cut off from its cluster names itself, so another broker is asked; it is asked if that one fails."""
    async with FakeBroker(node_id=7) as cut_off, FakeBroker(node_id=8) as other:
        cut_off.peers = other.peers = [cut_off, other]
        coordinating(cut_off)
        async with transport_to(cut_off) as transport:
            assert await transport.find() == 7
            assert not other.received(FIND)
            other.script = lambda request: coordinator(15) if request.api_key == FIND else None
            with pytest.raises(FindError, match="NOT_AVAILABLE"):
                await transport.find()
            assert await transport.find() == 7
            other.script = lambda request: coordinator(0, 8, "127.0.0.1", other.port)
            assert await transport.find() == 8


async def test_a_closed_client_names_no_coordinator() -> None:
    """A question after the close of the client is an answer like any other failure."""
    async with FakeBroker() as broker:
        async with transport_to(broker) as transport:
            pass
        with pytest.raises(FindError, match="the client was closed"):
            await transport.find()


async def test_a_sync_that_waits_does_not_delay_other_requests() -> None:
    """A leave request has another connection than a join or a sync, which the coordinator holds."""
    async with FakeBroker() as broker, transport_to(broker) as transport:
        coordinating(broker, {SYNC: Fault.SILENT})
        await transport.find()
        waiting = asyncio.ensure_future(transport.send(7, SYNCING, 60))
        await broker.wait_for_requests(SYNC, 1)
        assert await transport.send(7, LeaveGroupRequest("g", "m"), 5, aside=True) == NO_ERROR
        waiting.cancel()
        await asyncio.wait({waiting})
        coordinating(broker)
        assert (await transport.send(7, SYNCING, 5)).error == NO_ERROR
        assert len({request.connection for request in broker.received(SYNC)}) == 2


async def test_an_answer_that_does_not_come_is_an_error_in_time() -> None:
    """The time of a request to the coordinator is that of its caller."""
    async with FakeBroker() as broker, transport_to(broker, request_timeout_ms=60_000) as transport:
        coordinating(broker, {SYNC: Fault.SILENT, LEAVE: Fault.CLOSE})
        await transport.find()
        with pytest.raises(RequestTimeoutError):
            await transport.send(7, SYNCING, 0.05)
        with pytest.raises(BrokerConnectionError):
            await transport.send(7, LeaveGroupRequest("g", "m"), 5, aside=True)


async def beat(transport: ClusterTransport, limit_s: float = 20.0) -> BeatAnswer:
    """Send a heartbeat from a thread, and return its one answer."""
    answers: list[BeatAnswer] = []
    await asyncio.to_thread(transport.beat, 7, BEAT, limit_s, answers.append)
    (answer,) = answers
    return answer


async def test_a_heartbeat_has_a_connection_of_its_own() -> None:
    """The code of the answer is returned."""
    async with FakeBroker() as broker, transport_to(broker) as transport:
        coordinating(broker, {HEARTBEAT: b"\x00\x1b"})
        await transport.find()
        assert await beat(transport) == BeatAnswer(27)


# The answer of SHORT is a valid one, with an unknown code.
@pytest.mark.parametrize("answer", [*(each for each in Fault if each is not Fault.SHORT), b"", b"\x00"])
async def test_a_heartbeat_without_a_good_answer_proves_nothing(answer: Fault | bytes) -> None:
    """Whatever comes in place of an answer, the heartbeat has an answer without a code, and a reason."""
    async with FakeBroker() as broker, transport_to(broker) as transport:
        coordinating(broker, {HEARTBEAT: answer})
        await transport.find()
        found = await beat(transport, 0.2)
        assert found.code is None
        assert found.failure.startswith(f"127.0.0.1:{broker.port}: ")
        coordinating(broker)
        assert await beat(transport) == BeatAnswer(0)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("a..b", 9092), ("x" * 300, 9092), ("", -1)])
async def test_an_address_that_is_none_proves_nothing(host: str, port: int) -> None:
    """A broker may advertise a name or a port that is none; that does not end the heartbeat's thread."""
    async with FakeBroker() as broker, transport_to(broker) as transport:
        broker.script = lambda request: coordinator(0, 7, host, port) if request.api_key == FIND else None
        await transport.find()
        assert (await beat(transport)).code is None
