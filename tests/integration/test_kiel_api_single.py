"""kiel's SingleConsumer and Producer on a real broker: each behaviour that programs rely on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tornado import gen

from kiel_groups.clients import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from tests.helpers.kiel_api import values

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.mark.parametrize(
    "start",
    [
        SingleConsumer.BEGINNING,
        datetime(2000, 1, 1),
        datetime(2000, 1, 1, tzinfo=UTC),
        timedelta(days=3_000),
        timedelta.max,
    ],
)
async def test_a_start_in_the_past_returns_all_later_values(cluster_39: Cluster, unique: Unique, start: Any) -> None:
    """The start may be a constant, a time or a duration. All later values are returned."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers) as producer, SingleConsumer(cluster_39.brokers) as consumer:
        for n in range(4):
            await producer.produce(topic, {"n": n})
        assert sorted(v["n"] for v in await values(consumer, topic, 4, start=start)) == [0, 1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"start": -1}, {"start": None}])
async def test_the_default_start_is_the_end(cluster_39: Cluster, unique: Unique, options: dict[str, Any]) -> None:
    """Values produced before the first call are not returned. The start of later calls is ignored."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with (
        Producer(cluster_39.brokers) as producer,
        SingleConsumer(cluster_39.brokers, max_wait_time=300) as consumer,
    ):
        await producer.produce(topic, "old")
        assert await consumer.consume(topic, **options) == []
        await producer.produce(topic, "new")
        assert await values(consumer, topic, 1, start=SingleConsumer.BEGINNING) == ["new"]


async def test_a_start_applies_again_when_the_log_has_lost_the_position(cluster_39: Cluster, unique: Unique) -> None:
    """When the broker has answered that the offset is out of range, the start of the next call applies."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with (
        Producer(cluster_39.brokers) as producer,
        SingleConsumer(cluster_39.brokers, max_wait_time=300) as consumer,
    ):
        await producer.produce(topic, 1)
        assert await consumer.consume(topic) == []
        consumer.seek(TopicPartition(topic, 0), 1_000)
        assert await values(consumer, topic, 1, start=SingleConsumer.BEGINNING) == [1]


async def test_an_unknown_topic_is_found_once_it_exists(cluster_39: Cluster, unique: Unique) -> None:
    """For an unknown topic, [] is returned until the topic exists, however short the wait is."""
    topic = unique("topic")
    async with Producer(cluster_39.brokers) as producer, SingleConsumer(cluster_39.brokers, max_wait_time=1) as c:
        assert await c.consume(topic, SingleConsumer.BEGINNING) == []
        await cluster_39.create_topic(topic, 1)
        await producer.produce(topic, "found")
        assert await values(c, topic, 1, start=SingleConsumer.BEGINNING) == ["found"]


async def test_unreadable_values_are_skipped_and_a_closed_consumer_returns_none(
    cluster_39: Cluster, unique: Unique
) -> None:
    """Unreadable values are skipped and counted. A waiting call returns None, too, when the consumer is closed."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        for value in (b"{", 1, b"}"):
            await producer.produce(topic, value)
    consumer = SingleConsumer(cluster_39.brokers)
    assert await values(consumer, topic, 1, start=SingleConsumer.BEGINNING) == [1]
    assert consumer.metrics.counter("deserializer_failures") == 2
    waiting = consumer.consume(topic)
    await asyncio.sleep(0)
    await consumer.close()
    assert await waiting is None
    assert await consumer.consume(topic) is None


async def test_a_key_maker_and_a_partitioner_choose_the_partition(cluster_39: Cluster, unique: Unique) -> None:
    """The partitioner gets the key that the key maker returned. The stored key is its text."""
    topic, keys = unique("topic"), unique("keys")
    await cluster_39.create_topic(topic, 3)
    await cluster_39.create_topic(keys, 1)

    def key_maker(message: Any) -> Any:
        return message["counter"]

    def partitioner(key: int, partitions: Sequence[int]) -> int:
        return partitions[key % len(partitions)]

    producer = Producer(cluster_39.brokers, None, key_maker, partitioner, 2, None, -1, 500)

    @gen.coroutine
    def produce_all() -> Any:
        yield producer.connect()
        for n in range(7):
            yield producer.produce(topic, {"counter": n, "a": "b"})
        yield producer.close()

    await produce_all()
    async with SingleConsumer(cluster_39.brokers) as consumer, asyncio.timeout(30):
        await consumer.subscribe(topic, start=SingleConsumer.BEGINNING)
        records = [await anext(consumer) for _ in range(7)]
    assert {(r.partition, r.key, r.value) for r in records} == {
        (n % 3, b"%d" % n, b'{"a": "b", "counter": %d}' % n) for n in range(7)
    }


async def test_null_and_empty_values_differ(cluster_39: Cluster, unique: Unique) -> None:
    """In keys and values, None is stored as null, and an empty text as zero bytes."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    messages = [{"key": None, "value": None}, {"key": "", "value": ""}, {"key": 0, "value": b"\0"}]
    async with Producer(
        cluster_39.brokers, serializer=lambda message: message["value"], key_maker=lambda message: message["key"]
    ) as producer:
        for message in messages:
            await producer.produce(topic, message=message)
    async with SingleConsumer(cluster_39.brokers) as consumer, asyncio.timeout(30):
        await consumer.subscribe(topic, start=SingleConsumer.BEGINNING)
        records = [await anext(consumer) for _ in messages]
    assert [(r.key, r.value) for r in records] == [(None, None), (b"", b""), (b"0", b"\0")]
    async with SingleConsumer(cluster_39.brokers, deserializer=lambda value: value) as consumer:
        assert await values(consumer, topic, 3, start=SingleConsumer.BEGINNING) == [None, b"", b"\0"]


async def test_without_a_partitioner_partitions_are_random(cluster_39: Cluster, unique: Unique) -> None:
    """Keys do not affect the partition."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers, key_maker=lambda _message: "one") as producer:
        stored = await asyncio.gather(*(producer.produce(topic, n) for n in range(100)))
    assert min(Counter(place.partition for place in stored).values()) > 20


@pytest.mark.parametrize("compression", [None, 1, 2, 3, "gzip", "snappy", "lz4"])
async def test_compression_by_number_or_name(cluster_39: Cluster, unique: Unique, compression: Any) -> None:
    """Compression is given by a number, one of kiel's constants, or by a name, as in kiel's examples."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    producer = Producer(cluster_39.brokers, batch_size=10, compression=compression)
    for n in range(25):
        await producer.produce(topic, n)
    await producer.close()
    async with SingleConsumer(cluster_39.brokers) as consumer:
        assert await values(consumer, topic, 25, start=SingleConsumer.BEGINNING) == list(range(25))
