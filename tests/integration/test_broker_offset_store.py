"""The ``broker-v0`` store: brokers write the offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import commit_offsets
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.errors import CommitFailedError, ConfigError, GroupConfigError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.wire.error_codes import NO_ERROR
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.members import Member, group_of
from tests.helpers.servers import EARLY_KAFKAS, LASTING_MS, PATIENT
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_members_share_rebalance_and_commit(cluster: Cluster, unique: Unique) -> None:
    """
    Every record is delivered once, also during clean rebalances. In the end the stored offsets are the ends of the
    logs.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    values = await produce(cluster, topic, 200)
    async with group_of(cluster, name, [topic], store="broker-v0", auto_commit_interval_ms=100) as group:
        first = await group.join()
        first.pace_s = 0.002
        await eventually(lambda: first.records, "the first member reads")
        await group.join()
        await group.balanced(topic, 4)
        await group.leave(first)
        values += await produce(cluster, topic, 200, first=200)
        assert await group.delivered(values) == Counter(values)
        assert group.overlaps() == []
        with zookeeper(cluster) as client:
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 400, "all is committed")


@pytest.mark.parametrize("kafka", [version for version in EARLY_KAFKAS if version != "0.8.0"])
@pytest.mark.parametrize(("reset", "start"), [("earliest", 0), ("latest", 10)])
async def test_the_start_offset_is_stored_at_the_first_claim(
    shared_clusters: Callable[..., Cluster], unique: Unique, kafka: str, reset: str, start: int
) -> None:
    """
    At the first claim, the member chooses the start by the reset policy, and stores it. An added partition starts at
    its beginning.
    """
    cluster, topic, name = shared_clusters("3.9.5", kafka), unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, 10)
    async with group_of(cluster, name, [topic], store="broker-v0", auto_offset_reset=reset) as group:
        await group.join()
        await group.balanced(topic, 1)
        with zookeeper(cluster) as client:
            assert stored_offsets(client, name, topic) == {0: start}
            await cluster.grow_topic(topic, 2)
            await group.balanced(topic, 2)
            assert stored_offsets(client, name, topic)[1] == 0


async def test_garbage_for_an_offset_does_not_block_other_partitions(cluster_39: Cluster, unique: Unique) -> None:
    """If brokers cannot parse an offset, the member reads the znode itself and replaces the garbage."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    values = await produce(cluster_39, topic, 40)
    with zookeeper(cluster_39) as client:
        client.create(GroupLayout(name).offset(TopicPartition(topic, 1)), b"garbage", makepath=True)
        async with group_of(cluster_39, name, [topic], store="broker-v0", auto_commit_interval_ms=100) as group:
            await group.join()
            await group.delivered(values)
            await eventually(lambda: sum(stored_offsets(client, name, topic).values()) == 40, "all is committed")


async def test_a_broker_that_is_down_costs_only_time(start_cluster: Callable[..., Cluster]) -> None:
    """A commit that reaches no broker does not count as stored; a later commit stores the offset."""
    cluster = start_cluster()
    await cluster.create_topic("t", 1)
    await produce(cluster, "t", 20)
    async with group_of(cluster, "g", ["t"], store="broker-v0", auto_commit_interval_ms=50) as group:
        await group.join()
        with zookeeper(cluster) as client:
            await eventually(lambda: stored_offsets(client, "g", "t") == {0: 20}, "the first commit")
            await cluster.kafka[0].restart()
            await produce(cluster, "t", 5, first=20)
            await eventually(lambda: stored_offsets(client, "g", "t") == {0: 25}, "the next commit", timeout_s=60)


async def test_a_commit_that_brokers_do_not_confirm_raises(start_cluster: Callable[..., Cluster]) -> None:
    """A frozen broker stores nothing. A program that does not look at the result of ``commit()`` must learn of it."""
    cluster = start_cluster(broker_overrides=PATIENT, max_session_timeout_ms=LASTING_MS)
    await cluster.create_topic("t", 1)
    await produce(cluster, "t", 2)
    settings = {"store": "broker-v0", "autocommit": False, "request_timeout_ms": 500}
    async with GroupedConsumer(cluster.brokers, "g", cluster.zk_hosts, **settings) as consumer:
        await consumer.subscribe("t")
        for chosen in (None, {TopicPartition("t", 0): 2}):
            record = await consumer.getone()
            cluster.kafka[0].pause()
            try:
                with pytest.raises(CommitFailedError, match=r"t:0.* not stored: brokers did not confirm it in time"):
                    await consumer.commit(chosen)
            finally:
                cluster.kafka[0].resume()
            assert await consumer.commit() == {record.topic_partition}


async def test_a_member_with_the_other_store_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """All members of a group use the same offset store."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    async with group_of(cluster_39, name, [topic], store="broker-v0") as group:
        await group.join()
        other = Member(cluster_39, name, [topic])
        with pytest.raises(GroupConfigError, match="store is 'broker-v0' there and 'zookeeper' here"):
            await other.start()


@pytest.mark.xdist_group("0.8.0")
async def test_brokers_that_store_no_offsets_are_refused(
    shared_clusters: Callable[..., Cluster], unique: Unique
) -> None:
    """
    On 0.8.0 the error names the setting, the release and the remedy. The consumer does not join the group, and the
    remedy works.
    """
    cluster, name = shared_clusters("3.9.5", "0.8.0"), unique("group")
    with pytest.raises(ConfigError) as caught:
        await GroupedConsumer(cluster.brokers, name, cluster.zk_hosts, store="broker-v0").connect()
    assert str(caught.value) == (
        "store: 'broker-v0' needs brokers that store offsets, and these close the connection on being asked, as those"
        " of Kafka 0.8.0 do; use store='zookeeper' (the offsets are in the same place)"
    )
    with zookeeper(cluster) as client:
        assert client.exists(GroupLayout(name).root) is None
    async with GroupedConsumer(cluster.brokers, name, cluster.zk_hosts, store="zookeeper") as consumer:
        assert consumer.allocation == {}


async def test_metadata_that_is_too_long_is_left_out(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """When a broker answers with code 12, the offset is committed without the metadata, and a warning is logged."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(cluster_39.brokers, 9092, "brokers")), Metrics())
    await view.await_topics([topic])
    partition = TopicPartition(topic, 0)
    answers = await commit_offsets(view, Metrics(), name, {partition: 7}, "x" * 5000)
    view.close()
    assert answers == {partition: NO_ERROR}
    assert "too long (5,000 characters)" in caplog.text
    with zookeeper(cluster_39) as client:
        assert stored_offsets(client, name, topic) == {0: 7}


async def test_a_topic_that_no_broker_knows_is_reported(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Code 3 is retried, because a broker may have just started. After the last retry an error is logged and counted.
    """
    metrics = Metrics()
    hosts = parse_hosts(cluster_39.brokers, 9092, "brokers")
    view = ClusterMetadata(BrokerConfig(hosts=hosts, backoff_ms=1, max_backoff_ms=2), metrics)
    await view.refresh((), "test")
    partition = TopicPartition(unique("nowhere"), 0)
    answers = await asyncio.wait_for(commit_offsets(view, metrics, unique("group"), {partition: 7}, ""), 30)
    view.close()
    assert answers[partition].name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert metrics.total("commits_refused") == 1
    assert str(partition) in caplog.text
