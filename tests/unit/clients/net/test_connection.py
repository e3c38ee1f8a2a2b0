"""A broker answers wrongly, late, out of order or not at all on one connection."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tornado.ioloop import IOLoop

from kiel_groups.clients.calls.eager_methods import started
from kiel_groups.clients.net.backoff import Backoff
from kiel_groups.clients.net.connection import Connection
from kiel_groups.errors import BrokerConnectionError, KielGroupsError, ProtocolError, RequestTimeoutError
from kiel_groups.metrics import Metrics
from kiel_groups.wire.api.metadata_v0 import MetadataRequest
from kiel_groups.wire.api.produce_v0 import ProduceRequest
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault, Request

pytestmark = pytest.mark.unit


def connection(broker: FakeBroker, **settings: int) -> Connection:
    return Connection(broker.address, broker.config(**settings), Metrics())


async def outcome(link: Connection, **options: int) -> object:
    """The answer to a metadata request, or the error it ended with."""
    try:
        return await link.request(MetadataRequest(("t",)), **options)
    except KielGroupsError as error:
        return error


async def test_answers_come_in_the_order_of_the_requests() -> None:
    """Pipelined requests share one connection, and each gets its own answer."""
    async with FakeBroker({"a": 1, "b": 2}) as broker:
        link = connection(broker)
        answers = await asyncio.gather(*(link.request(MetadataRequest((topic,))) for topic in "abab"))
        assert [a.topics[0].topic for a in answers if a] == ["a", "b", "a", "b"]
        assert broker.connections == 1
        link.close()


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault.CLOSE, BrokerConnectionError, "closed by the other side"),
        (Fault.HALF, BrokerConnectionError, "closed by the other side"),
        (Fault.WRONG_CORRELATION_ID, BrokerConnectionError, "(correlation id 7) that nothing was asked for"),
        (Fault.HUGE, BrokerConnectionError, "Is this a Kafka broker?"),
        (Fault.SILENT, RequestTimeoutError, "no answer to a MetadataRequest within 50 ms"),
    ],
)
async def test_a_broken_answer_ends_the_connection(fault: Fault, kind: type[Exception], words: str) -> None:
    """Every way to answer badly gives an error of its own that names the broker, and no later request hangs."""
    async with FakeBroker({"t": 1}, script=lambda _: fault) as broker:
        link = connection(broker)
        error = await outcome(link, timeout_ms=50)
        assert isinstance(error, kind)
        assert str(broker.address) in str(error)
        assert words in str(error)
        assert link.closed
        assert isinstance(await outcome(link), KielGroupsError)


async def test_answers_out_of_order_find_their_requests() -> None:
    """Four requests on one connection, answered the last one first: each gets its own answer."""
    topics = {"a": 1, "b": 2, "c": 3, "d": 4}
    async with FakeBroker(topics) as broker:
        broker.reversed_by = 4
        link = connection(broker)
        answers = await asyncio.gather(*(link.request(MetadataRequest((topic,))) for topic in topics))
        assert [len(answer.topics[0].partitions) for answer in answers if answer] == [1, 2, 3, 4]
        assert broker.connections == 1
        assert not link.closed
        link.close()


async def test_an_answer_to_no_request_leaves_the_others_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """The second of four answers has a wrong correlation id: the first request succeeds, the others may be repeated."""
    faults = iter([None, Fault.WRONG_CORRELATION_ID])
    async with FakeBroker({"t": 1}, script=lambda _: next(faults, Fault.SILENT)) as broker:
        link = connection(broker)
        first, *others = await asyncio.gather(*(outcome(link) for _ in range(4)))
        assert not isinstance(first, Exception)
        assert [type(error) for error in others] == [BrokerConnectionError] * 3
        assert all(isinstance(error, KielGroupsError) and error.retriable for error in others)
        assert "closing the connection with 3 requests in flight" in caplog.text


async def test_an_answer_over_its_bound_leaves_the_others_unknown() -> None:
    """The one that asked for less fails for good; what stands behind it may be asked again."""
    async with FakeBroker({"t": 100}) as broker:
        link = connection(broker)
        long, other = await asyncio.gather(outcome(link, max_response_bytes=64), outcome(link))
        assert isinstance(long, ProtocolError)
        assert isinstance(other, BrokerConnectionError)


async def test_a_timeout_fails_what_stood_behind_it() -> None:
    """A broker answers in turn: what stands behind a request that it is stuck with is asked again elsewhere."""
    async with FakeBroker({"t": 1}, script=lambda _: Fault.SILENT) as broker:
        link = connection(broker)
        first, second = await asyncio.gather(outcome(link, timeout_ms=30), outcome(link, timeout_ms=5_000))
        assert isinstance(first, RequestTimeoutError)
        assert isinstance(second, BrokerConnectionError)


async def test_an_undecodable_answer_fails_its_own_request_only() -> None:
    """A whole frame with nonsense in it leaves the connection in step."""
    nonsense = iter([b"\x00\x00"])
    async with FakeBroker({"t": 1}, script=lambda _: next(nonsense, None)) as broker:
        link = connection(broker)
        first, second = await asyncio.gather(outcome(link), outcome(link))
        assert isinstance(first, ProtocolError)
        assert not isinstance(second, Exception)
        link.close()


async def test_a_cancelled_request_does_not_shift_the_answers() -> None:
    """The answer to a request that nobody waits for any more is read and dropped."""
    async with FakeBroker({"a": 1, "b": 1}) as broker:
        link = connection(broker)
        await link.request(MetadataRequest(("a",)))
        forgotten = asyncio.create_task(link.request(MetadataRequest(("a",))))
        await asyncio.sleep(0)
        forgotten.cancel()
        answer = await link.request(MetadataRequest(("b",)))
        assert answer is not None
        assert answer.topics[0].topic == "b"
        link.close()


async def test_a_request_without_an_answer_returns_at_once() -> None:
    """Acks 0 waits for nothing, and what follows on the connection still gets the right answer."""
    async with FakeBroker({"t": 1}) as broker:
        link = connection(broker)
        assert await link.request(ProduceRequest(0, 100, {})) is None
        assert not isinstance(await outcome(link), Exception)
        link.close()


async def test_nobody_listens() -> None:
    """A refused connection says where and why."""
    async with FakeBroker() as broker:
        link = connection(broker)
    error = await outcome(link)
    assert isinstance(error, BrokerConnectionError)
    assert f"{broker.address}: cannot connect: Connection refused" in str(error)


async def test_an_answer_over_its_bound_is_refused() -> None:
    """A request may bound its own answer more tightly than the connection."""
    async with FakeBroker({"t": 100}) as broker:
        assert isinstance(await outcome(connection(broker), max_response_bytes=64), ProtocolError)


async def test_closing_fails_what_is_in_flight() -> None:
    """Nobody is left waiting on a connection that its client closed."""
    arrived = asyncio.Event()

    def swallow(request: Request) -> Fault:
        assert request.api_key == METADATA
        arrived.set()
        return Fault.SILENT

    async with FakeBroker(script=swallow) as broker:
        link = connection(broker)
        waiting = asyncio.create_task(outcome(link))
        await arrived.wait()
        link.close()
        assert isinstance(await waiting, BrokerConnectionError)


def test_backoff_doubles_up_to_its_ceiling_and_takes_jitter_off() -> None:
    """Delays grow by doubling, end at the ceiling, and jitter only ever shortens them."""
    backoff = Backoff(base_ms=100, max_ms=1_000, jitter=0.5)
    assert [backoff.delay_s(n, lambda: 0.0) for n in (0, 1, 2, 3, 5, 10_000)] == [0, 0.1, 0.2, 0.4, 1.0, 1.0]
    assert backoff.delay_s(1, lambda: 0.999) == pytest.approx(0.05, rel=0.01)


class _Worker:
    """Something with public methods that work without being awaited."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @started
    async def work(self, name: str) -> str:
        await asyncio.sleep(0)
        if name == "bad":
            raise ValueError("it went wrong")
        self.done.append(name)
        return name


