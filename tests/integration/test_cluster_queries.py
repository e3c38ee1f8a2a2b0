"""What the consumers ask brokers about topics and logs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kiel_groups import OffsetAndTimestamp, Producer, SingleConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, ConfigError, UnknownTopicError

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

DAY_MS = 24 * 3600 * 1000


@asynccontextmanager
async def connected(cluster: Cluster, unique: Unique) -> AsyncIterator[tuple[SingleConsumer, str]]:
    """Connect a consumer, and yield it with the name of a topic of two partitions, with 5 and 2 records."""
    topic = unique("topic")
    await cluster.create_topic(topic, 2)
    async with Producer(cluster.brokers) as producer:
        for number in range(7):
            await producer.produce(topic, b"value", partition=int(number >= 5))
    async with SingleConsumer(cluster.brokers) as consumer:
        yield consumer, topic


async def test_the_ends_of_logs_are_known_without_a_subscription(release_cluster: Cluster, unique: Unique) -> None:
    """A plain tuple is a partition, too. No partition is no question."""
    async with connected(release_cluster, unique) as (consumer, topic):
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        assert await consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert await consumer.end_offsets([first, (topic, 1)]) == {first: 5, second: 2}  # type: ignore[list-item]
        assert await consumer.end_offsets([]) == {}
        assert consumer.allocation == {}


async def test_a_time_is_looked_up_for_each_partition(release_cluster: Cluster, unique: Unique) -> None:
    """A time before the log gives its beginning, a time after the last write its end."""
    async with connected(release_cluster, unique) as (consumer, topic):
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        now_ms = int(time.time() * 1000)
        assert await consumer.offsets_for_times({first: now_ms - DAY_MS, second: now_ms + DAY_MS + 0.5}) == {
            first: OffsetAndTimestamp(0, -1),
            second: OffsetAndTimestamp(2, -1),
        }
        with pytest.raises(
            ConfigError, match=r"offsets_for_times\(\): .*:1: -1 given; expected milliseconds since 1970"
        ):
            await consumer.offsets_for_times({first: now_ms, second: -1})


async def test_topics_and_their_partitions_are_listed(release_cluster: Cluster, unique: Unique) -> None:
    """The partitions of a topic are known once the consumer has heard of the topic."""
    async with connected(release_cluster, unique) as (consumer, topic):
        names = await consumer.topics()
        assert topic in names
        assert "__consumer_offsets" not in names
        assert consumer.partitions_for_topic(topic) == {0, 1}
        assert consumer.partitions_for_topic(f"{topic}-missing") is None


async def test_a_partition_that_does_not_exist_is_named(release_cluster: Cluster, unique: Unique) -> None:
    """The broker does not create the topic that the consumer asks about."""
    async with connected(release_cluster, unique) as (consumer, topic):
        with pytest.raises(UnknownTopicError, match=rf"^{topic}:2 does not exist; {topic} has partitions 0 to 1$"):
            await consumer.end_offsets([TopicPartition(topic, 0), TopicPartition(topic, 2)])
        with pytest.raises(UnknownTopicError, match=f"no broker knows the topic {topic}-missing"):
            await consumer.beginning_offsets([TopicPartition(f"{topic}-missing", 0)])
        assert f"{topic}-missing" not in await consumer.topics()


async def test_a_closed_consumer_answers_no_question(release_cluster: Cluster, unique: Unique) -> None:
    """Each question is refused."""
    async with connected(release_cluster, unique) as (consumer, topic):
        await consumer.close()
        for question in (consumer.topics(), consumer.end_offsets([TopicPartition(topic, 0)])):
            with pytest.raises(ClosedError, match="the consumer was closed"):
                await question
        with pytest.raises(ClosedError, match="the consumer was closed"):
            consumer.partitions_for_topic(topic)
