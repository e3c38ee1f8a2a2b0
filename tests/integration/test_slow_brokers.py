"""A slow broker beside a fast one: the fast one's partitions keep their rate, their latency and their buffer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.config import HostPort
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from tests.proxies import Direction, KafkaProxy

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]

MIB = 1 << 20
RECORDS = 20_000


class Pair(NamedTuple):
    """Two brokers behind proxies."""

    cluster: Cluster
    proxies: list[KafkaProxy]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the proxies."""
        return [proxy.address for proxy in self.proxies]

    async def topic_by_leader(self, topic: str, partitions: int) -> dict[int, list[TopicPartition]]:
        """Create a topic, and return its partitions by their leader's number: the brokers take turns."""
        await self.cluster.create_topic(topic, partitions)
        return {broker: [TopicPartition(topic, n) for n in range(broker, partitions, 2)] for broker in (0, 1)}


@pytest.fixture(scope="module")
def module_pair() -> Iterator[Pair]:
    """Run two brokers, each behind a proxy that rewrites the addresses in metadata."""
    addresses: dict[HostPort, HostPort] = {}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(2, broker_overrides={"zookeeper.session.timeout.ms": 10_000}))
        proxies = [stack.enter_context(KafkaProxy(broker, addresses=addresses)) for broker in cluster.brokers]
        yield Pair(cluster, proxies)


@pytest.fixture
def pair(module_pair: Pair) -> Iterator[Pair]:
    """Return the two brokers. Their faults end with the test."""
    yield module_pair
    for proxy in module_pair.proxies:
        proxy.heal()


async def fill(pair: Pair, partitions: list[TopicPartition], count: int) -> None:
    """Produce values of 1,000 bytes, evenly over the partitions."""
    settings = {"batch_size": 100, "linger_ms": 20, "max_buffered_bytes": 256 * MIB}
    async with Producer(pair.cluster.brokers, **settings) as producer:
        stored = []
        for number in range(count):
            topic, partition = partitions[number % len(partitions)]
            stored.append(producer.produce(topic, b"%0999d " % number, partition=partition))
        await asyncio.gather(*stored)


FAULTS: dict[str, Callable[[KafkaProxy], None]] = {
    "late answers": lambda proxy: proxy.delay(0.5, Direction.RESPONSES),
    "no answers": lambda proxy: proxy.stall(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("buffer_bytes", [64 * MIB, MIB], ids=["default buffer", "small buffer"])
async def test_a_backlog_of_a_fast_broker_is_read_beside_a_slow_one(
    pair: Pair, unique: Unique, fault: Callable[[KafkaProxy], None], buffer_bytes: int
) -> None:
    """All records of the fast broker come at their usual rate, and all of the slow one after them."""
    topic = unique("topic")
    led = await pair.topic_by_leader(topic, 8)
    fast, slow = led[0], led[1]
    assert len(fast) == len(slow) == 4
    await fill(pair, fast + slow, RECORDS)
    counts: Counter[TopicPartition] = Counter()
    async with SingleConsumer(pair.addresses, fetch_buffer_bytes=buffer_bytes) as consumer:
        await consumer.connect()
        fault(pair.proxies[1])
        consumer.assign(fast + slow)
        for partition in fast + slow:
            consumer.seek(partition, 0)

        async def read_all(partitions: list[TopicPartition]) -> None:
            while sum(counts[each] for each in partitions) < RECORDS // 8 * len(partitions):
                for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                    counts[partition] += len(records)

        async with asyncio.timeout(60):
            started_s = time.monotonic()
            await read_all(fast)
            took_s = time.monotonic() - started_s
            pair.proxies[1].heal()
            await read_all(fast + slow)
    assert set(counts.values()) == {RECORDS // 8}
    assert took_s < 12, f"{took_s:.1f} s for {RECORDS // 2} records of the fast broker"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_trickle_of_a_fast_broker_does_not_wait_for_a_slow_one(
    pair: Pair, unique: Unique, fault: Callable[[KafkaProxy], None]
) -> None:
    """Its records arrive at once. A seek, an assignment and a close do not wait for the slow broker either."""
    topic = unique("topic")
    led = await pair.topic_by_leader(topic, 4)
    fast, slow = led[0], led[1]
    await fill(pair, slow, 2_000)
    async with (
        SingleConsumer(pair.addresses, max_wait_time=10_000) as consumer,
        Producer(pair.cluster.brokers, linger_ms=0) as producer,
    ):
        consumer.assign(fast + slow)
        for partition in fast:
            consumer.seek(partition, 0)
        fault(pair.proxies[1])
        delays_s = []
        for number in range(20):
            topic, partition_number = fast[number % len(fast)]
            await producer.produce(topic, b"%d" % number, partition=partition_number)
            stored_s = time.monotonic()
            async with asyncio.timeout(30):
                while not await consumer.getmany(*fast, timeout_ms=1_000):
                    pass
            delays_s.append(time.monotonic() - stored_s)
        assert sorted(delays_s)[10] < 0.2
        assert max(delays_s) < 9, "no poll of 10 s has ended by its timeout"
        started_s = time.monotonic()
        consumer.assign(fast)
        consumer.seek(fast[0], 0)
        async with asyncio.timeout(30):
            assert (await consumer.getone(fast[0])).offset == 0
        await consumer.close()
        assert time.monotonic() - started_s < 9
