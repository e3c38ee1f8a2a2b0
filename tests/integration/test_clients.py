"""
The producer, and the consumer without a group, on real brokers: each kind of acknowledgement, and brokers that fail.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.clients import BEGINNING, END, GroupedConsumer, Producer, RecordMetadata, SingleConsumer
from kiel_groups.clients.calls.arguments import broker_config
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, MessageTooLargeError, NoBrokersError, UnknownTopicError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import create_compacted_topic
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def read(cluster: Cluster, topic: str, count: int, **settings: Any) -> list[Any]:
    """Read ``count`` records of a topic from its beginning."""
    async with SingleConsumer(cluster.brokers, **settings) as consumer, asyncio.timeout(60):
        await consumer.subscribe(topic, start=BEGINNING)
        return [await anext(consumer) for _ in range(count)]


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("acks", [-1, 1, 0])
async def test_records_are_consumed_as_they_were_produced(
    cluster_39: Cluster, unique: Unique, acks: int, compression: str | None
) -> None:
    """Records are read with the keys, values and offsets that were produced, in order within each partition."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 3)
    sent = [(f"key-{n}".encode() if n % 3 else None, b"%d" % n * (n % 50) or None) for n in range(2_000)]
    async with Producer(cluster_39.brokers, required_acks=acks, compression=compression) as producer:
        stored = await asyncio.gather(*(producer.produce(topic, value, key) for key, value in sent))
    records = await read(cluster_39, topic, len(sent))
    assert Counter((r.key, r.value) for r in records) == Counter(sent)
    for partition in range(3):
        assert [r.offset for r in records if r.partition == partition] == list(
            range(sum(r.partition == partition for r in records))
        )
    if acks == 0:
        assert {outcome.offset for outcome in stored} == {-1}
    else:
        places = {(r.partition, r.offset): (r.key, r.value) for r in records}
        assert [places[outcome[1:]] for outcome in stored] == sent


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_compacted_topic_refuses_records_without_a_key_and_takes_the_others(
    coordinating_cluster: Cluster, unique: Unique, compression: str | None
) -> None:
    """
    Of one batch, the records with a key are stored in order, null values among them. Those without a key fail for good,
    within moments, with an error that names the missing key; so does a record that is produced alone.
    """
    cluster, topic = coordinating_cluster, unique("topic")
    await create_compacted_topic(cluster, topic)
    sent = [(None if n % 4 == 0 else b"key", None if n % 3 == 0 else b"%d" % n) for n in range(40)]
    async with Producer(cluster.brokers, linger_ms=50, batch_size=1_000, compression=compression) as producer:
        began_s = time.monotonic()
        futures = [producer.produce(topic, value, key) for key, value in sent]
        outcomes = await asyncio.gather(*futures, producer.produce(topic, b"alone"), return_exceptions=True)
        assert time.monotonic() - began_s < 15, "they are not tried again until their timeout"
    for error in [*outcomes[:-1:4], outcomes[-1]]:
        assert type(error) is BrokerError
        assert "the record has no key, which brokers refuse in a compacted topic" in str(error)
    keyed = [(key, value) for key, value in sent if key is not None]
    assert [(record.key, record.value) for record in await read(cluster, topic, len(keyed))] == keyed


async def test_produce_needs_no_connect(cluster_39: Cluster, unique: Unique) -> None:
    """The first call finds the cluster and the topic, although both are unknown to the producer."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    producer = Producer(cluster_39.brokers)
    assert await producer.produce(topic, "first") == RecordMetadata(topic, 0, 0)
    await producer.close()


async def test_start_at_the_end_skips_earlier_records_only(cluster_39: Cluster, unique: Unique) -> None:
    """Every record that is produced after ``subscribe`` has returned is delivered, and no earlier record is."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 4)
    async with Producer(cluster_39.brokers) as producer, SingleConsumer(cluster_39.brokers) as consumer:
        for n in range(20):
            producer.produce(topic, b"old %d" % n)
        await producer.flush()
        await consumer.subscribe(topic, start=END)
        for n in range(20):
            producer.produce(topic, b"new %d" % n)
        async with asyncio.timeout(30):
            values = [(await anext(consumer)).value for _ in range(20)]
        assert sorted(values) == sorted(f"new {n}".encode() for n in range(20))