async def test_a_started_method_works_without_being_awaited() -> None:
    """The work is done although the future was dropped, and awaiting it gives the result."""
    worker = _Worker()
    worker.work("dropped")
    assert await worker.work("awaited") == "awaited"
    assert worker.done == ["dropped", "awaited"]


async def test_a_failure_is_logged_only_when_nobody_awaits_it(caplog: pytest.LogCaptureFixture) -> None:
    """The package's log has the failure of a dropped future, and not of one whose error was raised somewhere."""
    # Garbage of earlier tests may log, too, when it is collected.
    gc.collect()
    caplog.clear()
    worker = _Worker()
    with pytest.raises(ValueError, match="it went wrong"):
        await worker.work("bad")
    gc.collect()
    assert not caplog.records
    await asyncio.wait([worker.work("bad")])
    # Its last callbacks come after that of wait().
    await asyncio.sleep(0)
    gc.collect()

    assert [(r.name, "_Worker.work failed" in r.message) for r in caplog.records] == [
        ("kiel_groups.clients.calls.eager_methods", True)
    ]


def test_a_started_method_before_a_loop_runs() -> None:
    """Its work is done as soon as the loop runs that Tornado's programs run."""
    loop = IOLoop(make_current=True)
    try:
        early = _Worker().work("early")
        assert not early.done()
        assert loop.run_sync(lambda: early) == "early"
    finally:
        loop.close(all_fds=True)
