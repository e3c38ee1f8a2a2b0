"""
Producing in rounds, as programs of kiel do: records wait for a full batch, and its failure is raised to the caller.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from tornado.ioloop import IOLoop

from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.clients.producer import Producer
from kiel_groups.errors import BrokerError, UnknownTopicError
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import PRODUCE, FakeBroker
from tests.helpers.producers import T0, T1, producing, stored
from tests.helpers.running_time import RunningTimeLoop
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit


def stored_counts(broker: FakeBroker) -> list[int]:
    """Return the number of messages in each partition."""
    return [len(broker.logs[tp].entries) for tp in (T0, T1)]


async def test_records_wait_for_a_full_round() -> None:
    """
    Records wait until their round is full. A round has records of all partitions, and a caller that awaits each record
    in turn is not blocked.
    """
    async with producing(linger_ms=None, batch_size=4) as (broker, producer):
        for n in range(3):
            assert await producer.produce("t", n, partition=n % 2) == RecordMetadata("t", -1, -1)
        await throughout(lambda: broker.count(PRODUCE) == 0, "an incomplete round is not sent", 0.02)
        assert await producer.produce("t", 3, partition=1) == RecordMetadata("t", 1, 1)
        assert stored(broker, T0) == [(None, b"0"), (None, b"2")]
        assert stored(broker, T1) == [(None, b"1"), (None, b"3")]
        assert broker.count(PRODUCE) == 1


async def test_records_need_not_be_awaited() -> None:
    """Full rounds are sent without being awaited. The remaining records wait for a flush."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        for n in range(5):
            producer.produce("t", n, partition=0)
        await eventually(lambda: len(stored(broker, T0)) >= 4, "two rounds are stored")
        assert [value for _, value in stored(broker, T0)][:4] == [b"0", b"1", b"2", b"3"]
        await producer.flush()
        assert [value for _, value in stored(broker, T0)][4:] == [b"4"]


@pytest.mark.parametrize("method", ["flush", "close"])
async def test_flush_and_close_send_an_incomplete_round(method: str) -> None:
    """A flush or a close sends a round that is not full."""
    async with producing(linger_ms=None, batch_size=100) as (broker, producer):
        await producer.produce("t", "x", partition=0)
        await getattr(producer, method)()
        assert stored(broker, T0) == [(None, b'"x"')]


@pytest.mark.parametrize(("batch_bytes", "requests"), [(5_000, 6), (900 << 10, 2)])
async def test_a_full_buffer_completes_the_round(batch_bytes: int, requests: int) -> None:
    """When the buffer is full, the round is sent. So a program that awaits each record is never refused."""
    settings = {"batch_size": 1_000, "batch_bytes": batch_bytes, "max_buffered_bytes": 10_000}
    async with producing(linger_ms=None, **settings) as (broker, producer):
        places = [await producer.produce("t", b"x" * 1_000, partition=0) for _ in range(25)]
        assert [n for n, place in enumerate(places) if place.offset >= 0] == [9, 19]
        assert broker.count(PRODUCE) == requests
        await producer.flush()
        assert len(broker.logs[T0].entries) == 25


async def test_drain_sends_an_incomplete_round() -> None:
    """
    ``drain()`` sends an incomplete round. If a record of the round fails, the next call that ends a round raises the
    error.
    """
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
async def test_without_a_batch_size_each_record_is_sent_at_once(batch_size: int | None) -> None:
    """A batch size of None or 0 means 1, as in kiel, so each record is sent at once."""
    async with producing(linger_ms=None, batch_size=batch_size) as (_, producer):
        assert producer.batch_size == 1
        assert (await producer.produce("t", "x", partition=0)).offset == 0


async def test_wind_down_sends_an_incomplete_round() -> None:
    """``wind_down()`` sends an incomplete round. The producer can still be used afterwards."""
    async with producing(linger_ms=None, batch_size=10) as (broker, producer):
        await producer.produce("t", "x", partition=0)
        await producer.wind_down()
        assert stored(broker, T0) == [(None, b'"x"')]
        assert not producer.closing
        await producer.produce("t", "y", partition=0)
        await producer.close()
        assert producer.closing
        assert len(stored(broker, T0)) == 2


@pytest.mark.parametrize("method", ["produce", "flush", "close"])
async def test_a_failed_record_fails_the_end_of_its_round(method: str) -> None:
    """
    The call that ends a round raises the error of any failed record of the round, even one whose future was done long
    before.
    """
    async with producing(linger_ms=None, batch_size=3) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 17)
        await producer.produce("t", 0, partition=0)
        await producer.produce("t", 1, partition=1)
        ending = producer.produce("t", 2, partition=1) if method == "produce" else getattr(producer, method)()
        with pytest.raises(BrokerError, match="producing to t:0 failed") as caught:
            await ending
        assert caught.value.code == 17
        assert stored_counts(broker)[0] == 0
        assert stored_counts(broker)[1] >= 1, "the others are stored"


