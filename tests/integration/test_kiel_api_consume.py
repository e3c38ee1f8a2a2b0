"""kiel's ``GroupedConsumer.consume``: its results, and the values and arguments that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.clients import GroupedConsumer, Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import MessageTooLargeError
from tests.helpers.kiel_api import consumer_of, offsets, produce, values
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


async def test_consume_returns_a_flat_list_of_json_values(cluster_39: Cluster, unique: Unique) -> None:
    """The list has values of all partitions, parsed as JSON or by the given deserializer."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 3)
    for partition in range(3):
        await produce(cluster_39, topic, {"n": partition}, partition=partition)
    consumer = consumer_of(cluster_39, unique("group"))
    await consumer.connect()
    assert consumer.allocation == {}
    assert sorted(v["n"] for v in await values(consumer, topic, 3)) == [0, 1, 2]
    assert consumer.allocation == {topic: [0, 1, 2]}
    await consumer.close()
    consumer = consumer_of(cluster_39, unique("other"), deserializer=len)
    assert await values(consumer, topic, 3) == [8, 8, 8]
    await consumer.close()


async def test_start_is_accepted_and_ignored(cluster_39: Cluster, unique: Unique) -> None:
    """``start`` is accepted and ignored: a group resumes at its offsets. Only SingleConsumer uses ``start``."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2)
    consumer = consumer_of(cluster_39, unique("group"))
    async with asyncio.timeout(20):
        while not (found := await consumer.consume(topic, -1)):
            pass
    assert found == [1, 2]
    await consumer.close()


async def test_an_unknown_topic_gives_an_empty_list_until_it_is_created(cluster_39: Cluster, unique: Unique) -> None:
    """
    For an unknown topic, [] is returned after about ``max_wait_time``. When the topic is created, further calls return
    its values.
    """
    topic = unique("topic")
    consumer = consumer_of(cluster_39, unique("group"))
    await consumer.connect()
    started_s = asyncio.get_running_loop().time()
    assert await consumer.consume(topic) == []
    assert 0.1 < asyncio.get_running_loop().time() - started_s < 5
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, "now")
    assert await values(consumer, topic, 1) == ["now"]
    await consumer.close()


async def test_owned_partitions_keep_flowing_when_a_topic_is_added(cluster_39: Cluster, unique: Unique) -> None:
    """
    The first call for a topic subscribes to it, also if calls for several topics run at once. No partition is revoked.
    """
    first, second, third = unique("first"), unique("second"), unique("third")
    for topic in (first, second, third):
        await cluster_39.create_topic(topic, 2)
        await produce(cluster_39, topic, topic)
    assigned: list[Any] = []

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            assigned.extend(partitions)

        def on_partitions_revoked(self, partitions: Any) -> None:
            raise AssertionError(f"{partitions} were revoked")

        def on_partitions_lost(self, partitions: Any) -> None:
            raise AssertionError(f"{partitions} were lost")

    consumer = consumer_of(cluster_39, unique("group"), listener=Listener())
    assert await values(consumer, first, 1) == [first]
    together = await asyncio.gather(values(consumer, second, 1), values(consumer, third, 1))
    assert together == [[second], [third]]
    assert consumer.subscription() == {first, second, third}
    await eventually(lambda: len(assigned) == 6, "all partitions are owned")
    assert len(set(assigned)) == 6
    assert consumer.metrics.counter("listener_failures") == 0
    await consumer.close()


async def test_after_the_close_the_result_is_none(cluster_39: Cluster, unique: Unique) -> None:
    """
    After the close, further calls return None, and so does a waiting call. ``wind_down`` leaves the group like
    ``close``.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    for leave in ("close", "wind_down"):
        consumer = consumer_of(cluster_39, unique("group"), max_wait_time=60_000)
        await consumer.connect()
        waiting = consumer.consume(topic)
        await eventually(lambda: consumer.allocation, "the partition is owned")  # noqa: B023
        async with asyncio.timeout(30):
            await getattr(consumer, leave)()
            assert await waiting is None
            assert await consumer.consume(topic) is None
        assert consumer.allocation == {}


