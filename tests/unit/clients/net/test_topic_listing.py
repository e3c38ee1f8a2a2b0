"""Which metadata requests name topics: a request that names a deleted topic creates it again at some brokers."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from kiel_groups.clients.net import metadata_sources
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.metadata_sources import NAMED_FOR_S
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.list_offsets import LATEST
from kiel_groups.wire.primitives import Reader
from tests.helpers.fake_broker import LIST_OFFSETS, METADATA, FakeBroker
from tests.helpers.reference_codec import int16, string

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


def named_topics(broker: FakeBroker) -> list[list[str]]:
    """Return the topics that each metadata request has named."""
    readers = (Reader(request.body, "a request") for request in broker.received(METADATA))
    return [[reader.string() for _ in reader.array(2)] for reader in readers]


async def test_a_topic_is_named_only_while_its_listing_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A request names topics for a while after all topics were listed, then it asks for all again: a request that names a
    topic which was deleted meanwhile creates it again.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "test")
        for later_s in (0.0, NAMED_FOR_S / 2, NAMED_FOR_S):
            clock = SimpleNamespace(monotonic=lambda later_s=later_s: time.monotonic() + later_s)
            monkeypatch.setattr(metadata_sources, "time", clock)
            await cluster.refresh(["t"], "test")
        assert named_topics(broker) == [[], ["t"], ["t"], []]
        cluster.close()


async def test_a_topic_that_a_broker_denies_is_not_named() -> None:
    """After a broker has denied that it knows a topic, the next request asks for all topics."""
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "test")
        cluster.listing.doubt()
        await cluster.refresh(["t"], "test")
        broker.fail_next(LIST_OFFSETS, T0, 3)
        assert await list_offsets(cluster, [T0], LATEST) == {T0: 0}
        await cluster.refresh(["t"], "test")
        assert named_topics(broker) == [[], [], [], ["t"]]
        cluster.close()


async def test_a_doubt_outlives_the_listing_in_flight() -> None:
    """If a broker denies a topic while all topics are being listed, that listing may be older: all are listed again."""
    async with FakeBroker({"t": 1}) as broker:
        broker.gates[METADATA] = asyncio.Event()
        cluster = ClusterMetadata(broker.config(), Metrics())
        listing = asyncio.create_task(cluster.refresh(["t"], "test"))
        await broker.wait_for_requests(METADATA, 1)
        cluster.listing.doubt()
        broker.gates[METADATA].set()
        await listing
        await cluster.refresh(["t"], "test")
        assert named_topics(broker) == [[], []]
        cluster.close()


async def test_a_topic_without_partitions_is_not_named_again() -> None:
    """
    A topic that is being deleted has no partitions in the answer to a request that names it. The next request asks for
    all topics.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "test")
        del broker.logs[T0]
        broker.script = lambda _: broker.metadata(["t"]).replace(int16(3) + string("t"), int16(5) + string("t"))
        await cluster.refresh(["t"], "test")
        broker.script = None
        await cluster.refresh(["t"], "test")
        assert named_topics(broker) == [[], ["t"], []]
        cluster.close()
