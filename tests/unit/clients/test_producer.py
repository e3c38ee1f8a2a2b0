"""The producer against a scripted broker: outcomes, order, batches, retries, and what is raised."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from kiel_groups.clients.produce.partitioners import hash_partitioner, random_partitioner
from kiel_groups.clients.producer import Producer, RecordMetadata
from kiel_groups.errors import (
    BufferFullError,
    ConfigError,
    NoBrokersError,
    UnknownTopicError,
)
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import METADATA, PRODUCE, FakeBroker, Log, Request
from tests.helpers.producers import T0, T1, producing, stored

pytestmark = pytest.mark.unit


async def test_every_record_learns_where_it_was_stored() -> None:
    """Each future resolves to topic, partition and the record's own offset, in the order of production."""
    async with producing() as (broker, producer):
        futures = [producer.produce("t", b"%d" % n, partition=n % 2) for n in range(10)]
        outcomes = await asyncio.gather(*futures)
        assert outcomes == [RecordMetadata("t", n % 2, n // 2) for n in range(10)]
        assert stored(broker, T0) == [(None, b"%d" % n) for n in range(0, 10, 2)]


async def test_values_without_a_serializer() -> None:
    """Bytes go out as they are, anything else as JSON with sorted keys; an int key is its decimal, None is null."""
    async with producing() as (broker, producer):
        sent = [(None, b"raw"), ("schlüssel", "x"), (7, None), (b"k", b""), (None, {"b": 1, "a": [True]})]
        for key, value in sent:
            await producer.produce("t", value, key, partition=0)
        assert stored(broker, T0) == [
            (None, b"raw"),
            ("schlüssel".encode(), b'"x"'),
            (b"7", b"null"),
            (b"k", b""),
            (None, b'{"a": [true], "b": 1}'),
        ]
        with pytest.raises(ConfigError, match=r"value: it has no form in JSON .*; send bytes, or give a serializer"):
            await producer.produce("t", {1, 2})
        assert producer.metrics.counter("produce_failures") == 1


async def test_what_a_serializer_returns() -> None:
    """Text becomes UTF-8, None a null value; anything else is refused."""
    made: dict[str, Any] = {"text": "grün", "null": None, "bytes": b"raw", "wrong": 1}
    async with producing(serializer=made.__getitem__) as (broker, producer):
        for value in ("text", "null", "bytes"):
            await producer.produce("t", value, partition=0)
        assert [value for _, value in stored(broker, T0)] == ["grün".encode(), None, b"raw"]
        with pytest.raises(ConfigError, match="serializer: int returned; expected bytes, str or None"):
            await producer.produce("t", "wrong")


async def test_serializer_and_key_maker() -> None:
    """Values pass through the serialiser; a key that was not given is made of the value."""
    async with producing(serializer=lambda v: str(v * 2), key_maker=lambda v: v) as (broker, producer):
        await producer.produce("t", 21, partition=0)
        await producer.produce("t", 1, key="own", partition=0)
        assert stored(broker, T0) == [(b"21", b"42"), (b"own", b"2")]


async def test_batches_form_per_partition() -> None:
    """Records that are produced together travel together: one request, one message set a partition."""
    async with producing(linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"%d" % n, partition=n % 2) for n in range(100)))
        assert broker.count(PRODUCE) <= 2


async def test_a_full_batch_does_not_linger() -> None:
    """With batch_size records a batch goes out, however long the rest may wait."""
    async with producing(linger_ms=60_000, batch_size=3) as (broker, producer):
        first = [producer.produce("t", b"x", partition=0) for _ in range(3)]
        await asyncio.wait_for(asyncio.gather(*first), 5)
        last = producer.produce("t", b"y", partition=0)
        await asyncio.sleep(0.02)
        assert not last.done()
        await producer.flush()
        assert (await last).offset == 3
        assert broker.count(PRODUCE) == 2


async def test_a_batch_stays_below_the_size_of_a_request() -> None:
    """Records that do not fit into one request go out in several, in order."""
    async with producing(linger_ms=60_000, batch_size=1_000) as (broker, producer):
        values = [bytes([n]) * 200_000 for n in range(10)]
        futures = [producer.produce("t", value, partition=0) for value in values]
        await producer.flush()
        assert [future.result().offset for future in futures] == list(range(10))
        assert [value for _, value in stored(broker, T0)] == values
        assert max(len(request.body) for request in broker.requests) < 1_000_000


async def test_acks_zero_has_no_offset() -> None:
    """Send and forget: the future resolves once the bytes are on their way, with offset -1."""
    async with producing(required_acks=0) as (broker, producer):
        assert await producer.produce("t", b"x", partition=0) == RecordMetadata("t", 0, -1)
        await broker.wait_for_requests(PRODUCE, 1)
        assert stored(broker, T0) == [(None, b"x")]


async def test_compressed_batches() -> None:
    """With gzip a batch travels as one wrapper that holds its records."""
    async with producing(compression="gzip", linger_ms=20) as (broker, producer):
        await asyncio.gather(*(producer.produce("t", b"a" * 1_000, partition=0) for _ in range(50)))
        assert broker.logs[T0].end == 1, "this broker does not look into wrappers"
        assert len(broker.logs[T0].entries[0][1]) < 2_000


@pytest.mark.parametrize("compression", ["gzipp", "", 0, 4, True])
def test_an_unknown_compression_is_refused(compression: str | int) -> None:
    """At once, when the producer is made, as a ValueError that says what there is."""
    with pytest.raises(ValueError, match=r"compression: .* expected 'gzip'"):
        Producer("localhost", compression=compression)


