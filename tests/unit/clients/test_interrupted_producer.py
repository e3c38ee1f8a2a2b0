"""A producer whose program is interrupted while a broker does not answer: how long it waits, and what it reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tornado import gen
from tornado.ioloop import IOLoop

from kiel_groups.clients import GroupedConsumer, SingleConsumer
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import ClosedError, OutcomeUnknownError
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import METADATA, PRODUCE, FakeBroker, Fault, Request
from tests.helpers.running_time import RunningTimeLoop

pytestmark = pytest.mark.unit

#: How long a producer waits for an answer. Without its own shorter limit, a close would wait longer than this.
REQUEST_TIMEOUT_MS = 8_000
#: Two seconds are documented. The rest is for slow computers.
LONGEST_S = 6.0


def frozen(request: Request) -> Fault | None:
    """Answer all requests except produce requests."""
    return Fault.SILENT if request.api_key == PRODUCE else None


async def producing(broker: FakeBroker) -> tuple[Producer, asyncio.Future[Any]]:
    """Return a producer, and the future of a record that was sent and is not acknowledged."""
    producer = Producer([str(broker.address)], linger_ms=0, request_timeout_ms=REQUEST_TIMEOUT_MS, backoff_ms=2)
    await producer.connect()
    outcome = producer.produce("t", b"x")
    await broker.wait_for_requests(PRODUCE, 1)
    return producer, outcome


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that the test starts and stops, as a program does."""
    loop = RunningTimeLoop()
    yield loop
    loop.close()


def test_a_close_after_the_loop_has_stopped_gives_up_within_two_seconds(loop: asyncio.AbstractEventLoop) -> None:
    """
    A ``close()`` after the event loop has stopped, as after Ctrl-C, runs the loop for at most two seconds if a broker
    does not answer. The outcome of the record is then unknown.
    """
    broker = FakeBroker({"t": 1}, script=frozen)
    loop.run_until_complete(broker.__aenter__())
    producer, outcome = loop.run_until_complete(producing(broker))
    closing = producer.close()
    assert closing.done(), "it was given up by the loop, after five seconds"
    assert isinstance(outcome.exception(), OutcomeUnknownError)
    loop.run_until_complete(broker.stop())


def left_by(io_loop: IOLoop, program: Callable[[], Any], ends: asyncio.Future[Any]) -> None:
    """Run a program of kiel's style on the loop, until ``ends`` is done, as Ctrl-C ends a loop."""
    io_loop.add_callback(program)
    io_loop.add_future(ends, lambda _: io_loop.stop())
    io_loop.start()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_endless_loop_around_produce_is_not_resumed_by_a_close(
    caplog: pytest.LogCaptureFixture, batch_size: int
) -> None:
    """
    A program for kiel produces in an endless loop, and closes the producer after Ctrl-C has ended its event loop. The
    close stores what was accepted, and the coroutine stays suspended, without a traceback. Only if the program runs its
    loop again, calls of the closed producer fail.
    """
    io_loop = IOLoop(make_current=True)
    loop = io_loop.asyncio_loop  # type: ignore[attr-defined]
    broker = FakeBroker({"t": 1})
    loop.run_until_complete(broker.__aenter__())
    producer, sent = Producer([str(broker.address)], batch_size=batch_size), []
    enough: asyncio.Future[None] = loop.create_future()

    @gen.coroutine
    def program() -> Any:
        yield producer.connect()
        while True:
            sent.append(None)
            if len(sent) == 10:
                enough.set_result(None)
            yield producer.produce("t", {"number": len(sent)})

    left_by(io_loop, program, enough)
    assert producer.close().done()
    assert producer.unsent_count == 0
    assert broker.logs[TopicPartition("t", 0)].end >= 10 - batch_size
    count = len(sent)

    @gen.coroutine
    def again() -> Any:
        with pytest.raises(ClosedError):
            yield producer.produce("t", {})

    loop.run_until_complete(again())
    assert len(sent) == count
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    loop.run_until_complete(broker.stop())
    io_loop.close(all_fds=True)


