"""Producing as kiel's programs do: records wait for a whole batch of them, and a failure reaches who produces."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from kiel_groups.clients.producer import Producer, RecordMetadata
from kiel_groups.errors import BrokerError, UnknownTopicError
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import PRODUCE, FakeBroker
from tests.helpers.producers import T0, T1, producing, stored

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
        await broker.wait_for_requests(PRODUCE, 1)
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


async def test_a_full_buffer_ends_the_wait() -> None:
    """The record that fills it completes its batch: who awaits each record is never refused."""
    async with producing(linger_ms=None, batch_size=1_000, max_buffered_bytes=10_000) as (broker, producer):
        places = [await producer.produce("t", "x" * 1_000, partition=0) for _ in range(25)]
        assert [n for n, place in enumerate(places) if place.offset >= 0] == [9, 19]
        assert broker.count(PRODUCE) == 2
        await producer.flush()
        assert len(broker.logs[T0].entries) == 25


async def test_drain_sends_what_waits() -> None:
    """Whatever the batch lacks; a failure among it is told by the next that ends a wait."""
    async with producing(linger_ms=None, batch_size=1_000, max_buffered_bytes=10_000) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 17)
        for n in range(7):
            await producer.produce("t", "x" * 1_000, partition=n % 2)
        assert producer.unsent_count == 7
        await asyncio.wait_for(producer.drain(), 5)
        assert producer.buffered_bytes <= 5_000
        with pytest.raises(BrokerError, match="producing to t:0 failed"):
            await producer.flush()
        assert producer.unsent_count == 0


@pytest.mark.parametrize("batch_size", [0, None])
async def test_no_batch_size_is_one(batch_size: int | None) -> None:
    """Each record goes out at once, as with kiel."""
    async with producing(linger_ms=None, batch_size=batch_size) as (_, producer):
        assert producer.batch_size == 1
        assert (await producer.produce("t", "x", partition=0)).offset == 0


async def test_wind_down_sends_what_waits() -> None:
    """And the producer may go on."""
    async with producing(linger_ms=None, batch_size=10) as (broker, producer):
        await producer.produce("t", "x", partition=0)
        await producer.wind_down()
        assert stored(broker, T0) == [(None, b'"x"')]
        assert not producer.closing
        await producer.produce("t", "y", partition=0)
        await producer.close()
        assert producer.closing
        assert len(stored(broker, T0)) == 2


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


def test_records_of_before_the_loop() -> None:
    """What is produced before any loop runs is sent when one does; closing then waits for it."""
    loop = IOLoop(make_current=True)
    broker = FakeBroker({"t": 1})
    loop.run_sync(broker.__aenter__)
    producer = Producer(str(broker.address))
    early = producer.produce("t", "early")
    assert loop.run_sync(lambda: early) == RecordMetadata("t", 0, 0)
    loop.run_sync(producer.close)
    loop.run_sync(broker.__aexit__)
    loop.close(all_fds=True)


@pytest.mark.parametrize(("settings", "wanted"), [({}, (-1, 500)), ({"required_acks": 2, "ack_timeout": 0}, (2, 0))])
async def test_acknowledgements_as_asked_for(settings: dict[str, int], wanted: tuple[int, int]) -> None:
    """All in-sync replicas within 500 ms unless told otherwise, as brokers read it."""
    async with FakeBroker({"t": 1}) as broker, Producer(str(broker.address), **settings) as producer:
        await producer.produce("t", "x")
        (request,) = broker.received(PRODUCE)
        assert struct.unpack_from(">hi", request.body) == wanted


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 1.5},
        {"batch_size": -1},
        {"ack_timeout": 0.5},
        {"ack_timeout": 1 << 31},
        {"required_acks": -2},
        {"required_acks": True},
        {"required_acks": 1 << 15},
        {"linger_ms": 0.5},
        {"retries": "3"},
        {"max_buffered_bytes": 0},
        {"compression": 7},
        {"compression": "zip"},
    ],
    ids=str,
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    """A ValueError at once that names the setting and what was given, not a broken request later."""
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name}: '?{value}"):
        Producer("localhost", **settings)


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
