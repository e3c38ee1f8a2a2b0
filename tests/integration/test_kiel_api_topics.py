"""Brokers that create topics on demand: consumers do not make them create topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiel_groups.clients import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import zookeeper
from tests.helpers.kiel_api import consumer_of, values

pytestmark = pytest.mark.integration


async def test_consuming_a_misspelt_topic_creates_none(start_cluster: Callable[..., Cluster]) -> None:
    """
    Consuming a misspelt topic does not create it, before or after a consumer has connected. Producing still creates a
    topic.
    """
    cluster = start_cluster(broker_overrides={"auto.create.topics.enable": "true"})
    async with Producer(cluster.brokers) as producer:
        await producer.produce("there", 1)
    grouped, single = consumer_of(cluster, "group"), SingleConsumer(cluster.brokers, max_wait_time=200)
    for typo in ("before", "after"):
        assert await grouped.consume(typo) == []
        assert await single.consume(typo) == []
    assert await values(single, "there", 1, start=single.BEGINNING) == [1]
    await grouped.close()
    await single.close()
    with zookeeper(cluster) as client:
        assert client.get_children("/brokers/topics") == ["there"]