async def test_a_record_reaches_a_waiting_consumer_at_once(cluster_39: Cluster, unique: Unique) -> None:
    """A long poll ends when a message arrives in any of the partitions, not at its timeout."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 8)
    async with (
        Producer(cluster_39.brokers, linger_ms=0) as producer,
        SingleConsumer(cluster_39.brokers, max_wait_time=20_000) as consumer,
    ):
        await consumer.subscribe(topic, start=BEGINNING)
        delays = []
        for partition in range(8):
            await producer.produce(topic, "x", partition=partition)
            stored = time.monotonic()
            async with asyncio.timeout(30):
                assert (await anext(consumer)).partition == partition
            delays.append(time.monotonic() - stored)
        # A poll that waited for its timeout would take 20 s. One of the servers may stand still for some seconds.
        assert sorted(delays)[4] < 2
        assert max(delays) < 10


async def test_a_message_larger_than_a_fetch_is_delivered(cluster_39: Cluster, unique: Unique) -> None:
    """
    A message that is larger than a fetch is delivered. A message above ``max_message_bytes`` is an error that names
    partition and offset.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    values = [b"small", b"L" * 700_000, b"after"]
    async with Producer(cluster_39.brokers) as producer:
        await asyncio.gather(*(producer.produce(topic, value, partition=0) for value in values))
        with pytest.raises(
            BrokerError, match="a message of 1200026 bytes was refused: MESSAGE_SIZE_TOO_LARGE"
        ) as caught:
            await producer.produce(topic, b"L" * 1_200_000, partition=0)
        assert caught.value.code == 10
    assert [r.value for r in await read(cluster_39, topic, 3, max_bytes=10_000)] == values
    with pytest.raises(MessageTooLargeError, match=f"{topic}:0 at offset 1: the message takes 700026 bytes"):
        await read(cluster_39, topic, 2, max_bytes=10_000, max_message_bytes=100_000)


async def test_a_compressed_set_larger_than_a_fetch_is_delivered(cluster_39: Cluster, unique: Unique) -> None:
    """
    A compressed set is fetched whole. If the start offset is inside the set, earlier records of the set are not
    delivered.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    values = [bytes((n * k) % 251 for k in range(1_000)) for n in range(500)]
    async with Producer(cluster_39.brokers, compression="gzip", batch_size=1_000, linger_ms=1_000) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in values))
    async with SingleConsumer(cluster_39.brokers, max_bytes=4_096) as consumer, asyncio.timeout(30):
        await consumer.subscribe(topic, start={TopicPartition(topic, 0): 250})
        records = [await anext(consumer) for _ in range(250)]
    assert [(r.offset, r.value) for r in records] == list(enumerate(values))[250:]


async def test_a_position_outside_the_log_is_reset(cluster_39: Cluster, unique: Unique) -> None:
    """A start offset beyond the end of the log is replaced by the reset policy."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        await producer.produce(topic, b"only")
    async with SingleConsumer(cluster_39.brokers) as consumer, asyncio.timeout(30):
        await consumer.subscribe(topic, start={TopicPartition(topic, 0): 1_000})
        assert (await anext(consumer)).value == b"only"


async def test_offsets_are_listed(cluster_39: Cluster, unique: Unique) -> None:
    """A client can list the earliest offset, the latest offset, and the offset at a time before all records."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        await asyncio.gather(*(producer.produce(topic, "x", partition=0) for _ in range(7)))
    view = ClusterMetadata(broker_config(cluster_39.brokers), Metrics())
    assert await list_offsets(view, [first, second], -2) == {first: 0, second: 0}
    assert await list_offsets(view, [first, second], -1) == {first: 7, second: 0}
    assert await list_offsets(view, [first], 1_000_000_000_000) == {first: 0}
    view.close()


async def test_an_unknown_topic_is_an_error(cluster_39: Cluster, unique: Unique) -> None:
    """Producer and consumer both raise UnknownTopicError."""
    topic = unique("absent")
    async with Producer(cluster_39.brokers) as producer, SingleConsumer(cluster_39.brokers) as consumer:
        with pytest.raises(UnknownTopicError, match=topic):
            await producer.produce(topic, "x")
        with pytest.raises(UnknownTopicError, match=topic):
            await consumer.subscribe(topic)


async def test_added_partitions_are_found(cluster_39: Cluster, unique: Unique) -> None:
    """Producer and consumer find new partitions when their metadata is older than its greatest age."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with (
        Producer(cluster_39.brokers, metadata_max_age_ms=100) as producer,
        SingleConsumer(cluster_39.brokers, metadata_max_age_ms=100) as consumer,
        asyncio.timeout(30),
    ):
        await producer.produce(topic, "old")
        await consumer.subscribe(topic, start=BEGINNING)
        await cluster_39.grow_topic(topic, 4)
        seen: set[int] = set()
        while seen != {0, 1, 2, 3}:
            producer.produce(topic, "x")
            seen.add((await anext(consumer)).partition)


async def test_one_live_bootstrap_host_is_enough(cluster_39: Cluster) -> None:
    """One live bootstrap host is enough. If there is none, the error names each address."""
    async with SingleConsumer(["127.0.0.1:1", *cluster_39.brokers]):
        pass
    with pytest.raises(NoBrokersError, match=r"127\.0\.0\.1:1: cannot connect"):
        await Producer("127.0.0.1:1").connect()


