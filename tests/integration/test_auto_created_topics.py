"""Brokers that create each topic which a request names: consumers do not have a deleted topic created again."""

from __future__ import annotations

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from kiel_groups.ops.zookeeper_reader import list_topics
from kiel_groups.wire.metadata import MetadataRequest
from tests.helpers.cluster_data import zookeeper
from tests.helpers.group_backends import GroupBackend
from tests.helpers.raw_requests import ask_at
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

CREATING = {"auto.create.topics.enable": "true", "zookeeper.session.timeout.ms": 10_000}


@pytest.mark.parametrize("kafka", ["0.8.2.2", "0.9.0.1"])
async def test_a_deleted_topic_is_not_created_again(kafka: str) -> None:
    """
    While a consumer reads a topic of one or more partitions, the topic is deleted. The consumer keeps asking for its
    leaders, and the topic remains deleted.
    """
    async with Cluster(kafka=kafka, broker_overrides=CREATING) as cluster:
        await cluster.create_topic("kept", 1)
        for name, partitions in {"small": 1, "large": 20}.items():
            await cluster.create_topic(name, partitions)
            async with Producer(cluster.brokers) as producer:
                await producer.produce(name, "0", partition=0)
            async with SingleConsumer(cluster.brokers, max_wait_time=100) as consumer:
                consumer.assign([TopicPartition(name, number) for number in range(partitions)])
                assert len((await consumer.getmany(timeout_ms=20_000))[TopicPartition(name, 0)]) == 1
                # The first requests after the answer for all topics name them.
                await consumer._require_cluster().refresh([], "test")
                await cluster.delete_topic(name)
                metrics = consumer.metrics
                refreshes = metrics.total("metadata_refreshes")
                await eventually(lambda: metrics.total("metadata_refreshes") >= refreshes + 6, "six requests", 20)  # noqa: B023
                with zookeeper(cluster) as client:
                    assert list_topics(client) == ["kept"]


async def test_a_topic_that_a_group_waits_for_is_not_created(coordinating_version: str) -> None:
    """
    A group subscribes to a topic that does not exist. Its members ask for the topics of the group again and again, and
    the brokers do not create it. When an operator has created it, the group reads it.
    """
    async with Cluster(kafka=coordinating_version, broker_overrides={"auto.create.topics.enable": "true"}) as cluster:
        await cluster.create_topic("kept", 1)
        backend = GroupBackend(cluster, "brokers")
        async with backend.consumer("g", metadata_max_age_ms=200) as consumer:
            await consumer.subscribe(["kept", "missing"])
            refreshes = consumer.metrics.total("metadata_refreshes")
            await eventually(lambda: consumer.metrics.total("metadata_refreshes") >= refreshes + 6, "six requests", 20)
            listed = await ask_at(cluster.brokers[0], MetadataRequest())
            assert {topic.topic for topic in listed.topics} == {"kept", "__consumer_offsets"}
            await cluster.create_topic("missing", 1)
            await eventually(lambda: len(consumer.assignment()) == 2, "the group has the new topic", 20)
