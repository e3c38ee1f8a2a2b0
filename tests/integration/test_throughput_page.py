"""The page about throughput: its settings work, and do what the page says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import produce
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PAGE = (REPOSITORY / "docs/throughput.rst").read_text(encoding="utf-8")
#: What the page sets, a dictionary for each load.
SETTINGS = [
    {name: int(number) for name, number in re.findall(r"(\w+)=([\d_]+)", text)}
    for text in re.findall(r"``(\w+=[\d_]+(?:, \w+=[\d_]+)*)``", PAGE)
]
COLLECTING = next(each for each in SETTINGS if "min_bytes" in each)


def test_the_page_has_settings() -> None:
    """The pattern finds them."""
    assert {name for each in SETTINGS for name in each} == {
        "fetch_buffer_bytes",
        "max_bytes",
        "max_wait_time",
        "min_bytes",
    }


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
async def test_a_consumer_reads_with_the_settings_of_a_load(
    settings: dict[str, int], cluster_39: Cluster, unique: Unique
) -> None:
    """Each record is delivered once, in order."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    written = await produce(cluster_39, topic, 300)
    async with SingleConsumer(cluster_39.brokers, **settings) as consumer, asyncio.timeout(30.0):  # type: ignore[arg-type]
        await consumer.subscribe([topic], SingleConsumer.BEGINNING)
        assert [(await consumer.getone()).value for _ in range(300)] == written


async def fetches_of_a_trickle(cluster: Cluster, topic: str, **settings: int) -> int:
    """
    Produce 40 messages, each after the one before is stored, and return how many fetches delivered them.

    Without settings, each message is produced after the one before is delivered: a slow consumer would get two at once.
    """
    await cluster.create_topic(topic, 1)
    async with (
        SingleConsumer(cluster.brokers, **settings) as consumer,  # type: ignore[arg-type]
        Producer(cluster.brokers) as producer,
        asyncio.timeout(60.0),
    ):
        await consumer.subscribe([topic])
        await producer.produce(topic, b"the first one")
        await consumer.getone()
        before = consumer.metrics.latency("request", api="FetchRequest").count
        for _ in range(40):
            await producer.produce(topic, b"x")
            await (asyncio.sleep(0.005) if settings else consumer.getone())
        for _ in range(40 if settings else 0):
            await consumer.getone()
        return consumer.metrics.latency("request", api="FetchRequest").count - before


async def test_brokers_collect_messages_with_min_bytes(cluster_39: Cluster, unique: Unique) -> None:
    """By default each of 40 messages is an answer; with the settings of the page, a few answers have all."""
    assert await fetches_of_a_trickle(cluster_39, unique("default")) >= 40
    assert await fetches_of_a_trickle(cluster_39, unique("collecting"), **COLLECTING) < 20