@pytest.mark.parametrize("last", [b"good", b"bad"])
async def test_an_unreadable_value_is_skipped(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture, last: bytes
) -> None:
    """An unreadable value is logged, counted, and committed with the others, even if it is the last value."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    sent = [b"1", b"{not json", b"2", b'"good"' if last == b"good" else b"}"]
    await produce(cluster_39, topic, *sent)
    consumer = consumer_of(cluster_39, group)
    wanted = [1, 2, "good"] if last == b"good" else [1, 2]
    assert await values(consumer, topic, len(wanted)) == wanted
    await consumer.consume(topic)
    assert consumer.metrics.counter("deserializer_failures") == (1 if last == b"good" else 2)
    assert f"{topic}:0: the deserializer failed on the value at offset 1" in caplog.text
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 4}


async def test_a_deserializer_that_fails_on_every_value(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If a deserializer fails on every value, the log gets one line a minute for each partition, which says that values
    are bytes. All offsets are committed.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, *[b"a,b"] * 300)
    # A deserializer that was written for kiel, which passed text.
    consumer = consumer_of(cluster_39, group, deserializer=lambda value: value.split(","))
    async with asyncio.timeout(20):
        while consumer.metrics.counter("deserializer_failures") < 300:
            assert await consumer.consume(topic) == []
    await consumer.close()
    lines = [entry.getMessage() for entry in caplog.records if "deserializ" in entry.name]
    assert len(lines) == 2
    assert all("a deserializer is given bytes" in line for line in lines)
    assert f"{topic}:0: the deserializer failed on 299 more values" in lines[1]
    assert await offsets(cluster_39, group, topic) == {0: 300}


@pytest.mark.filterwarnings("error:coroutine:RuntimeWarning")
async def test_a_call_that_is_cancelled_at_once_does_not_count_as_waiting(cluster_39: Cluster, unique: Unique) -> None:
    """
    A caller that waits for the next values has finished its earlier ones. A cancelled call waits for nothing.

    So values of another topic that are in flight at an exception are delivered again.
    """
    one, other, group = unique("topic"), unique("topic"), unique("group")
    for topic in (one, other):
        await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, one, 1, 2)

    async def fail() -> None:
        async with consumer_of(cluster_39, group) as consumer:
            assert await values(consumer, one, 2) == [1, 2]
            consumer.consume(other).cancel()
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with consumer_of(cluster_39, group) as consumer:
        assert await values(consumer, one, 2) == [1, 2]


async def test_unreadable_values_are_finished_without_a_further_call(cluster_39: Cluster, unique: Unique) -> None:
    """Unreadable values were not delivered, so they are not in flight and are committed."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, b"{", b"}")
    consumer = consumer_of(cluster_39, group)
    async with asyncio.timeout(20):
        while consumer.metrics.counter("deserializer_failures") < 2:
            assert await consumer.consume(topic) == []
    await consumer.close()
    assert await offsets(cluster_39, group, topic) == {0: 2}


async def test_a_large_message_does_not_stall_its_partition(cluster_39: Cluster, unique: Unique) -> None:
    """A large message is delivered, however small its partition's share of ``max_bytes`` is."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 4)
    await produce(cluster_39, topic, "x" * 300_000, "y", partition=2)
    consumer = consumer_of(cluster_39, unique("group"), max_bytes=4_096)
    assert [len(v) for v in await values(consumer, topic, 2)] == [300_000, 1]
    await consumer.close()


async def test_iterating_and_consuming_exclude_each_other(cluster_39: Cluster, unique: Unique) -> None:
    """Iterating and ``consume()`` cannot be mixed, because it would be unknown which records are finished."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    async with consumer_of(cluster_39, unique("group")) as consumer:
        await values(consumer, topic, 1)
        with pytest.raises(ValueError, match=r"delivers by consume\(topic\), and iteration"):
            aiter(consumer)
    async with consumer_of(cluster_39, unique("group")) as consumer:
        await consumer.subscribe(topic)
        aiter(consumer)
        with pytest.raises(ValueError, match=r"delivers by iteration .*, and consume\(topic\)"):
            await consumer.consume(topic)


async def test_a_set_above_max_decompressed_bytes_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """The error names topic, partition and offset. Further calls return values of other partitions."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers, compression="gzip") as producer:
        await producer.produce(topic, "x" * 100_000, partition=0)
        await producer.produce(topic, "y", partition=1)
    consumer = consumer_of(cluster_39, unique("group"), max_decompressed_bytes=10_000)
    found: list[str] = []
    refused: list[str] = []
    async with asyncio.timeout(30):
        while not found or not refused:
            try:
                found += await consumer.consume(topic) or []
            except MessageTooLargeError as error:
                refused.append(str(error))
    assert found == ["y"]
    assert f"{topic}:0 at offset 0" in refused[0]
    await consumer.close()


@pytest.mark.parametrize("topic", ["a/b", "", 7, ["t"]], ids=repr)
async def test_an_invalid_topic_fails_the_future(topic: Any) -> None:
    """A call with an invalid topic does not raise. The future has the error."""
    asked = GroupedConsumer(["localhost"], "g", ["localhost"]).consume(topic)
    with pytest.raises(ValueError, match="topic: "):
        await asked