async def test_a_failure_is_raised_once() -> None:
    """The failure of a record is raised once: the next round does not raise it again."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        broker.fail_next(PRODUCE, T0, 17)
        await producer.produce("t", 0, partition=0)
        with pytest.raises(BrokerError):
            await producer.produce("t", 1, partition=0)
        await producer.produce("t", 2, partition=0)
        assert (await producer.produce("t", 3, partition=0)).offset == 1


@pytest.mark.parametrize("code", [0, 17])
async def test_a_round_has_its_outcome_around_records_of_produce_many(code: int) -> None:
    """They are in one batch while a broker is busy: those of the round, others, and more of the round."""
    async with producing(linger_ms=None, batch_size=6) as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        many = [producer.produce_many("t", [b"busy"], partitions=0)]
        await broker.wait_for_requests(PRODUCE, 1)
        broker.fail_next(PRODUCE, T0, 0, code)
        waiting = [producer.produce("t", b"0", partition=0)]
        many.append(producer.produce_many("t", [b"many"] * 2, partitions=0))
        waiting += [producer.produce("t", b"%d" % number, partition=0) for number in range(1, 5)]
        last = producer.produce("t", b"5", partition=0)
        assert {future.result() for future in waiting} == {("t", -1, -1)}
        broker.gates[PRODUCE].set()
        outcomes = await asyncio.gather(*many, last, return_exceptions=True)
        values = [b"busy", b"0", b"many", b"many", b"1", b"2", b"3", b"4", b"5"]
        assert [value for _, value in stored(broker, T0)] == (values[:1] if code else values)
        assert outcomes[:1] == [1]
        if code:
            assert [type(outcome) for outcome in outcomes[1:]] == [BrokerError] * 2
        else:
            assert outcomes[1:] == [2, ("t", 0, 8)]


async def test_a_round_with_an_unknown_topic_ends() -> None:
    """A round with a record of an unknown topic stores its other records, and raises the error of the unknown topic."""
    async with producing(linger_ms=None, batch_size=2) as (broker, producer):
        await producer.produce("nope", 0)
        with pytest.raises(UnknownTopicError, match="nope"):
            await producer.produce("t", 1, partition=0)
        assert stored(broker, T0) == [(None, b"1")]


async def test_the_first_round_of_a_topic() -> None:
    """Records that wait for their topic's partitions to become known are sent with their round."""
    async with FakeBroker({"u": 1}) as broker:
        producer = Producer(str(broker.address), batch_size=2)
        await producer.produce("u", 0)
        assert (await producer.produce("u", 1)).offset == 1
        assert [value for _, value in stored(broker, TopicPartition("u", 0))] == [b"0", b"1"]
        await producer.close()


async def test_a_round_of_one_record_is_sent_at_once() -> None:
    """
    The default batch size is 1, so a round of one record is sent at once. Records produced at the same time are still
    sent in one request.
    """
    async with FakeBroker({"t": 1}) as broker, Producer(str(broker.address)) as producer:
        outcomes = await asyncio.gather(*(producer.produce("t", n) for n in range(100)))
        assert [outcome.offset for outcome in outcomes] == list(range(100))
        assert broker.count(PRODUCE) == 1


async def test_a_failed_record_does_not_hide_the_programs_own_exception() -> None:
    """
    If the program raises an exception within the producer's block, that exception is raised, not the failure of a
    record.
    """

    async def fail() -> None:
        async with producing(linger_ms=None, batch_size=2) as (broker, producer):
            broker.fail_next(PRODUCE, T0, 17)
            await producer.produce("t", 0, partition=0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


def test_records_may_be_produced_before_the_loop_runs() -> None:
    """A record may be produced before the loop runs. It is sent when the loop runs."""
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
async def test_requests_have_the_configured_acknowledgements(settings: dict[str, int], wanted: tuple[int, int]) -> None:
    """
    Produce requests have the configured acks and timeout. By default, all in-sync replicas have to acknowledge within
    500 ms.
    """
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
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    """The constructor refuses an invalid setting with a ValueError that has the setting and the given value."""
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name}: '?{value}"):
        Producer("localhost", **settings)


def test_a_close_outside_of_the_loop_sends_waiting_records() -> None:
    """A ``close()`` outside of the loop, as after Ctrl-C, sends the waiting records."""
    loop = RunningTimeLoop()
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