class Traffic:
    """Produces and consumes numbered records in the background. ``finish`` waits until every record was delivered."""

    def __init__(self, cluster: Cluster, topic: str, **producer_settings: Any) -> None:
        self._topic = topic
        self._producer = Producer(cluster.brokers, retries=30, max_backoff_ms=500, **producer_settings)
        self._consumer = SingleConsumer(cluster.brokers, max_backoff_ms=500, request_timeout_ms=2_000)
        self._sent: list[asyncio.Future[RecordMetadata]] = []
        self.seen: list[bytes] = []
        self._received = asyncio.Event()

    async def __aenter__(self) -> Traffic:
        await self._consumer.subscribe(self._topic, start=BEGINNING)
        self._tasks = [asyncio.create_task(self._produce()), asyncio.create_task(self._consume())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._producer.close(timeout_ms=1_000)
        await self._consumer.close()

    async def _produce(self) -> None:
        while True:
            self._sent.append(self._producer.produce(self._topic, b"%d" % len(self._sent)))
            await asyncio.sleep(0.002)

    async def _consume(self) -> None:
        async for record in self._consumer:
            self.seen.append(record.value)
            self._received.set()

    async def flows(self, count: int = 100) -> None:
        """Wait until ``count`` more records are delivered."""
        goal = len(self.seen) + count
        async with asyncio.timeout(60):
            while len(self.seen) < goal:
                self._received.clear()
                await self._received.wait()

    async def times_out(self) -> None:
        """Wait until requests of both clients have had no answer within their timeout."""

        def retries() -> tuple[float, float]:
            return self._producer.metrics.total("produce_retries"), self._consumer.metrics.total("fetch_retries")

        before = retries()
        await eventually(lambda: all(now > then for now, then in zip(retries(), before, strict=True)), "time-outs")

    async def finish(self) -> None:
        """Stop producing, and wait until every record is stored and delivered."""
        self._tasks[0].cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*self._sent)
            wanted = {b"%d" % n for n in range(len(self._sent))}
            while not wanted <= set(self.seen):
                self._received.clear()
                await self._received.wait()


async def test_a_broker_restarts_under_load(start_cluster: Callable[..., Cluster], unique: Unique) -> None:
    """
    The only broker is killed and restarted: no record is lost, because the producer sends unacknowledged records again.
    """
    cluster, topic = start_cluster(), unique("topic")
    await cluster.create_topic(topic, 4)
    async with Traffic(cluster, topic) as traffic:
        await traffic.flows()
        await cluster.kafka[0].kill()
        await cluster.kafka[0].start()
        await traffic.flows()
        await traffic.finish()


async def test_a_partition_leader_is_killed(start_cluster: Callable[..., Cluster], unique: Unique) -> None:
    """
    After the kill of a partition leader, no record is lost with two replicas and all acknowledgements, and both clients
    continue.
    """
    # By default a dead replica counts as in sync for 10 s, during which acknowledgements wait for it.
    cluster = start_cluster(brokers=2, broker_overrides={"replica.lag.time.max.ms": 1_000})
    topic = unique("topic")
    await cluster.create_topic(topic, 4, replication=2)
    async with Traffic(cluster, topic, required_acks=-1) as traffic:
        await traffic.flows()
        await cluster.kafka[1].kill()
        await traffic.flows()
        await traffic.finish()


async def test_a_frozen_broker_resumes(start_cluster: Callable[..., Cluster], unique: Unique) -> None:
    """SIGSTOP of a broker refuses no connection and breaks none. Requests time out, and succeed after SIGCONT."""
    cluster, topic = start_cluster(), unique("topic")
    await cluster.create_topic(topic, 2)
    async with Traffic(cluster, topic, request_timeout_ms=500) as traffic:
        await traffic.flows()
        cluster.kafka[0].pause()
        await traffic.times_out()
        cluster.kafka[0].resume()
        await traffic.flows()
        await traffic.finish()


async def test_a_group_member_refreshes_metadata_by_age(cluster_39: Cluster, unique: Unique) -> None:
    """The member refreshes its metadata while it fetches, also without an error."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    settings = {"metadata_max_age_ms": 50, "max_wait_time": 100}
    async with GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts, **settings) as consumer:

        def refreshes() -> float:
            return consumer.metrics.counter("metadata_refreshes", reason="age")

        await throughout(lambda: refreshes() == 0, "nothing is fetched", 0.2)
        await consumer.subscribe(topic)
        await eventually(lambda: refreshes() >= 3, "the metadata is refreshed")
