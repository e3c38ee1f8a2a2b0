"""kiel's ``GroupedConsumer``: the values that are committed, and the time of each commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from tornado import gen

from kiel_groups.clients import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from tests.helpers.cluster_data import await_committed, stored_offsets, zookeeper
from tests.helpers.kiel_api import consumer_of, offsets, produce, values
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

# Tests compare caplog.text with the consumer's log lines, so kazoo's warnings must not be in it.
logging.getLogger("kazoo").setLevel(logging.ERROR)


async def test_autocommit_commits_values_of_earlier_calls(cluster_39: Cluster, unique: Unique) -> None:
    """
    The next call of ``consume()`` finishes the values of the previous call. They are committed at once, and not before.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2, 3)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=60_000)
    assert await values(consumer, topic, 3) == [1, 2, 3]
    assert await offsets(cluster_39, group, topic) == {0: 0}
    await consumer.consume(topic)
    await await_committed(cluster_39, group, topic, 3)
    await consumer.close()


@pytest.mark.parametrize("way", ["consume", "commit_offsets"])
async def test_values_in_flight_in_one_coroutine_are_not_committed_by_another(
    cluster_39: Cluster, unique: Unique, way: str
) -> None:
    """Values of a topic are finished when the coroutine that got them calls ``consume()`` again, or has ended."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 0, 1, partition=0)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=20)
    busy, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        await values(consumer, topic, 2)
        busy.set()
        await may_end.wait()

    working = asyncio.ensure_future(slow())
    async with asyncio.timeout(30):
        await busy.wait()
        await produce(cluster_39, topic, 2, partition=0)
        await produce(cluster_39, topic, 3, 4, 5, partition=1)
        await values(consumer, topic, 4)
        await (consumer.consume(topic) if way == "consume" else consumer.commit_offsets())
        await await_committed(cluster_39, group, topic, 3)
        assert await offsets(cluster_39, group, topic) == {0: 0, 1: 3}
        may_end.set()
        await working
        del working
        await consumer.consume(topic)
        await await_committed(cluster_39, group, topic, 6)
    await consumer.close()


async def test_a_close_during_a_commit_commits_the_rest(cluster_39: Cluster, unique: Unique) -> None:
    """
    A close during a commit commits the rest: the member's own write in flight must not count as a reset by another
    writer.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, *range(400))
    found: list[int] = []
    while len(found) < 400:
        consumer = consumer_of(cluster_39, group, max_bytes=200)
        found += await values(consumer, topic, min(60, 400 - len(found)))
        await consumer.close()
        assert consumer.metrics.counter("commits_superseded") == 0
        assert sum((await offsets(cluster_39, group, topic)).values()) == len(found)
    assert sorted(found) == list(range(400)), "no value is returned twice"


async def test_without_autocommit_only_explicit_commits_store_offsets(cluster_39: Cluster, unique: Unique) -> None:
    """
    ``commit_offsets()`` stores the offsets of exactly the values returned before the call, even if the caller does not
    await it. ``close()`` commits nothing.
    """
    first, second, group = unique("first"), unique("second"), unique("group")
    for topic in (first, second):
        await cluster_39.create_topic(topic, 1)
        await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, group, autocommit=False)
    assert await values(consumer, first, 2) == [1, 2]
    await consumer.consume(first)
    assert await offsets(cluster_39, group, first) == {0: 0}
    consumer.commit_offsets()
    await await_committed(cluster_39, group, first, 2)
    assert await values(consumer, second, 2) == [1, 2]
    stored = consumer.metrics.counter("offsets_committed")
    await consumer.commit_offsets("a text")
    assert consumer.metrics.counter("offsets_committed") == stored + 1, "only topics consumed since the last commit"
    assert await offsets(cluster_39, group, second) == {0: 2}
    await produce(cluster_39, first, 3)
    assert await values(consumer, first, 1) == [3]
    await consumer.close()
    assert await offsets(cluster_39, group, first) == {0: 2}, "the close commits nothing by itself"


