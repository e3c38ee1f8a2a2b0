"""Every release of Kafka runs in the same way, and operations that a release does not support are refused."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from kiel_groups.clients import BEGINNING, GroupedConsumer, Producer, SingleConsumer
from kiel_groups.embedded import Cluster, KafkaBroker, processes
from kiel_groups.embedded.processes import accepts
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.errors import ConfigError, UnknownTopicError
from kiel_groups.ops import zookeeper_client
from kiel_groups.ops.actions.topics import partitions_of
from tests.helpers.servers import COORDINATING_KAFKAS, EARLY_KAFKAS

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def read(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """Read ``count`` values of a topic from its beginning."""
    async with SingleConsumer(cluster.brokers) as consumer, asyncio.timeout(60):
        await consumer.subscribe(topic, start=BEGINNING)
        return [(await anext(consumer)).value for _ in range(count)]


async def produce(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Produce values. Each value is stored exactly once unless a broker takes half a minute to answer."""
    async with Producer(cluster.brokers, ack_timeout=30_000) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in values))


async def brokers_know(cluster: Cluster, topic: str) -> None:
    """Wait until every broker knows a topic. The controller notifies brokers only after they have registered."""
    async with asyncio.timeout(60):
        for address in cluster.brokers:
            while True:
                try:
                    async with SingleConsumer([address]) as consumer:
                        await consumer.subscribe(topic)
                    break
                except UnknownTopicError:
                    continue


def orderly_stops(cluster: Cluster) -> list[int]:
    """Return how often each broker has shut down gracefully, according to its log."""
    return [broker.log.read_text(encoding="utf-8").lower().count("shut down completed") for broker in cluster.kafka]


async def kill_brokers(cluster: Cluster) -> None:
    await asyncio.gather(*map(KafkaBroker.kill, cluster.kafka))


# The test of releases that coordinate groups has the same steps.
@pytest.mark.parametrize("kafka", [kafka for kafka in EARLY_KAFKAS if kafka not in COORDINATING_KAFKAS])
@pytest.mark.slow
async def test_a_release_keeps_its_records_across_restarts(start_cluster: Callable[..., Cluster], kafka: str) -> None:
    """
    Two brokers run under a chroot. Clients can connect before the first topic exists. Records survive a stop and a kill
    −9.

    At the end, no broker waits for another broker for so long that it has to be killed. Brokers of 0.8.0 and 0.8.1.1
    once did: a replica waited 30 s for the answer to its last fetch. The test deletes no topic, because 0.8.1.1 may
    then hang while it stops: see ``Cluster.stop_brokers``.
    """
    settings = {"delete.topic.enable": "false"}
    cluster = start_cluster(brokers=2, kafka=kafka, chroot="/a/chroot", broker_overrides=settings)
    sent = [b"%d" % number for number in range(500)]
    store = "zookeeper" if kafka == "0.8.0" else "broker-v0"
    # Brokers of 0.8 do not appear in metadata before the first topic.
    async with (
        GroupedConsumer(cluster.brokers, "g", cluster.zk_hosts, store=store),
        Producer(cluster.brokers) as early,
    ):
        # The topic is not replicated, because 0.8 loses records of a topic whose replicas all die at once.
        await cluster.create_topic("t", 4)
        assert (await early.produce("t", sent[0], partition=3)).offset == 0
    await produce(cluster, "t", sent[1:])
    for end in (cluster.stop_brokers, partial(kill_brokers, cluster)):
        await end()
        assert not any(accepts(broker.port) for broker in cluster.kafka)
        await asyncio.gather(*map(KafkaBroker.start, cluster.kafka))
    await brokers_know(cluster, "t")
    assert Counter(await read(cluster, "t", len(sent))) == Counter(sent)
    assert orderly_stops(cluster) == [1, 1]
    await cluster.create_topic("replicated", 4, replication=2)
    await produce(cluster, "replicated", [b"value"] * 100)
    await asyncio.gather(*map(KafkaBroker.stop, cluster.kafka))
    assert orderly_stops(cluster) == [2, 2]


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_release_stores_what_is_produced(
    release_cluster: Cluster, unique: Unique, compression: str | None
) -> None:
    """Records can be read from the partitions to which they were sent, with and without compression."""
    topic = unique("topic")
    await release_cluster.create_topic(topic, 2)
    async with Producer(release_cluster.brokers, compression=compression) as producer:
        for partition in (0, 1):
            stored = await producer.produce(topic, b"to %d" % partition, partition=partition)
            assert (stored.partition, stored.offset) == (partition, 0)
    assert sorted(await read(release_cluster, topic, 2)) == [b"to 0", b"to 1"]


async def test_topics_grow_on_every_release(release_cluster: Cluster, unique: Unique) -> None:
    """The controller elects a leader for each added partition, and ``grow_topic`` waits for the leaders."""
    topic = unique("topic")
    await release_cluster.create_topic(topic, 1)
    await release_cluster.grow_topic(topic, 3)
    with zookeeper_client.zookeeper(release_cluster.zk_hosts) as client:
        assert sorted(partitions_of(client, topic)) == [0, 1, 2]


