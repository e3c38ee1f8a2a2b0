"""A running consumer whose brokers no longer answer: what it reports, and how it recovers."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.clients import BEGINNING, SingleConsumer
from kiel_groups.clients.calls.callers import ConsumeCall
from kiel_groups.clients.connected_consumer import ConnectedConsumer, ConsumerSettings
from kiel_groups.clients.coordination import ZooKeeperCoordination
from kiel_groups.clients.net import metadata_sources
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, FetchConfig, GroupConfig, HostPort, ZooKeeperConfig
from kiel_groups.errors import NoBrokersError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from tests.helpers.delivery_bench import next_values
from tests.helpers.fake_broker import FETCH, METADATA, FakeBroker, Fault, message_set
from tests.helpers.single_consumers import T0, consuming
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

#: The number of unanswered refreshes that docs/migrating-from-kiel.rst states.
UNREACHABLE_AFTER = 8


async def test_unanswered_refreshes_in_a_row_are_counted() -> None:
    """
    After eight unanswered refreshes in a row, the brokers count as unreachable, with addresses and reasons, until one
    of them answers.
    """
    metrics = Metrics()
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), metrics)
        await cluster.refresh(["t"], "test")
    for number in range(1, UNREACHABLE_AFTER + 1):
        assert cluster.unreachable is None
        with pytest.raises(NoBrokersError):
            await cluster.refresh(["t"], "test")
        assert ("metadata_unanswered", (), float(number)) in list(metrics.samples())
    assert re.search(rf"{broker.address}: cannot connect: Connection refused", str(cluster.unreachable))
    async with broker:
        await cluster.refresh(["t"], "test")
        assert cluster.unreachable is None
        assert ("metadata_unanswered", (), 0.0) in list(metrics.samples())
    cluster.close()


@pytest.mark.parametrize(("text", "is_asked"), [("[zookeeper]\ntls = true", True), ("[kafka]\ntls = true", False)])
async def test_a_file_without_credentials_for_brokers_changes_no_reason(
    text: str, is_asked: bool, tmp_path: Path
) -> None:
    """A reason of TLS or SASL says enough. Without both, the error asks whether it is a broker that runs there."""
    path = tmp_path / "security.toml"
    path.write_text(text, encoding="utf-8")
    async with FakeBroker({"t": 1}) as broker:
        config = broker.config(security=path)
    cluster = ClusterMetadata(config, Metrics())
    with pytest.raises(NoBrokersError) as raised:
        await cluster.refresh(["t"], "test")
    assert ("; is it a broker that runs there?" in str(raised.value)) == is_asked
    cluster.close()


async def test_an_error_asks_once_whether_it_is_a_broker() -> None:
    """The reason of a server that speaks HTTP asks already."""
    async with FakeBroker(script=lambda _: Fault.HUGE) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        with pytest.raises(NoBrokersError, match=r"Is this a Kafka broker\?$"):
            await cluster.refresh(["t"], "test")
        cluster.close()


async def test_the_end_of_a_reported_outage_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If a single slow failure of a refresh was logged as an outage, the end of the outage is logged, too."""
    monkeypatch.setattr(metadata_sources, "_WARN_AFTER_S", 0.0)
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "test")
    with pytest.raises(NoBrokersError):
        await cluster.refresh(["t"], "test")
    async with broker:
        for _ in range(2):
            await cluster.refresh(["t"], "test")
    assert [line for line in caplog.messages if "answer again" in line] == [
        "brokers answer again, after 1 metadata request without an answer"
    ]
    cluster.close()


async def test_unreachable_brokers_are_asked_until_one_answers() -> None:
    """
    While the brokers are unreachable, the metadata is refreshed until one of them answers, because a member without
    partitions sends no fetches. Without subscribed topics, no request is sent.
    """
    topics: list[str] = []
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(metadata_max_age_ms=3_600_000), Metrics())
        await cluster.refresh(["t"], "test")
    renewing = asyncio.ensure_future(cluster.refresh_when_old(lambda: topics))
    while cluster.unreachable is None:
        with pytest.raises(NoBrokersError):
            await cluster.refresh(["t"], "test")
    async with asyncio.timeout(5):
        await renewing
        assert cluster.unreachable is not None
        topics.append("t")
        async with broker:
            await cluster.refresh_when_old(lambda: topics)
            assert cluster.unreachable is None
    cluster.close()


async def consume_until_raised(consumer: SingleConsumer) -> None:
    """Consume until an error is raised. Return without an error if values arrive."""
    while await consumer.consume("t") == []:
        pass


