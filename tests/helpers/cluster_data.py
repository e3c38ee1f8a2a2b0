"""Produce to the topics of a cluster, and read what a group stores in its ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from kiel_groups.clients import Producer, hash_partitioner
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.topic_requests import CreateTopicsRequest, NewTopic
from tests.helpers.raw_requests import ask_at
from tests.helpers.waiting import eventually

__all__ = [
    "await_committed",
    "committed",
    "create_compacted_topic",
    "incarnation_of",
    "members",
    "owners",
    "produce",
    "stored_offsets",
    "zookeeper",
]

_COMPACTED = {"cleanup.policy": "compact"}


async def produce(cluster: Cluster, topic: str, count: int, first: int = 0) -> list[bytes]:
    """
    Produce ``count`` numbers, beginning with ``first``, as values and keys, and return the values.

    The key decides on the partition, so a partition has the same records in each run. No record is stored twice because
    a replica on a busy machine confirms late.
    """
    values = [b"%d" % number for number in range(first, first + count)]
    async with Producer(cluster.brokers, partitioner=hash_partitioner, ack_timeout=30_000) as producer:
        await asyncio.gather(*(producer.produce(topic, value, key=value) for value in values))
    return values


async def create_compacted_topic(cluster: Cluster, topic: str, **settings: str) -> None:
    """Create a topic of one partition that is compacted, with further ``settings`` if ZooKeeper has them."""
    if cluster.uses_zookeeper:
        with zookeeper(cluster) as client:
            data = json.dumps({"version": 1, "config": _COMPACTED | settings}).encode()
            client.create(f"/config/topics/{topic}", data, makepath=True)
        await cluster.create_topic(topic, 1)
        return
    request = CreateTopicsRequest({topic: NewTopic(1, 1, settings=_COMPACTED)}, 10_000)
    assert await ask_at(cluster.brokers[0], request) == {topic: NO_ERROR}


@contextmanager
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    """Provide a ZooKeeper client for the test, independent of the members' sessions."""
    client = KazooClient(cluster.zk_hosts, timeout=30)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def stored_offsets(client: KazooClient, group: str, topic: str) -> dict[int, int]:
    """Return a group's committed offsets in ZooKeeper, by partition."""
    folder = GroupLayout(group).topic_offsets(topic)
    if client.exists(folder) is None:
        return {}
    return {int(name): int(client.get(f"{folder}/{name}")[0]) for name in client.get_children(folder)}


def incarnation_of(cluster: Cluster, topic: str) -> int:
    """Return the creation zxid of a topic."""
    with zookeeper(cluster) as client:
        return int(client.get(topic_path(topic))[1].czxid)


def committed(cluster: Cluster, group: str, topic: str) -> int:
    """Return the number of records that a group has committed in all partitions, if their logs start at 0."""
    with zookeeper(cluster) as client:
        return sum(stored_offsets(client, group, topic).values())


async def await_committed(cluster: Cluster, group: str, topic: str, total: int) -> None:
    """Wait until the committed offsets add up to ``total``."""
    with zookeeper(cluster) as client:
        await eventually(
            lambda: sum(stored_offsets(client, group, topic).values()) == total, f"offsets add up to {total}"
        )


def members(cluster: Cluster, group: str) -> list[str]:
    """Return the ids of a group's members."""
    with zookeeper(cluster) as client:
        return list(client.get_children(GroupLayout(group).members))


def owners(client: KazooClient, group: str, topic: str) -> dict[int, tuple[str, int]]:
    """Return the data and the czxid of each owner znode of a topic, by partition."""
    folder = GroupLayout(group).topic_owners(topic)
    found = {}
    for name in client.get_children(folder) if client.exists(folder) else ():
        try:
            data, stat = client.get(f"{folder}/{name}")
        except Exception:
            continue
        found[int(name)] = (data.decode(), stat.czxid)
    return found
