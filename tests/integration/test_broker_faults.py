"""Brokers answer with error codes, late, in part, or not at all: the group continues and loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import NoOffsetsError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.members import group_of
from tests.helpers.waiting import eventually
from tests.proxies import Direction, KafkaProxy
from tests.proxies.kafka_proxy import Answer, Exchange, Partial, Reply, failing

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9


def first_times(api_key: int, times: int, reply: Callable[[Exchange], Reply]) -> Answer:
    """Answer the first ``times`` requests of one API with ``reply``, and forward all other requests."""

    def answer(exchange: Exchange) -> Reply:
        odd = exchange.api_key == api_key and exchange.number <= times
        return reply(exchange) if odd else exchange.response

    return answer


def second_time(api_key: int, reply: Callable[[Exchange], Reply]) -> Answer:
    """
    Answer the second request of one API with ``reply``. The first request belongs to ``connect()`` and has to succeed.
    """
    return lambda exchange: (
        reply(exchange) if exchange.api_key == api_key and exchange.number == 2 else exchange.response
    )


def half(exchange: Exchange) -> Reply:
    return Partial(exchange.response, len(exchange.response) // 2)


def silence(exchange: Exchange) -> Reply:
    return None


FAULTS = {
    "fetch: not leader": failing(FETCH, 6, times=3),
    "fetch: leader not available": failing(FETCH, 5, times=3),
    "fetch: unknown topic": failing(FETCH, 3, times=3),
    "fetch: no right to the topic": failing(FETCH, 29, times=3),
    "fetch: half an answer": first_times(FETCH, 2, half),
    "fetch: no answer": first_times(FETCH, 1, silence),
    "start offsets: not leader": failing(LIST_OFFSETS, 6, times=2),
    "start offsets: half an answer": first_times(LIST_OFFSETS, 1, half),
    "metadata: leader not available": failing(METADATA, 5, times=2),
    "metadata: half an answer": second_time(METADATA, half),
    "metadata: no answer": second_time(METADATA, silence),
    "committed offsets: load in progress": failing(OFFSET_FETCH, 14, times=3),
    "committed offsets: not the coordinator": failing(OFFSET_FETCH, 16, times=3),
    "committed offsets: unknown topic": failing(OFFSET_FETCH, 3, times=3),
    "committed offsets: unknown error": failing(OFFSET_FETCH, -1, times=3),
    "committed offsets: half an answer": second_time(OFFSET_FETCH, half),
    "committed offsets: no answer": second_time(OFFSET_FETCH, silence),
    "commit: offsets load in progress": failing(OFFSET_COMMIT, 14, times=2),
    "commit: coordinator not available": failing(OFFSET_COMMIT, 15, times=2),
    "commit: not the coordinator": failing(OFFSET_COMMIT, 16, times=2),
    "commit: unknown topic": failing(OFFSET_COMMIT, 3, times=2),
    "commit: unknown error": failing(OFFSET_COMMIT, -1, times=2),
    "commit: metadata too large": failing(OFFSET_COMMIT, 12, times=1),
    "commit: half an answer": first_times(OFFSET_COMMIT, 1, half),
    "commit: no answer": first_times(OFFSET_COMMIT, 1, silence),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_group_survives_a_fault_of_its_broker(cluster_39: Cluster, unique: Unique, fault: str) -> None:
    """Whatever the fault, every record is delivered, and in the end all offsets are committed."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 40)
    with KafkaProxy(cluster_39.brokers[0], FAULTS[fault]) as proxy:
        seen: list[bytes] = []

        async def consume(consumer: GroupedConsumer) -> None:
            async for record in consumer:
                seen.append(record.value)

        consumer = GroupedConsumer(
            [proxy.address],
            name,
            cluster_39.zk_hosts,
            store="broker-v0",
            auto_commit_interval_ms=100,
            request_timeout_ms=1_000,
            connect_timeout_ms=1_000,
        )
        async with consumer:
            await consumer.subscribe(topic)
            task = asyncio.ensure_future(consume(consumer))
            await eventually(lambda: set(values) <= set(seen), "everything is delivered")
            with zookeeper(cluster_39) as client:
                await eventually(
                    lambda: sum(stored_offsets(client, name, topic).values()) == 40, "everything is committed"
                )
            await consumer.close()
            await task


