"""Topics that are deleted and created again under a live group that brokers coordinate, on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import KielGroupsError
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS, OLD, NEW = 3, 90, 900
#: The first value of the new log.
FIRST_NEW = 10_000


@asynccontextmanager
async def reading(
    consumer: GroupedConsumer, backend: GroupBackend, topic: str, values: set[bytes]
) -> AsyncIterator[None]:
    """Have a consumer read a new topic, to whose partitions ``OLD`` records are written, and commit them."""

    async def read() -> None:
        while True:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values.update(record.value for record in records)

    await backend.cluster.create_topic(topic, PARTITIONS)
    async with consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: len(consumer.assignment()) == PARTITIONS and consumer.settled, "it has the topic", 20)
        task = asyncio.ensure_future(read())
        try:
            await produce(backend.cluster, topic, OLD)
            await eventually(lambda: len(values) == OLD, "the old records are read", 20)
            await consumer.commit()
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def create_again(backend: GroupBackend, topic: str) -> None:
    """Create a deleted topic as soon as the brokers accept that, and write more records than it had before."""

    async def is_created() -> bool:
        with suppress(KielGroupsError):
            await backend.cluster.create_topic(topic, PARTITIONS)
            return True
        return False

    await eventually(is_created, "the topic is created again", 20)
    await produce(backend.cluster, topic, NEW, FIRST_NEW)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_topic_that_is_created_again_at_once_is_read_from_its_start(
    coordinating_cluster: Cluster, unique: Unique, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The new log is longer than the old one before the member notices: 300 of 6,000 records were skipped. On 0.9, all
    fetches may go on in the new log; then only a comparison of the logs shows it.
    """
    backend, topic, group = GroupBackend(coordinating_cluster, "brokers"), unique("t"), unique("g")
    values = set[bytes]()
    consumer = backend.consumer(group, auto_offset_reset=policy, auto_commit_interval_ms=100, metadata_max_age_ms=500)
    async with reading(consumer, backend, topic, values):
        joins = consumer.metrics.total("joins")
        await coordinating_cluster.delete_topic(topic)
        await create_again(backend, topic)
        await eventually(lambda: len(values) == OLD + NEW, "all new records are read", 20)
        await consumer.commit()
        assert sum(backend.stored(group, topic).values()) == NEW
    # A member that asks while there is no topic gives its partitions up, and joins once more for them.
    assert f"topic {topic} was deleted and created again" in caplog.text or consumer.metrics.total("joins") > joins


async def test_stored_offsets_of_a_deleted_topic_are_no_start_in_the_next_one(
    coordinating_cluster: Cluster, unique: Unique
) -> None:
    """
    The group rebalances while the topic is missing. Brokers of 0.9 keep its offsets; later ones forget them, and then
    the member does not start where it remembers to have been.
    """
    backend, topic, group = GroupBackend(coordinating_cluster, "brokers"), unique("t"), unique("g")
    values = set[bytes]()
    consumer = backend.consumer(group, auto_offset_reset="latest", auto_commit_interval_ms=100, metadata_max_age_ms=300)
    async with reading(consumer, backend, topic, values):
        await coordinating_cluster.delete_topic(topic)
        await eventually(lambda: not consumer.assignment() and consumer.settled, "nothing is assigned", 20)
        await create_again(backend, topic)
        await eventually(lambda: len(values) == OLD + NEW, f"all new records are read: {len(values)}", 20)
