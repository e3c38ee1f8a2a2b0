"""What a consumer fetches at once, on a real broker: backlogs, trickles, large messages, many partitions, seeks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]

KIB = 1 << 10
MIB = 1 << 20


class Case(NamedTuple):
    """What a topic has, and how it is read."""

    partitions: int
    records: int
    size: int
    settings: dict[str, Any]
    compression: str | None = None
    batch_size: int = 500


CASES = {
    "a backlog of many partitions": Case(16, 40_000, 100, {}),
    "sets that are cut": Case(4, 4_000, 1_000, {"max_bytes": 4 * KIB}),
    "messages larger than a bite": Case(3, 12, 900 * KIB, {"max_bytes": 64 * KIB}, batch_size=1),
    "messages larger than the buffer": Case(3, 12, 900 * KIB, {"fetch_buffer_bytes": 256 * KIB}, batch_size=1),
    "100 partitions": Case(100, 40_000, 100, {}),
    "100 partitions and a small buffer": Case(100, 40_000, 100, {"fetch_buffer_bytes": 64 * KIB}),
    "compressed sets and a small buffer": Case(4, 40_000, 100, {"fetch_buffer_bytes": 128 * KIB}, "gzip"),
    "brokers that do not wait": Case(4, 4_000, 100, {"max_wait_time": 0}),
}


def values(numbers: range, size: int) -> list[bytes]:
    return [b"%d " % number + b"x" * (size - 8) for number in numbers]


async def produce(cluster: Cluster, topic: str, case: Case, numbers: range) -> dict[int, list[bytes]]:
    """Produce values, evenly distributed over the partitions, and return them by partition."""
    sent: dict[int, list[bytes]] = defaultdict(list)
    settings: dict[str, Any] = {"batch_size": case.batch_size, "linger_ms": 20, "max_buffered_bytes": 256 * MIB}
    async with Producer(cluster.brokers, compression=case.compression, **settings) as producer:
        produced = []
        for number, value in zip(numbers, values(numbers, case.size), strict=True):
            sent[number % case.partitions].append(value)
            produced.append(producer.produce(topic, value, partition=number % case.partitions))
        await asyncio.gather(*produced)
    return sent


async def read(consumer: SingleConsumer, count: int) -> dict[int, list[bytes]]:
    """Return the values of the next ``count`` records by partition."""
    found: dict[int, list[bytes]] = defaultdict(list)
    async with asyncio.timeout(60):
        while count > 0:
            for partition, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found[partition.partition] += [record.value for record in records]
                count -= len(records)
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_each_record_is_delivered_once_in_order(cluster_39: Cluster, unique: Unique, case: Case) -> None:
    """From a backlog, while the partitions have caught up, and from another backlog."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, case.partitions)
    sent = await produce(cluster_39, topic, case, range(case.records))
    async with SingleConsumer(cluster_39.brokers, **case.settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(case.partitions)])
        assert await read(consumer, case.records) == sent
        assert await consumer.getmany(timeout_ms=100) == {}
        for first in (case.records, case.records + 7):
            count = 7 if first == case.records else case.records // 4
            sent = await produce(cluster_39, topic, case, range(first, first + count))
            assert await read(consumer, count) == sent
        assert await consumer.getmany(timeout_ms=100) == {}
        assert consumer.metrics.total("records_fetched") == case.records + 7 + case.records // 4
        assert not consumer.metrics.total("fetches_unreadable")


async def test_a_small_partition_does_not_wait_behind_bulk(cluster_39: Cluster, unique: Unique) -> None:
    """Its records arrive at once, while a consumer that is slow with large partitions is far behind in them."""
    topic = unique("topic")
    case = Case(3, 60_000, 1_000, {"fetch_buffer_bytes": 8 * MIB})
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, case, range(case.records))
    *large, small = (TopicPartition(topic, number) for number in range(4))
    async with (
        SingleConsumer(cluster_39.brokers, **case.settings) as consumer,
        Producer(cluster_39.brokers) as producer,
    ):
        consumer.assign([*large, small])
        taken_meanwhile = []
        for number in range(20):
            await producer.produce(topic, b"%d" % number, partition=3)
            taken = 0
            async with asyncio.timeout(30):
                while not await consumer.getmany(small):
                    taken += sum(map(len, (await consumer.getmany(*large, timeout_ms=1, max_records=50)).values()))
            taken_meanwhile.append(taken)
        assert sum(taken_meanwhile) < case.records, "the large partitions were read meanwhile"
        # Far less than what the buffer holds of the large ones.
        assert sorted(taken_meanwhile)[10] < 4_000


async def test_many_seeks_a_second(cluster_39: Cluster, unique: Unique) -> None:
    """Requests whose partitions were dropped do not hold up those that follow, wherever they wait."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, Case(1, 500, 100, {}), range(500))
    partition = TopicPartition(topic, 0)
    async with SingleConsumer(cluster_39.brokers, max_wait_time=30_000) as consumer:
        consumer.assign([partition])
        started_s = time.monotonic()
        for offset in range(100):
            consumer.seek(partition, 500)
            await asyncio.sleep(0.005)
            consumer.seek(partition, offset)
            async with asyncio.timeout(20):
                assert (await consumer.getone()).offset == offset
        assert time.monotonic() - started_s < 28, "less than one request takes that is held up"