async def test_metadata_that_is_too_long_is_left_out(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Brokers refuse metadata that is too long with code 12. A warning is logged, and the offset is stored without the
    metadata.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    consumer = consumer_of(cluster_39, group, autocommit=False, store="broker-v0")
    assert await values(consumer, topic, 1) == [1]
    await consumer.commit_offsets("x" * 5_000)
    assert "the metadata of a commit is too long" in caplog.text
    assert await offsets(cluster_39, group, topic) == {0: 1}
    await produce(cluster_39, topic, 2)
    assert await values(consumer, topic, 1) == [2]
    caplog.clear()
    await consumer.commit_offsets()
    assert caplog.text == "", "the default metadata is short"
    assert await offsets(cluster_39, group, topic) == {0: 2}
    await consumer.close()


async def test_a_commit_that_fails_is_logged_and_counted(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """``commit_offsets()`` does not raise, and ``consume()`` continues to return values."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    consumer = consumer_of(cluster_39, group, autocommit=False)
    assert await values(consumer, topic, 1) == [1]
    assert consumer._lifecycle.connected is not None
    gate = cast(DeliveryGate, consumer._lifecycle.connected.reader.owned.gate)
    gate.suspended = True
    await consumer.commit_offsets()
    gate.suspended = False
    assert consumer.metrics.counter("commits_failed") == 1
    assert "were not committed" in caplog.text
    await produce(cluster_39, topic, 2)
    assert await values(consumer, topic, 1) == [2]
    await consumer.commit_offsets()
    assert await offsets(cluster_39, group, topic) == {0: 2}
    await consumer.close()


async def _cancelled(consumer: GroupedConsumer, topic: str) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.consume(topic), 0.2)


async def _timed_out(consumer: GroupedConsumer, topic: str) -> None:
    with pytest.raises(TimeoutError):
        await gen.with_timeout(timedelta(seconds=0.2), consumer.consume(topic))


async def _never_awaited(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.wait({consumer.consume(topic)}, timeout=0.2)


async def _timed_out_by_another(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.ensure_future(_timed_out(consumer, topic))


@pytest.mark.parametrize("waits", [True, False], ids=["still waiting", "answered"])
@pytest.mark.parametrize("abandon", [_cancelled, _timed_out, _never_awaited, _timed_out_by_another])
async def test_values_of_abandoned_calls_are_delivered_again(
    cluster_39: Cluster,
    unique: Unique,
    abandon: Callable[[GroupedConsumer, str], Awaitable[None]],
    waits: bool,
) -> None:
    """
    If the caller of ``consume()`` has given up, the values are not finished, whether the next call comes soon or late.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    consumer = consumer_of(cluster_39, group, max_wait_time=30_000, auto_commit_interval_ms=60_000)
    await consumer.connect()
    await consumer.subscribe(topic)
    await eventually(lambda: consumer.allocation, "the partition is owned")
    await abandon(consumer, topic)
    if waits:
        asked = consumer.consume(topic)
        await produce(cluster_39, topic, 1, 2)
        found = await asked or []
    else:
        await produce(cluster_39, topic, 1, 2)
        # By then the values would be fetched and set as the result of the abandoned call, if it still existed.
        with zookeeper(cluster_39) as client:
            await throughout(lambda: stored_offsets(client, group, topic) == {0: 0}, "nothing is committed", 1.2)
        await consumer.commit_offsets()
        found = []
    assert await offsets(cluster_39, group, topic) == {0: 0}
    assert (found + await values(consumer, topic, 2 - len(found)))[:2] == [1, 2]
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 2}


async def test_a_rebalance_waits_for_values_in_flight(cluster_39: Cluster, unique: Unique) -> None:
    """Values are in flight until they are committed, or until their coroutine asks for the topic again."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)

    def to_the_other(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        others = [member for member in members if member != first.member_id]
        return {(others or members)[0]: {topic: [0]}}

    first = consumer_of(cluster_39, group, partition_allocator=to_the_other)
    second = consumer_of(cluster_39, group, partition_allocator=to_the_other)
    assert await values(first, topic, 1) == [1]
    asking = asyncio.ensure_future(_forever(second, topic))
    await eventually(lambda: not first.settled, "the partition is to move")
    await throughout(lambda: second.allocation == {}, "a partition with values in flight must not move", 0.3)
    first.commit_offsets()
    await eventually(lambda: second.allocation == {topic: [0]}, "the other member owns it")
    assert await offsets(cluster_39, group, topic) == {0: 1}
    await asyncio.gather(first.close(), second.close())
    await asking


async def _forever(consumer: GroupedConsumer, topic: str) -> None:
    while await consumer.consume(topic) is not None:
        pass


async def _same_coroutine(consumer: GroupedConsumer, topic: str) -> None:
    await values(consumer, topic, 2)
    await consumer.close()


@gen.coroutine
def _same_tornado_coroutine(consumer: GroupedConsumer, topic: str) -> Any:
    found = []
    while len(found) < 2:
        found += yield consumer.consume(topic)
    yield consumer.close()


async def _another_coroutine(consumer: GroupedConsumer, topic: str) -> None:
    taken = asyncio.Event()

    async def work() -> None:
        await values(consumer, topic, 2)
        taken.set()
        await asyncio.sleep(0.3)
        assert await consumer.consume(topic) is None

    working = asyncio.ensure_future(work())
    await taken.wait()
    await consumer.close()
    await working


async def _after_the_next_topic(consumer: GroupedConsumer, topic: str) -> None:
    async def work() -> None:
        await values(consumer, topic, 2)
        taken.set()
        assert await consumer.consume(f"{topic}-none") in (None, [])

    taken = asyncio.Event()
    working = asyncio.ensure_future(work())
    await taken.wait()
    await consumer.close()
    await working


async def _with_an_exception(consumer: GroupedConsumer, topic: str) -> None:
    async def fail() -> None:
        async with consumer:
            await values(consumer, topic, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def _left_in_flight(consumer: GroupedConsumer, topic: str) -> None:
    await asyncio.ensure_future(values(consumer, topic, 2))
    await consumer.close()


@pytest.mark.parametrize(
    ("ending", "stored", "most_s"),
    [
        (_same_coroutine, 2, 2.0),
        (_same_tornado_coroutine, 2, 2.0),
        (_another_coroutine, 2, 2.0),
        (_after_the_next_topic, 2, 2.0),
        (_with_an_exception, 0, 2.0),
        (_left_in_flight, 0, 4.0),
    ],
)
async def test_a_close_finishes_values_in_flight_if_their_coroutine_is_known(
    cluster_39: Cluster,
    unique: Unique,
    ending: Callable[[GroupedConsumer, str], Awaitable[None]],
    stored: int,
    most_s: float,
) -> None:
    """
    A close finishes values if the closing coroutine received them, or if the coroutine that received them continues.
    Other values are delivered again.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, group, auto_commit_interval_ms=60_000)
    await consumer.connect()
    await eventually(lambda: consumer.is_leader, "the member leads")
    started_s = running_s()
    await ending(consumer, topic)
    assert running_s() - started_s < most_s + 4
    assert await offsets(cluster_39, group, topic) == {0: stored}