async def test_a_grown_topic_keeps_the_fields_of_its_znode(cluster_39: Cluster, unique: Unique) -> None:
    """``grow_topic`` keeps the fields that it does not know, such as the topic's id, which brokers from 2.8 on add."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    path = f"/brokers/topics/{topic}"
    with zookeeper_client.zookeeper(cluster_39.zk_hosts) as client:
        client.set(path, json.dumps(json.loads(client.get(path)[0]) | {"topic_id": "an id"}).encode())
        await cluster_39.grow_topic(topic, 2)
        grown = json.loads(client.get(path)[0])
    assert (grown["topic_id"], sorted(grown["partitions"])) == ("an id", ["0", "1"])


async def test_topics_are_deleted_if_the_release_supports_it(release_cluster: Cluster, unique: Unique) -> None:
    """The topic is deleted, or the error names the release and the topic still exists."""
    topic = unique("topic")
    await release_cluster.create_topic(topic, 2)
    if not kafka_release(release_cluster.kafka[0].version).deletes_topics:
        with pytest.raises(ConfigError, match=r"Kafka 0\.8\.0 cannot delete topics"):
            await release_cluster.delete_topic(topic)
        await release_cluster.grow_topic(topic, 3)
        return
    await release_cluster.delete_topic(topic)
    with pytest.raises(UnknownTopicError), zookeeper_client.zookeeper(release_cluster.zk_hosts) as client:
        partitions_of(client, topic)


def test_a_broker_gets_only_settings_of_its_release(release_cluster: Cluster) -> None:
    """The broker warns of no setting, and registers the loopback address."""
    broker = release_cluster.kafka[0]
    assert re.findall(r"Property \S+ is not valid", broker.log.read_text(encoding="utf-8")) == []
    with zookeeper_client.zookeeper(release_cluster.zk_hosts) as client:
        registered = json.loads(client.get(f"/brokers/ids/{broker.broker_id}")[0])
    assert (registered["host"], registered["port"]) == ("127.0.0.1", broker.port)
    assert registered["version"] == (2 if broker.version.startswith("0.9") else 1)


@pytest.mark.slow
async def test_a_release_that_coordinates_groups_stores_and_delivers(
    start_cluster: Callable[..., Cluster], coordinating_version: str
) -> None:
    """
    Three brokers create, grow and delete topics, store records, and keep them across a stop and a kill −9. They store
    each record of a replicated topic three times, so that the others deliver all after a kill −9 of one.
    """
    cluster = start_cluster(3, kafka=coordinating_version)
    sent = [b"%d" % number for number in range(200)]
    await cluster.create_topic("t", 2)
    await produce(cluster, "t", sent[:100])
    await cluster.grow_topic("t", 4)
    await produce(cluster, "t", sent[100:])
    assert Counter(await read(cluster, "t", len(sent))) == Counter(sent)
    for end in (cluster.stop_brokers, partial(kill_brokers, cluster)):
        await end()
        await asyncio.gather(*map(KafkaBroker.start, cluster.kafka))
    await brokers_know(cluster, "t")
    assert Counter(await read(cluster, "t", len(sent))) == Counter(sent)
    assert orderly_stops(cluster) == [1, 1, 1]
    for call, message in (
        (cluster.create_topic("t", 2), "exists already"),
        (cluster.create_topic("other", 2, replication=4), "expected 1 to 3"),
        (cluster.grow_topic("t", 4), "has 4 partitions"),
        (cluster.grow_topic("other", 4), "does not exist"),
        (cluster.delete_topic("other"), "does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            await call
    await cluster.delete_topic("t")
    await cluster.create_topic("t", 3, replication=3)
    await produce(cluster, "t", sent)
    await cluster.kafka[1].kill()
    assert Counter(await read(cluster, "t", len(sent))) == Counter(sent)


#: The last line of a start of a broker: "[Kafka Server 0], started", "[KafkaServer id=0] started", or, without
#: ZooKeeper, "Kafka Server started".
_STARTED = re.compile(r"Kafka ?Server( id=)? ?\d*\]?,? started")


def test_a_release_that_coordinates_groups_gets_only_its_settings(coordinating_cluster: Cluster) -> None:
    """The broker knows each of its settings, and starts without an error. Later errors may be those of other tests."""
    log = coordinating_cluster.kafka[0].log.read_text(encoding="utf-8")
    started = _STARTED.search(log)
    assert started, "the broker says that it has started"
    log = log[: started.end()]
    assert re.findall(r"Property \S+ is not valid|unknown config|isn't a known config", log) == []
    assert re.findall(r"ERROR.*", log) == []


@pytest.mark.parametrize("lost", [0, 1], ids=["clients", "controller"])
@pytest.mark.slow
def test_a_port_of_a_broker_in_kraft_mode_that_is_taken_is_replaced(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """If another process takes one of the two ports before the broker binds it, the broker starts on other ports."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen: list[int] = []

        class Loser(processes.ReservedPort):
            def __init__(self, number: int = 0) -> None:
                super().__init__(number)
                if len(chosen) == lost:
                    self.number = taken.getsockname()[1]
                chosen.append(self.number)

        monkeypatch.setattr(processes, "ReservedPort", Loser)
        with Cluster(kafka="3.9.1") as cluster:
            assert len(chosen) == 4, "two ports of the first attempt, and two of the second"
            assert cluster.kafka[0].port == chosen[2]
            assert accepts(chosen[3])