async def test_consume_raises_while_no_broker_answers_and_recovers() -> None:
    """
    While no broker answers, ``consume()`` raises an error with addresses and reasons, at most once per
    ``max_wait_time``. When a broker answers again, it returns values.
    """
    async with consuming(b"0", max_wait_time=50) as (broker, consumer):
        while not await consumer.consume("t", BEGINNING):
            pass
        await broker.stop()
        async with asyncio.timeout(5):
            with pytest.raises(NoBrokersError, match=f"{broker.address}: cannot connect"):
                await consume_until_raised(consumer)
        assert consumer.metrics.total("metadata_failures") >= UNREACHABLE_AFTER
        started_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(NoBrokersError):
                await consumer.consume("t")
        assert time.monotonic() - started_s >= 3 * 0.05
        broker.append(T0, message_set(b"1"))
        async with broker, asyncio.timeout(5):
            assert await values_after_errors(consumer) == [1]


async def test_silent_brokers_are_asked_for_metadata_until_one_answers() -> None:
    """
    After the first fetch to a silent broker has timed out, only metadata is requested, and ``consume()`` raises the
    error. When the broker answers again, values are returned.
    """
    quick = {"max_wait_time": 50, "request_timeout_ms": 600, "connect_timeout_ms": 100}
    async with consuming(b"0", **quick) as (broker, consumer):
        while not await consumer.consume("t", BEGINNING):
            pass
        broker.script = lambda _: Fault.SILENT
        fetches = broker.count(FETCH)
        async with asyncio.timeout(10):
            with pytest.raises(NoBrokersError, match="no answer to a MetadataRequest within 100 ms"):
                await consume_until_raised(consumer)
        # The fetch in flight, and the fetch that timed out.
        assert broker.count(FETCH) <= fetches + 2
        broker.script = None
        broker.append(T0, message_set(b"1"))
        async with asyncio.timeout(5):
            assert await values_after_errors(consumer) == [1]


async def test_brokers_that_do_not_answer_metadata_requests_are_fetched_from() -> None:
    """
    If a broker answers fetches but no metadata requests, a partition that needed fresh metadata is fetched anyway.
    """
    quick = {"max_wait_time": 50, "request_timeout_ms": 600, "connect_timeout_ms": 200}
    async with consuming(b"0", **quick) as (broker, consumer):
        while not await consumer.consume("t", BEGINNING):
            pass
        broker.script = lambda request: Fault.SILENT if request.api_key == METADATA else None
        broker.fail_next(FETCH, T0, 6)
        broker.append(T0, message_set(b"1"))
        async with asyncio.timeout(10):
            assert await values_after_errors(consumer) == [1]


async def values_after_errors(consumer: SingleConsumer) -> list[Any]:
    """Return the next values. Ignore the errors that ``consume()`` raises while no broker answers."""
    while True:
        try:
            if values := await consumer.consume("t"):
                return values
        except NoBrokersError:
            continue


async def test_consume_of_a_group_raises_while_no_broker_answers() -> None:
    """``consume()`` of a group returns [] until the brokers count as unreachable, and then raises an error."""
    subscription = SubscriptionState()
    subscription.subscribe(["t"])
    settings = ConsumerSettings(
        brokers=BrokerConfig(hosts=(HostPort("127.0.0.1", 1),), backoff_ms=2, max_backoff_ms=5),
        fetching=FetchConfig(max_wait_ms=10),
        group=GroupConfig(group="g"),
        coordination=ZooKeeperCoordination(ZooKeeperConfig(hosts="127.0.0.1:1")),
    )
    consuming = ConnectedConsumer(settings, subscription)
    for _ in range(UNREACHABLE_AFTER):
        assert await next_values(consuming.reader, ConsumeCall()) == []
        with pytest.raises(NoBrokersError):
            await consuming.reader.cluster.refresh(["t"], "test")
    with pytest.raises(NoBrokersError, match=r"127\.0\.0\.1:1: cannot connect"):
        await next_values(consuming.reader, ConsumeCall())
    consuming.reader.fetcher.close()
    consuming.reader.cluster.close()


async def test_iteration_waits_while_no_broker_answers(caplog: pytest.LogCaptureFixture) -> None:
    """
    While no broker answers, iteration raises nothing, and logs a warning, which it repeats only after a minute. The
    next record is delivered when a broker answers.
    """
    async with consuming(b"0") as (broker, consumer):
        await consumer.subscribe("t", start=BEGINNING)
        assert (await anext(consumer)).value == b"0"
        await broker.stop()
        waiting = asyncio.ensure_future(anext(consumer))
        await eventually(
            lambda: consumer.metrics.total("metadata_failures") >= 2 * UNREACHABLE_AFTER, "an outage that lasts"
        )
        assert not waiting.done()
        broker.append(T0, message_set(b"1"))
        async with broker:
            assert (await asyncio.wait_for(waiting, 5)).value == b"1"
    lines = [line for line in caplog.messages if "metadata request" in line]
    warning, end = lines
    assert (warning.split()[0], str(broker.address) in warning) == (str(UNREACHABLE_AFTER), True)
    assert end.startswith("brokers answer again")