async def test_a_slow_broker_costs_only_time(cluster_39: Cluster, unique: Unique) -> None:
    """Late answers, even those after the request timeout, cost no record and no commit."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    with KafkaProxy(cluster_39.brokers[0]) as proxy:
        proxy.delay(0.1)
        values = await produced_through(proxy, topic)
        slow = {"request_timeout_ms": 500, "connect_timeout_ms": 1_000, "max_wait_time": 100}
        async with group_of(
            cluster_39, name, [topic], brokers=[proxy.address], store="broker-v0", auto_commit_interval_ms=100, **slow
        ) as group:
            member = await group.join()
            assert await group.delivered(values) == Counter(values)
            with zookeeper(cluster_39) as client:
                await eventually(
                    lambda: stored_offsets(client, name, topic) == {0: 20},
                    "the offsets are committed through the slow broker",
                )
                proxy.delay(2.0, Direction.RESPONSES)
                timeouts = member.consumer.metrics.total("request_timeouts")
                values += await produce(cluster_39, topic, 20, first=20)
                await eventually(lambda: member.consumer.metrics.total("request_timeouts") > timeouts, "it is too slow")
                proxy.heal()
                assert await group.delivered(values) == Counter(values)
                await eventually(lambda: stored_offsets(client, name, topic) == {0: 40}, "the rest is committed")


async def produced_through(proxy: KafkaProxy, topic: str) -> list[bytes]:
    """Produce numbered values through the proxy, and wait for their acknowledgements."""
    values = [b"%d" % number for number in range(20)]
    async with Producer([proxy.address]) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in values))
    return values


async def test_unknown_topic_for_an_offset_does_not_reset_it(cluster_39: Cluster, unique: Unique) -> None:
    """
    A broker that has just started answers with code 3 for every offset. The member reads the offset znode instead.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 10)
    with zookeeper(cluster_39) as client:
        client.create(GroupLayout(name).offset(TopicPartition(topic, 0)), b"7", makepath=True)
    with KafkaProxy(cluster_39.brokers[0], failing(OFFSET_FETCH, 3)) as proxy:
        async with GroupedConsumer([proxy.address], name, cluster_39.zk_hosts, store="broker-v0") as consumer:
            await consumer.subscribe(topic)
            async for record in consumer:
                assert record.offset == 7
                break


async def test_a_fatal_error_of_an_offset_fetch_is_raised(cluster_39: Cluster, unique: Unique) -> None:
    """The error names group, partition and code."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    with KafkaProxy(cluster_39.brokers[0], failing(OFFSET_FETCH, 17)) as proxy:
        consumer = GroupedConsumer([proxy.address], name, cluster_39.zk_hosts, store="broker-v0", max_wait_time=100)

        async def consume() -> None:
            while True:
                assert await consumer.consume(topic) == []

        with pytest.raises(NoOffsetsError, match=rf"group {name}: the offset of {topic}:0 .*INVALID_TOPIC \(17\)"):
            await asyncio.wait_for(consume(), 30)
        await consumer.close()


async def test_a_refused_commit_does_not_stop_delivery(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal is logged and counted, and records are still delivered."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 5)
    with KafkaProxy(cluster_39.brokers[0], failing(OFFSET_COMMIT, 17)) as proxy:
        consumer = GroupedConsumer(
            [proxy.address], name, cluster_39.zk_hosts, deserializer=bytes, store="broker-v0", max_wait_time=200
        )
        seen: list[bytes] = []
        while len(seen) < 5:
            seen += await consumer.consume(topic) or []
        await consumer.commit_offsets()
        assert sorted(seen) == sorted(values)
        assert consumer.metrics.total("commits_refused") == 1
        assert "INVALID_TOPIC (17)" in caplog.text
        await consumer.close()


async def test_a_frozen_broker_does_not_block_commits_by_others(
    start_cluster: Callable[..., Cluster], unique: Unique
) -> None:
    """Any broker can store an offset. A broker that does not answer delays the commit by about a second."""
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 2)
    with zookeeper(cluster) as client:
        state = json.loads(client.get("/brokers/topics/t/partitions/0/state")[0])
    other = 1 - int(state["leader"])
    async with Producer(cluster.brokers, serializer=bytes) as producer:
        await producer.produce("t", b"value", partition=0)
    async with GroupedConsumer(cluster.brokers, "g", cluster.zk_hosts, store="broker-v0", autocommit=False) as consumer:
        await consumer.subscribe("t")
        async for _ in consumer:
            cluster.kafka[other].pause()
            try:
                assert await asyncio.wait_for(consumer.commit(), 30) == {TopicPartition("t", 0)}
            finally:
                cluster.kafka[other].resume()
            break


@pytest.mark.parametrize(
    "answer",
    [
        failing(PRODUCE, 6, times=2),
        failing(PRODUCE, 3, times=1),
        failing(PRODUCE, 7, times=1),
        first_times(PRODUCE, 1, half),
        first_times(PRODUCE, 1, silence),
    ],
    ids=["not leader", "unknown topic", "timed out", "half an answer", "no answer"],
)
async def test_a_producer_survives_a_fault_of_its_broker(cluster_39: Cluster, unique: Unique, answer: Answer) -> None:
    """
    A record with an unknown outcome is sent again, so it is stored at least once. The caller gets the offset of one
    copy.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    with KafkaProxy(cluster_39.brokers[0], answer) as proxy:
        async with Producer([proxy.address], request_timeout_ms=1_000) as producer:
            stored = await producer.produce(topic, b"value")
    assert (stored.topic, stored.partition) == (topic, 0)
    assert stored.offset >= 0
