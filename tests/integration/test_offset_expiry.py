"""
Offsets that brokers before Kafka 2.1 expire by their commits' age, also in live groups.

The brokers keep offsets for at least a minute by their own settings. These commits ask for two seconds, as the protocol
lets each commit do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.clients.coordination import BrokerCoordination
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers import coordinator_commits
from kiel_groups.wire.offsets import OffsetCommitRequestV2
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.servers import played_kafkas
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

#: Members refresh their offsets four times in this time, and the computer may stand still for some seconds.
RETENTION_MS = 4_000


@pytest.fixture(scope="module", params=played_kafkas(("0.9.0.1", "0.10.2.2", "1.1.1")), ids=lambda each: f"kafka{each}")
def impatient_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a cluster whose broker looks for expired offsets twice a second."""
    settings = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 500}
    with Cluster(kafka=request.param, broker_overrides=settings) as cluster:
        yield cluster


@pytest.fixture
def expiring(impatient_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> GroupBackend:
    """Return a backend to which members commit offsets that expire soon."""
    short = partial(OffsetCommitRequestV2, retention_ms=RETENTION_MS)
    monkeypatch.setattr(coordinator_commits, "OffsetCommitRequestV2", short)
    return GroupBackend(impatient_cluster, "brokers")


@asynccontextmanager
async def idle_member(backend: GroupBackend, group: str, topic: str, refresh_ms: int) -> AsyncIterator[GroupedConsumer]:
    """Provide a member that has read and committed five records of a new topic, and has nothing more to do."""
    await backend.cluster.create_topic(topic, 1)
    await produce(backend.cluster, topic, 5)
    consumer = backend.consumer(group, auto_commit_interval_ms=100, auto_offset_reset="latest")
    coordination = cast(BrokerCoordination, consumer._lifecycle.settings.coordination)
    timing = replace(coordination.timing, offset_refresh_ms=refresh_ms)
    consumer._lifecycle.settings = replace(
        consumer._lifecycle.settings, coordination=replace(coordination, timing=timing)
    )
    async with consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled, "the member owns the partition")
        consumer.seek_to_beginning()
        await eventually(lambda: consumer.getmany(timeout_ms=100), "records are read")
        assert await consumer.getmany() == {}
        await backend.await_committed(group, topic, 5)
        yield consumer


async def test_offsets_of_idle_partitions_are_committed_again(expiring: GroupBackend, unique: Unique) -> None:
    """They outlive the retention several times."""
    topic, group = unique("topic"), unique("group")
    async with idle_member(expiring, group, topic, RETENTION_MS // 4) as consumer:
        commits = consumer.metrics.latency("commit").count
        await throughout(
            lambda: expiring.stored(group, topic) == {0: 5}, "the offset is there", 2.5 * RETENTION_MS / 1000
        )
        assert consumer.metrics.latency("commit").count >= commits + 5
        assert consumer.metrics.total("offsets_expired") == 0


async def test_an_expired_offset_is_an_alarm_and_no_reset(
    expiring: GroupBackend, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The member knows what it has stored. In the next generation it continues there, stores the offset again, and logs an
    error: ``latest`` would skip what was produced since.
    """
    topic, other, group = unique("topic"), unique("other"), unique("group")
    await expiring.cluster.create_topic(other, 1)
    async with idle_member(expiring, group, topic, 3_600_000) as consumer:
        began_s = time.monotonic()
        await eventually(lambda: expiring.stored(group, topic) == {}, "the offset has expired in a live group")
        assert time.monotonic() - began_s < 20
        later = await produce(expiring.cluster, topic, 3, first=5)
        consumer.pause(*consumer.assignment())
        generation = consumer.fencing_token(min(consumer.assignment()))
        await consumer.subscribe([topic, other])
        await eventually(lambda: len(consumer.assignment()) == 2 and consumer.settled, "the next generation")
        assert consumer.fencing_token(min(consumer.assignment())) != generation
        assert consumer.metrics.total("offsets_expired") == 1
        assert f"the coordinator has lost the offsets of 1 partition, first {topic}:0" in caplog.text
        consumer.resume(*consumer.paused())
        async with asyncio.timeout(30):
            assert [(await consumer.getone()).value for _ in later] == later
    assert consumer.metrics.total("offset_resets") == 0
