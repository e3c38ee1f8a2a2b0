"""Producing as kiel's programs do: records wait for a whole batch of them, and a failure reaches who produces."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import PRODUCE, FakeBroker
from test_clients_producer import T0, T1, producing, stored

from kiel_groups.clients.producer import Producer, RecordMetadata
from kiel_groups.errors import BrokerError, UnknownTopicError
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


def place(broker: FakeBroker) -> list[int]:
    return [len(broker.logs[tp].entries) for tp in (T0, T1)]


async def test_records_wait_for_a_batch_of_them() -> None:
    """Over all partitions; each is awaited in turn without a deadlock, and the last one knows where it is stored."""
    async with producing(linger_ms=None, batch_size=4) as (broker, producer):
        for n in range(3):
            assert await producer.produce("t", n, partition=n % 2) == RecordMetadata("t", -1, -1)
        await asyncio.sleep(0.02)
        assert broker.count(PRODUCE) == 0
        assert await producer.produce("t", 3, partition=1) == RecordMetadata("t", 1, 1)
        assert stored(broker, T0) == [(None, b"0"), (None, b"2")]
        assert stored(broker, T1) == [(None, b"1"), (None, b"3")]
        assert broker.count(PRODUCE) == 1


async def test_nobody_needs_to_await_a_record() -> None:
    """What fills batches goes out by itself; the rest goes along, or waits on."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        for n in range(5):
            producer.produce("t", n, partition=0)
        await broker.until_asked(PRODUCE, 1)
        await asyncio.sleep(0.02)
        assert [value for _, value in stored(broker, T0)][:4] == [b"0", b"1", b"2", b"3"]
        await producer.flush()
        assert [value for _, value in stored(broker, T0)][4:] == [b"4"]


@pytest.mark.parametrize("end", ["flush", "close"])
async def test_less_than_a_batch_waits_for_the_end(end: str) -> None:
    """flush() and close() send it, however few records it has."""
    async with producing(linger_ms=None, batch_size=100) as (broker, producer):
        await producer.produce("t", "x", partition=0)
        await getattr(producer, end)()
        assert stored(broker, T0) == [(None, b'"x"')]


@pytest.mark.parametrize("end", ["produce", "flush", "close"])
async def test_a_failed_delivery_reaches_the_caller(end: str) -> None:
    """Of whichever record of the batch it was: its own future was done long before."""
    async with producing(linger_ms=None, batch_size=3) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 17)
        await producer.produce("t", 0, partition=0)
        await producer.produce("t", 1, partition=1)
        ending = producer.produce("t", 2, partition=1) if end == "produce" else getattr(producer, end)()
        with pytest.raises(BrokerError, match="producing to t:0 failed") as caught:
            await ending
        assert caught.value.code == 17
        assert place(broker)[0] == 0
        assert place(broker)[1] >= 1, "the others are stored"


async def test_a_failure_is_told_once() -> None:
    """The next batch is another one."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 17)
        await producer.produce("t", 0, partition=0)
        with pytest.raises(BrokerError):
            await producer.produce("t", 1, partition=0)
        await producer.produce("t", 2, partition=0)
        assert (await producer.produce("t", 3, partition=0)).offset == 1


async def test_a_batch_with_an_unknown_topic_ends() -> None:
    """Records that find no place must not hold the others up, and are told of."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        await producer.produce("nope", 0)
        with pytest.raises(UnknownTopicError, match="nope"):
            await producer.produce("t", 1, partition=0)
        assert stored(broker, T0) == [(None, b"1")]


async def test_the_first_batch_of_a_topic() -> None:
    """Records that wait for their topic's partitions go out with their batch."""
    async with FakeBroker({"u": 1}) as broker:
        producer = Producer(str(broker.address), batch_size=2)
        await producer.produce("u", 0)
        assert (await producer.produce("u", 1)).offset == 1
        assert [value for _, value in stored(broker, TopicPartition("u", 0))] == [b"0", b"1"]
        await producer.close()


async def test_a_batch_of_one_goes_out_at_once() -> None:
    """As by default; what is produced while the broker is busy goes together all the same."""
    async with FakeBroker({"t": 1}) as broker, Producer(str(broker.address)) as producer:
        outcomes = await asyncio.gather(*(producer.produce("t", n) for n in range(100)))
        assert [outcome.offset for outcome in outcomes] == list(range(100))
        assert broker.count(PRODUCE) == 1


async def test_an_exception_on_its_way_is_not_hidden_by_a_failed_delivery() -> None:
    """The failure is logged; the program's own error is what its author has to see."""

    async def fail() -> None:
        async with producing(linger_ms=None, batch_size=2) as (broker, producer):
            broker.fail_next(PRODUCE, T0, 17)
            await producer.produce("t", 0, partition=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


def test_a_close_outside_of_the_loop_sends_what_waits() -> None:
    """As after a Ctrl-C out of a loop that does not run any more."""
    loop = asyncio.new_event_loop()
    broker = FakeBroker({"t": 1})
    loop.run_until_complete(broker.__aenter__())
    producer = Producer(str(broker.address), batch_size=10)
    for n in range(3):

        async def produce(n: int = n) -> None:
            await producer.produce("t", n)

        loop.run_until_complete(produce())
    closing = producer.close()
    assert closing.done()
    assert closing.exception() is None
    assert [value for _, value in stored(broker, T0)] == [b"0", b"1", b"2"]
    loop.run_until_complete(broker.__aexit__())
    loop.close()