def test_a_producer_is_made_without_a_loop() -> None:
    """Constructors touch no event loop."""
    Producer("localhost:9092,other")


async def test_records_that_come_while_a_batch_is_on_its_way_form_the_next_one() -> None:
    """A batch that was sent takes nothing more in: what comes later is neither lost nor credited to it."""
    async with producing() as (broker, producer):
        broker.gates[PRODUCE] = asyncio.Event()
        first = producer.produce("t", b"first", partition=0)
        await broker.wait_for_requests(PRODUCE, 1)
        second = producer.produce("t", b"second", partition=0)
        broker.gates[PRODUCE].set()
        assert [(await first).offset, (await second).offset] == [0, 1]
        assert stored(broker, T0) == [(None, b"first"), (None, b"second")]


async def test_records_for_a_topic_that_is_looked_up_keep_their_order() -> None:
    """What is produced the moment the topic becomes known stands behind what waited for that."""
    async with producing(backoff_ms=50) as (broker, producer):
        first = producer.produce("new", b"first")
        await broker.wait_for_requests(METADATA, 2)
        broker.logs[TopicPartition("new", 0)] = Log()
        while producer._cluster.known_partitions("new") is None:
            await producer._cluster.refresh(["new"], "test")
        second = producer.produce("new", b"second")
        assert [(await first).offset, (await second).offset] == [0, 1]


async def test_an_unknown_topic() -> None:
    """Every record for it fails with an error that names it; other topics are not held up."""
    async with producing() as (_, producer):
        lost = [producer.produce("nope", b"x") for _ in range(3)]
        assert (await producer.produce("t", b"x", partition=0)).offset == 0
        for outcome in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(outcome, UnknownTopicError)
            assert "nope" in str(outcome)
        with pytest.raises(ConfigError, match="topic: 'a/b' is not a legal name"):
            await producer.produce("a/b", b"x")


async def test_a_topic_that_appears_in_time() -> None:
    """Records for a topic that a broker learns of a moment later are stored in order."""

    def script(request: Request) -> None:
        if broker.count(METADATA) == 3:
            broker.logs[TopicPartition("new", 0)] = Log()

    broker = FakeBroker({"t": 1}, script=script)
    async with producing(broker) as (_, producer):
        outcomes = await asyncio.gather(*(producer.produce("new", b"%d" % n) for n in range(3)))
        assert [outcome.offset for outcome in outcomes] == [0, 1, 2]


async def test_no_broker_alive() -> None:
    """Connecting fails with the addresses and reasons; a record fails after the retries."""
    async with FakeBroker() as dead:
        pass
    producer = Producer(str(dead.address), retries=1)
    with pytest.raises(NoBrokersError, match=str(dead.address)):
        await producer.connect()
    with pytest.raises(NoBrokersError, match="Connection refused"):
        await producer.produce("t", b"x")
    await producer.close()


async def test_a_partition_that_does_not_exist_or_a_partitioner_that_fails() -> None:
    """Both fail the record's own future, and nothing else."""
    async with producing(partitioner=lambda key, partitions: 1 // 0) as (_, producer):
        with pytest.raises(ConfigError, match="partition: 2 given; t has 0 to 1"):
            await producer.produce("t", b"x", partition=2)
        with pytest.raises(ZeroDivisionError):
            await producer.produce("t", b"x")


async def test_the_partitioner_gets_the_key_as_made() -> None:
    """An int key stays an int, and the partition numbers come ascending, in a list to do with as it likes."""
    seen: list[tuple[Any, Any]] = []

    def partitioner(key: Any, partitions: list[int]) -> int:
        seen.append((key, tuple(partitions)))
        return partitions.pop()

    async with producing(partitioner=partitioner) as (broker, producer):
        for _ in range(2):
            assert (await producer.produce(topic="t", message=b"x", key=5)).partition == 1
        assert seen == [(5, (0, 1))] * 2
        assert stored(broker, T1) == [(b"5", b"x")] * 2


def test_the_partitioners() -> None:
    """By hash, keys go where their CRC-32 says, in every process; at random, and without a key, all are spread."""
    places = [0, 1, 2, 3]
    assert hash_partitioner(b"key", places) == zlib.crc32(b"key") % 4 == hash_partitioner("key", places)
    for choose, key in ((hash_partitioner, None), (random_partitioner, None), (random_partitioner, b"key")):
        counts = [0, 0, 0, 0]
        for _ in range(4_000):
            counts[choose(key, places)] += 1
        assert min(counts) > 800


async def test_buffered_bytes_are_bounded() -> None:
    """Over the bound produce refuses; drain waits for room, and then it goes on."""
    async with producing(linger_ms=0, max_buffered_bytes=10_000) as (_, producer):
        for _ in range(10):
            producer.produce("t", b"x" * 1_000)
        refused = producer.produce("t", b"x" * 1_000)
        assert 10_000 <= producer.buffered_bytes < 12_000
        with pytest.raises(BufferFullError, match="max_buffered_bytes is 10000"):
            await refused
        await producer.drain()
        assert producer.buffered_bytes <= 5_000
        await producer.produce("t", b"x")
        assert producer.buffered_bytes == 0


async def test_a_cancelled_record_holds_nobody_up() -> None:
    """Whoever stops waiting for a record does not disturb its batch, nor a flush."""
    async with producing(linger_ms=60_000) as (_, producer):
        one, two = (producer.produce("t", b"x", partition=0) for _ in range(2))
        two.cancel()
        await producer.flush()
        assert one.result().offset == 0
