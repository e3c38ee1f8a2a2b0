"""``consume_batches()`` on real servers: what it returns, when it is finished, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, Producer, RecordColumns, SingleConsumer, sync
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@asynccontextmanager
async def consumer_of(backend: GroupBackend, topic: str, group: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Yield a member that owns all partitions of a topic."""
    async with backend.consumer(group, **settings) as consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled and bool(consumer.assignment()), "it owns the partitions")
        yield consumer


async def batches_until(
    consumer: GroupedConsumer | SingleConsumer, count: int, **arguments: Any
) -> list[RecordColumns]:
    """Call ``consume_batches()`` until it has returned so many records."""
    found: list[RecordColumns] = []
    async with asyncio.timeout(30):
        while sum(map(len, found)) < count:
            for runs in (await consumer.consume_batches(timeout_ms=500, **arguments)).values():
                found += runs
    return found


def values_of(found: list[RecordColumns]) -> list[bytes | None]:
    return [None if value is None else bytes(value) for run in found for value in run.values]


def offsets_of(found: list[RecordColumns]) -> list[int]:
    return [offset for run in found for offset in run.offsets]


@pytest.mark.parametrize("compression", [None, "gzip", "snappy"])
async def test_columns_have_what_was_produced(cluster_39: Cluster, unique: Unique, compression: str | None) -> None:
    """Keys, null ones as well, and values, from plain and compressed sets. A limit cuts a set."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    async with Producer(cluster_39.brokers, compression=compression, batch_size=50, linger_ms=20) as producer:
        for number in range(100):
            producer.produce(topic, b"%d" % number, key=None if number % 3 else b"key")
        await producer.flush()
    async with SingleConsumer(cluster_39.brokers) as consumer:
        consumer.assign([partition])
        first = await batches_until(consumer, 10, max_records=10)
        assert [len(run) for run in first] == [10]
        assert await consumer.position(partition) == 10
        found = first + await batches_until(consumer, 90)
    assert offsets_of(found) == list(range(100))
    assert values_of(found) == [b"%d" % number for number in range(100)]
    keys = [key for run in found for key in run.to_pyarrow().column("key").to_pylist()]
    assert keys == [None if number % 3 else b"key" for number in range(100)]
    assert {run.fencing_token for run in found} == {None}


async def test_asking_again_finishes_what_a_call_returned(backend: GroupBackend, unique: Unique) -> None:
    """Whichever of the three methods asks. A commit counts what its caller has, and a cancelled call gave nothing."""
    topic, group = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 1)
    values = await produce(backend.cluster, topic, 10)
    partition = TopicPartition(topic, 0)
    async with consumer_of(backend, topic, group, autocommit=False) as consumer:
        (run,) = await batches_until(consumer, 3, max_records=3)
        assert (run.first_offset, run.next_offset, run.topic_partition) == (0, 3, partition)
        assert run.fencing_token == consumer.fencing_token(partition)

        async def commits() -> None:
            await consumer.commit()

        await asyncio.create_task(commits())
        assert backend.stored(group, topic) == {0: 3}, "a task of the caller counts it"
        assert (await consumer.getone()).offset == 3
        cancelled = consumer.consume_batches(timeout_ms=10_000)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        rest = await batches_until(consumer, 6)
        assert values_of(rest) == values[4:]
        assert await consumer.consume_batches() == {}
        await consumer.commit({partition: rest[-1].next_offset})
        assert backend.stored(group, topic) == {0: 10}
        with pytest.raises(ConfigError, match=r"consume_batches\(\): max_records is 0"):
            await consumer.consume_batches(max_records=0)
        with pytest.raises(ConfigError, match=r"consume_batches\(\): timeout_ms is -1"):
            await consumer.consume_batches(timeout_ms=-1)
        with pytest.raises(ConfigError, match="consumer delivers by"):
            aiter(consumer)
    with pytest.raises(ClosedError):
        await consumer.consume_batches()


@pytest.mark.parametrize("name", ["deserializer", "key_deserializer"])
async def test_a_consumer_with_a_deserializer_has_no_columns(cluster_39: Cluster, unique: Unique, name: str) -> None:
    """The error says what to do. The refused call does not choose a style."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with SingleConsumer(cluster_39.brokers, **{name: bytes.decode}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(ConfigError, match=r"leave it out, or use getmany\(\)"):
            await consumer.consume_batches()
        aiter(consumer)


async def test_a_partition_with_columns_in_flight_is_not_released(backend: GroupBackend, unique: Unique) -> None:
    """A release waits for them, and stores them when their coroutine asks again."""
    topic, name = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 2)
    await produce(backend.cluster, topic, 40)
    async with consumer_of(backend, topic, name) as consumer:
        await batches_until(consumer, 40)
        async with group_of(backend.cluster, name, [topic], **backend.settings) as group:
            # With brokers, a join waits until the other members have given their partitions back.
            joining = asyncio.ensure_future(group.join())
            await eventually(lambda: len(consumer.assignment()) == 2 and not consumer.settled, "one is to be released")
            (other,) = group.members
            await throughout(lambda: not other.consumer.assignment(), "nothing moves", 0.5)
            assert await consumer.consume_batches() == {}
            await joining
            await eventually(lambda: bool(other.consumer.assignment()), "it was released")
            assert other.values == []


async def test_columns_that_were_not_finished_come_again(backend: GroupBackend, unique: Unique) -> None:
    """A close under an exception finishes nothing of its caller; one without does."""
    topic, group = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 1)
    values = await produce(backend.cluster, topic, 10)

    async def program() -> None:
        async with consumer_of(backend, topic, group) as consumer:
            await batches_until(consumer, 4, max_records=4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    async with consumer_of(backend, topic, group) as consumer:
        assert values_of(await batches_until(consumer, 10)) == values
    assert backend.stored(group, topic) == {0: 10}


async def test_the_blocking_twins_return_columns(backend: GroupBackend, unique: Unique) -> None:
    """The next call of a thread finishes what its last one returned."""
    topic, group = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 1)
    values = await produce(backend.cluster, topic, 10)
    partition = TopicPartition(topic, 0)

    def program() -> None:
        with backend.blocking(group) as consumer:
            consumer.subscribe(topic)
            found = consumer.consume_batches(timeout_ms=20_000, max_records=4)[partition]
            assert values_of(found) == values[:4]
            assert values_of(consumer.consume_batches(partition, timeout_ms=5_000)[partition]) == values[4:]
        with sync.SingleConsumer(backend.cluster.brokers) as single:
            single.assign([partition])
            assert values_of(single.consume_batches(timeout_ms=20_000)[partition]) == values

    await asyncio.to_thread(program)
    assert backend.stored(group, topic) == {0: 10}
