"""The close of a producer: what it sends, how long it waits, and the outcome of the remaining records."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import (
    ClosedError,
    OutcomeUnknownError,
)
from tests.helpers.fake_broker import PRODUCE, FakeBroker, Fault, Request
from tests.helpers.producers import T0, producing, stored

pytestmark = pytest.mark.unit


async def test_a_close_sends_waiting_records() -> None:
    """A close first sends all waiting records. Afterwards, the producer accepts no record."""
    async with FakeBroker({"t": 2}) as broker:
        producer = Producer(str(broker.address), batch_size=2, linger_ms=60_000)
        future = producer.produce("t", b"x", partition=0)
        await producer.close()
        assert future.result().offset == 0
        assert stored(broker, T0) == [(None, b"x")]
        with pytest.raises(ClosedError):
            await producer.produce("t", b"y")
        await producer.close()


async def test_a_close_waits_no_longer_than_its_timeout() -> None:
    """
    After its timeout, a close ends: the outcome of sent records is unknown, and all other records have failed. Both
    kinds are counted.
    """

    def script(request: Request) -> Fault | None:
        return Fault.SILENT if request.api_key == PRODUCE else None

    broker = FakeBroker({"t": 2}, script=script)
    # Without a linger time, the first request has the records of both partitions.
    async with producing(broker, backoff_ms=60_000, max_backoff_ms=60_000, linger_ms=0) as (_, producer):
        lost = [producer.produce("t", b"x", partition=n % 2) for n in range(10)]
        lost.append(producer.produce("unknown", b"x"))
        await broker.wait_for_requests(PRODUCE, 1)
        await producer.close(timeout_ms=20)
        *sent, unsent = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(outcome) for outcome in sent] == [OutcomeUnknownError] * 10
        assert isinstance(unsent, ClosedError)
        assert isinstance(sent[0].__cause__, ClosedError)
        assert (sent[3].topic, sent[3].partition, sent[3].code) == ("t", 1, None)
        assert producer.buffered_bytes == 0
        assert producer.metrics.counter("produce_unknown") == 10
        assert producer.metrics.counter("produce_failures") == 1


async def test_a_close_of_an_idle_producer_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The close of a producer whose records are all stored logs no warning, even with a timeout of 0."""
    async with producing() as (_, producer):
        await producer.produce("t", b"stored", partition=0)
        await producer.close(timeout_ms=0)
    assert "not acknowledged" not in caplog.text


async def test_a_close_without_a_timeout_ends_when_a_broker_stores_nothing() -> None:
    """
    If a broker stores nothing, a close without a timeout ends after one request timeout. The outcome of sent records is
    then unknown, and all other records have failed.
    """
    answers = iter([None, None])

    def script(request: Request) -> Fault | None:
        return next(answers, Fault.SILENT) if request.api_key == PRODUCE else None

    settings = {"retries": 1_000, "request_timeout_ms": 1_000, "ack_timeout": 50, "batch_size": 1, "linger_ms": 0}
    async with producing(FakeBroker({"t": 2}, script=script), **settings) as (broker, producer):
        await producer.produce("t", b"stored", partition=0)
        outcomes = [producer.produce("t", b"in flight", partition=0)]
        await broker.wait_for_requests(PRODUCE, 2)
        outcomes.append(producer.produce("t", b"sent", partition=0))
        await broker.wait_for_requests(PRODUCE, 3)
        outcomes.append(producer.produce("t", b"queued", partition=0))
        began_s = asyncio.get_running_loop().time()
        await producer.close()
        assert 1.0 < asyncio.get_running_loop().time() - began_s < 8
        kinds = [type(outcome) for outcome in await asyncio.gather(*outcomes, return_exceptions=True)]
        assert kinds == [RecordMetadata, OutcomeUnknownError, ClosedError]


async def test_a_close_without_a_timeout_waits_while_records_are_stored() -> None:
    """
    A close without a timeout waits as long as records are stored, here for six batches of a third of the request
    timeout each.
    """
    broker = FakeBroker({"t": 2})
    broker.gates[PRODUCE] = asyncio.Event()
    settings = {"request_timeout_ms": 1_200, "ack_timeout": 50, "batch_size": 1, "linger_ms": 0}

    async def answer_slowly() -> None:
        while True:
            await asyncio.sleep(0.4)
            broker.gates[PRODUCE].set()
            broker.gates[PRODUCE].clear()

    async with producing(broker, **settings) as (_, producer):
        answering = asyncio.create_task(answer_slowly())
        outcomes = [producer.produce("t", bytes(500_000), partition=0) for _ in range(6)]
        await producer.close()
        assert [outcome.result().offset for outcome in outcomes] == list(range(6))
        answering.cancel()
