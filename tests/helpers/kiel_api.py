"""Use kiel's API as programs written for kiel do: kiel's arguments, values as JSON, offsets in ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.members import LASTING

__all__ = ["consumer_of", "offsets", "produce", "values"]


def consumer_of(cluster: Cluster, group: str, **settings: Any) -> GroupedConsumer:
    """Create a consumer with kiel's arguments. A short ``max_wait_time`` keeps tests short."""
    return GroupedConsumer(
        brokers=cluster.brokers,
        group=group,
        zk_hosts=[cluster.zk_hosts],
        **({**LASTING, "max_wait_time": 200} | settings),
    )


async def produce(cluster: Cluster, topic: str, *values: Any, partition: int | None = None) -> None:
    """Produce values as JSON, and bytes unchanged."""
    async with Producer(cluster.brokers) as producer:
        for value in values:
            raw = value if isinstance(value, bytes) else json.dumps(value).encode()
            await producer.produce(topic, raw, partition=partition)


async def values(consumer: GroupedConsumer | SingleConsumer, topic: str, count: int, **options: Any) -> list[Any]:
    """Consume until at least ``count`` values have been received, and return all received values."""
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.consume(topic, **options) or []
    return found


async def offsets(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets by partition."""

    def read() -> dict[int, int]:
        with zookeeper(cluster) as client:
            return stored_offsets(client, group, topic)

    return await asyncio.to_thread(read)
