"""Faults of the coordinator that keeps a group's offsets in Kafka (``broker-v1``): error codes and lost answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import CommitFailedError, NoOffsetsError
from kiel_groups.members.offsets import kafka_store
from tests.helpers.cluster_data import produce
from tests.helpers.members import group_of
from tests.helpers.offsets_in_kafka import KEEPING, OffsetsInKafka
from tests.proxies.kafka_proxy import Answer, Exchange, KafkaProxy, Reply, failing

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

STORE = {"store": "broker-v1", "auto_commit_interval_ms": 100}


@pytest.fixture(params=KEEPING, ids=lambda version: f"kafka{version}")
def keeping_cluster(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Cluster:
    """Return a shared cluster. The test runs once for each release that keeps offsets in Kafka."""
    return shared_clusters("3.9.5", request.param)


OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
TIMES = 3


def losing(api_key: int) -> Answer:
    """Return a function that loses the first answers to one request, which the broker has performed."""

    def answer(exchange: Exchange) -> Reply:
        return None if exchange.api_key == api_key and exchange.number <= TIMES else exchange.response

    return answer


#: Answers that a coordinator gives while it moves or loads its log, and answers that are lost.
FAULTS: dict[str, Answer] = {
    **{f"commit-{code}": failing(OFFSET_COMMIT, code, times=TIMES) for code in (-1, 3, 7, 14, 15, 16)},
    **{f"fetch-{code}": failing(OFFSET_FETCH, code, times=TIMES) for code in (-1, 3, 14, 15, 16)},
    "find-15": failing(FIND_COORDINATOR, 15, times=TIMES),
    "commit-lost": losing(OFFSET_COMMIT),
    "fetch-lost": losing(OFFSET_FETCH),
    "find-lost": losing(FIND_COORDINATOR),
}


#: The proxy makes the faults, of which the releases know nothing; a later release tries those that lose an answer.
PASSING = [
    (version, fault) for version in KEEPING for fault in FAULTS if version == KEEPING[0] or fault.endswith("-lost")
]


@pytest.mark.parametrize(("keeping_cluster", "fault"), PASSING, indirect=["keeping_cluster"])
async def test_a_passing_fault_of_the_coordinator_costs_only_time(
    keeping_cluster: Cluster, unique: Unique, fault: str
) -> None:
    """The request is repeated; nothing is raised, no start is chosen anew, and no record is repeated or lost."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    await produce(cluster, topic, 40)
    in_kafka = OffsetsInKafka(cluster, name, topic, 2)
    await in_kafka.write({0: 10, 1: 10})
    with KafkaProxy(cluster.brokers[0], FAULTS[fault]) as proxy:
        settings = {**STORE, "request_timeout_ms": 1_000, "connect_timeout_ms": 1_000, "auto_offset_reset": "latest"}
        async with group_of(cluster, name, [topic], brokers=[proxy.address], **settings) as group:
            member = await group.join()
            await in_kafka.are_the_ends(60)
        counts = Counter(record.topic_partition for record in member.records)
        assert sum(counts.values()) == 20
        assert len({(record.topic_partition, record.offset) for record in member.records}) == 20


@pytest.mark.parametrize(("request_of", "code"), [(OFFSET_FETCH, 30), (OFFSET_FETCH, 29)])
async def test_a_lasting_refusal_of_a_read_is_raised(
    keeping_cluster: Cluster, unique: Unique, request_of: int, code: int
) -> None:
    """The error names group, partition and code, and the application gets it."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    with KafkaProxy(cluster.brokers[0], failing(request_of, code)) as proxy:
        async with GroupedConsumer([proxy.address], name, cluster.zk_hosts, store="broker-v1") as consumer:
            await consumer.subscribe(topic)
            with pytest.raises(
                NoOffsetsError, match=rf"group {name}: the offset of {topic}:0 cannot be read: .*{code}"
            ):
                await asyncio.wait_for(consumer.getone(), 30)


async def test_a_refused_commit_is_raised_and_logged(
    keeping_cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Code 25: brokers coordinate a group of this name. ``commit()`` raises, and the log says what to do."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 1)
    with KafkaProxy(cluster.brokers[0]) as proxy:
        async with GroupedConsumer(
            [proxy.address], name, cluster.zk_hosts, store="broker-v1", autocommit=False
        ) as consumer:
            await consumer.subscribe(topic)
            record = await consumer.getone()
            proxy.answer = failing(OFFSET_COMMIT, 25)
            with pytest.raises(CommitFailedError, match=f"{topic}:0 not stored"):
                await consumer.commit()
            assert "brokers coordinate a group of this name" in caplog.text
            assert consumer.metrics.total("commits_refused") == 1
            proxy.answer = None
            assert await consumer.commit() == {record.topic_partition}


async def test_a_commit_that_the_coordinator_does_not_confirm_is_raised(
    keeping_cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``commit()`` raises, and a later commit stores the offset, also after a seek back to the committed one."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 3)
    monkeypatch.setattr(kafka_store, "COMMIT_PATIENCE_S", 5.0)
    in_kafka = OffsetsInKafka(cluster, name, topic, 1)
    with KafkaProxy(cluster.brokers[0]) as proxy:
        async with GroupedConsumer(
            [proxy.address], name, cluster.zk_hosts, store="broker-v1", autocommit=False, request_timeout_ms=1_000
        ) as consumer:
            await consumer.subscribe(topic)
            partition = (await consumer.getone()).topic_partition
            proxy.answer = lambda exchange: (
                None if exchange.api_key in (OFFSET_COMMIT, OFFSET_FETCH) else exchange.response
            )
            with pytest.raises(CommitFailedError, match=f"{topic}:0 not stored"):
                await consumer.commit()
            proxy.answer = None
            monkeypatch.undo()
            assert await in_kafka.offsets() == {0: 1}, "it was stored, and the answer was lost"
            consumer.seek(partition, 0)
            assert await consumer.commit() == {partition}
            assert await in_kafka.offsets() == {0: 0}


async def test_an_unconfirmed_commit_is_looked_up(
    keeping_cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all answers to commits are lost, the stored offset tells that the commit was performed."""
    cluster, topic, name = keeping_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 1)
    monkeypatch.setattr(kafka_store, "COMMIT_PATIENCE_S", 5.0)
    with KafkaProxy(cluster.brokers[0]) as proxy:
        async with GroupedConsumer(
            [proxy.address], name, cluster.zk_hosts, store="broker-v1", autocommit=False, request_timeout_ms=1_000
        ) as consumer:
            await consumer.subscribe(topic)
            partition = (await consumer.getone()).topic_partition
            proxy.answer = lambda exchange: None if exchange.api_key == OFFSET_COMMIT else exchange.response
            assert await consumer.commit() == {partition}
            proxy.answer = None
