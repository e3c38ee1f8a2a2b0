"""A producer whose program is interrupted while a broker does not answer: how long it waits, and what it reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.clients.producer import Producer
from kiel_groups.errors import OutcomeUnknownError
from tests.helpers.fake_broker import PRODUCE, FakeBroker, Fault, Request

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
    loop = asyncio.new_event_loop()
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
