"""Producers that are stopped: accepted records are acknowledged, or their outcome is unknown."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups import TopicPartition
from kiel_groups.clients import Producer, SingleConsumer
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import list_offsets
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, OutcomeUnknownError
from kiel_groups.metrics import Metrics
from tests.helpers.commands import Running
from tests.helpers.interrupted_producers import STYLES
from tests.helpers.running_time import running_s

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

ROUNDS = 10
#: Far more than the few milliseconds of a usual close, far less than the two seconds that a close may take.
SLOW_MS = 1_000


async def copies(cluster: Cluster, topic: str) -> Counter[tuple[int, int]]:
    """Return the number of copies of each record in the log of the only partition, by seed and number."""
    view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(cluster.brokers, KAFKA_PORT, "brokers")), Metrics())
    (end,) = (await list_offsets(view, [TopicPartition(topic, 0)], -1)).values()
    view.close()
    found: Counter[tuple[int, int]] = Counter()
    async with SingleConsumer(cluster.brokers) as consumer:
        await consumer.subscribe(topic, start=consumer.BEGINNING)
        while sum(found.values()) < end:
            value = json.loads((await asyncio.wait_for(anext(consumer), 10)).value)
            found[value["seed"], value["n"]] += 1
    return found


@pytest.mark.parametrize("style", STYLES)
async def test_a_producer_is_stopped_by_ctrl_c(cluster_39: Cluster, unique: Unique, style: str) -> None:
    """Programs in five styles are stopped under load: all accepted records are stored once, within milliseconds."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    maker = ["-W", "error", "-m", "tests.helpers.interrupted_producers", style, cluster_39.brokers[0], topic]
    with Running([*maker, "0", str(ROUNDS)]) as running:
        assert running.wait(60) == 0, running.errors[-20:]
        reports = [json.loads(line) for line in running.lines]
    assert len(reports) == ROUNDS
    assert [line for line in running.errors if "never" in line or "ignored" in line or "Traceback" in line] == []
    found = await copies(cluster_39, topic)
    assert max(found.values()) == 1, "no record is stored twice"
    by_seed = Counter(seed for seed, _ in found)
    for report in reports:
        # In the blocking style a Ctrl-C may come between the count of a record and its production.
        assert report["stored"] == by_seed[report["seed"]] >= report["accepted"] - (style == "blocking"), report
        assert report["failed"] == report["unknown"] == 0, report
        assert report["errors"] == [], report
        assert report["closed_ms"] < SLOW_MS, report


async def test_a_producer_is_closed_while_its_broker_is_frozen(
    start_cluster: Callable[..., Cluster], unique: Unique
) -> None:
    """
    The close needs no timeout. The outcome of sent records is unknown. Records that were not sent are reported as such.
    """
    cluster = start_cluster(broker_overrides={"zookeeper.session.timeout.ms": 30_000})
    topic = unique("topic")
    await cluster.create_topic(topic, 1)
    producer = Producer(cluster.brokers, request_timeout_ms=1_000, linger_ms=0)
    assert (await producer.produce(topic, b"stored")).offset == 0
    (broker,) = [server for server in cluster.servers if server is not cluster.zookeeper]
    broker.pause()
    try:
        began_s, began_running_s = time.monotonic(), running_s()
        sent = producer.produce(topic, b"sent")
        await asyncio.sleep(0)
        queued = [producer.produce(topic, bytes(500_000)) for _ in range(3)]
        await producer.close()
        assert time.monotonic() - began_s > 1.4
        assert running_s() - began_running_s < 5, "one request timeout at most"
        assert isinstance(sent.exception(), OutcomeUnknownError)
        assert "may or may not be stored" in str(sent.exception())
        assert isinstance(queued[-1].exception(), ClosedError)
    finally:
        broker.resume()