def test_a_close_sends_records_that_were_produced_before_the_loop_ran() -> None:
    """
    A plain script, such as one written for another client, may never run a loop: its records must not vanish. The close
    runs the loop.
    """
    io_loop = IOLoop(make_current=True)
    loop = io_loop.asyncio_loop  # type: ignore[attr-defined]
    broker = FakeBroker({"t": 1})
    loop.run_until_complete(broker.__aenter__())
    producer = Producer([str(broker.address)])
    outcome, several = producer.produce("t", b"1"), producer.produce_many("t", [b"2", b"3"])
    each = producer.produce_many("t", [b"4"], each=True)
    assert producer.unsent_count == 4
    assert producer.close().done()
    assert producer.unsent_count == 0
    assert (outcome.result().offset, several.result(), each[0].result().offset) == (0, 2, 3)
    late = producer.produce("t", b"5")
    with pytest.raises(ClosedError):
        loop.run_until_complete(late)
    loop.run_until_complete(broker.stop())
    io_loop.close(all_fds=True)


def test_records_produced_before_a_loop_that_never_runs_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """The program has produced before it has called ``asyncio.run``, for instance, which makes a loop of its own."""
    io_loop = IOLoop(make_current=True)
    producer = Producer(["127.0.0.1:1"])
    producer.produce_many("t", [b"x"] * 2)
    io_loop.close(all_fds=True)
    producer.close()
    assert "2 records were not sent: the event loop ended" in caplog.text


@pytest.mark.parametrize("kind", [Producer, SingleConsumer, GroupedConsumer])
def test_a_connect_under_way_is_not_resumed_by_a_close(caplog: pytest.LogCaptureFixture, kind: type[Any]) -> None:
    """If Ctrl-C comes while a client connects, its ``close()`` leaves the program's coroutine suspended, too."""
    io_loop = IOLoop(make_current=True)
    loop = io_loop.asyncio_loop  # type: ignore[attr-defined]
    broker = FakeBroker({"t": 1}, script=lambda _: Fault.SILENT)
    loop.run_until_complete(broker.__aenter__())
    further = ["group", "127.0.0.1:1"] if kind is GroupedConsumer else []
    client, resumed = kind([str(broker.address)], *further), []

    @gen.coroutine
    def program() -> Any:
        try:
            yield client.connect()
        except Exception as error:
            resumed.append(error)
            raise

    left_by(io_loop, program, asyncio.ensure_future(broker.wait_for_requests(METADATA, 1), loop=loop))
    assert client.close().done()
    assert resumed == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    loop.run_until_complete(broker.stop())
    io_loop.close(all_fds=True)


async def test_a_block_that_is_cancelled_gives_up_within_two_seconds() -> None:
    """
    If a producer's block is cancelled, as by ``asyncio.run()`` at Ctrl-C, it ends within two seconds even if a broker
    does not answer. The outcome of the record is then unknown.
    """
    async with FakeBroker({"t": 1}, script=frozen) as broker:
        producer, outcome = await producing(broker)
        entered = asyncio.Event()

        async def block() -> None:
            async with producer:
                entered.set()
                await asyncio.Event().wait()

        program = asyncio.create_task(block())
        await entered.wait()
        program.cancel()
        done, _ = await asyncio.wait({program}, timeout=LONGEST_S)
        assert done
        assert program.cancelled()
        assert isinstance(outcome.exception(), OutcomeUnknownError)


def test_records_not_acknowledged_when_the_loop_is_closed_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """
    If the event loop is closed before the producer, the outcome of records that were sent is unknown. Records that were
    never sent have failed.
    """
    caplog.set_level(logging.ERROR)

    async def leave() -> Producer:
        async with FakeBroker({"t": 1}, script=frozen) as broker:
            producer, _ = await producing(broker)
            for _ in range(2):
                producer.produce("unknown", b"y")
        return producer

    producer = asyncio.run(leave())
    producer.close()
    assert "1 record may or may not be stored: the event loop ended" in caplog.text
    assert "2 records were not sent: the event loop ended" in caplog.text
    assert producer.metrics.counter("produce_unknown") == 1
    assert producer.metrics.counter("produce_failures") == 2
