"""Odd logs of real brokers: gaps that compaction leaves, sets that are cut, messages beyond every bound, nulls."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kiel_groups import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import MessageTooLargeError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.spark import verify_archive
from tests.helpers.cluster_data import create_compacted_topic
from tests.helpers.spark.archive_folder import Archive
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]

KIB = 1 << 10
CODECS = [None, "gzip", "snappy", "lz4"]
#: Brokers of 0.8 cannot clean compressed sets, and those of 0.8.1 do not know lz4.
COMPACTED = [("0.8.1.1", None), ("0.8.2.2", None), ("0.9.0.1", "gzip"), ("0.9.0.1", "snappy"), ("0.9.0.1", "lz4")]
CLEANING = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "zookeeper.session.timeout.ms": 10_000,
}


@pytest.fixture(scope="module")
def cleaning_clusters() -> Iterator[Callable[[str], Cluster]]:
    """Provide a function that returns a cluster of a release whose broker cleans compacted topics at once."""
    running: dict[str, Cluster] = {}

    def cluster_of(kafka: str) -> Cluster:
        if kafka not in running:
            running[kafka] = Cluster(kafka=kafka, broker_overrides=CLEANING).__enter__()
        return running[kafka]

    yield cluster_of
    for cluster in running.values():
        cluster.__exit__()


async def produce(cluster: Cluster, topic: str, sets: list[list[Any]], codec: str | None = None) -> None:
    """Produce pairs of keys and values to partition 0. Each list becomes one set."""
    settings: dict[str, Any] = {"batch_size": 1_000, "linger_ms": 10_000, "serializer": lambda value: value}
    async with Producer(cluster.brokers, compression=codec, **settings) as producer:
        for pairs in sets:
            stored = [producer.produce(topic, value, key=key, partition=0) for key, value in pairs]
            await producer.flush()
            await asyncio.gather(*stored)


def log_bytes(cluster: Cluster, topic: str) -> int:
    """Return the size of the log of partition 0."""
    segments = (cluster.kafka[0].folder / "data" / f"{topic}-0").glob("*.log")
    try:
        return sum(segment.stat().st_size for segment in segments)
    except FileNotFoundError:  # the cleaner has replaced one meanwhile
        return 1 << 30


async def read(consumer: SingleConsumer, count: int) -> list[Record]:
    """Return the next ``count`` records, or those up to the end of the only partition's log."""
    found: list[Record] = []
    (partition,) = consumer.assignment()
    (end,) = (await consumer.end_offsets([partition])).values()
    async with asyncio.timeout(60):
        while len(found) < count and (not found or found[-1].offset + 1 < end):
            more = await consumer.getmany(timeout_ms=1_000)
            found += [record for records in more.values() for record in records]
    return found


@pytest.mark.parametrize(("kafka", "codec"), COMPACTED)
async def test_gaps_of_a_compacted_log_are_passed(
    cleaning_clusters: Callable[[str], Cluster], unique: Unique, kafka: str, codec: str | None, tmp_path: Path
) -> None:
    """
    What compaction has left is delivered once, in order, at its own offsets, however small the answers are. A seek into
    a gap resumes at the next message. In the end there is no lag. An archive lacks what compaction has removed, which
    ``verify_archive`` tells from a message that is in the log.
    """
    cluster, topic = cleaning_clusters(kafka), unique("topic")
    small_segments = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.01"}
    await create_compacted_topic(cluster, topic, **small_segments)
    chance = random.Random(7)
    pairs = [(f"key {n % 7 if n % 20 else n}", chance.randbytes(200)) for n in range(1_000)]
    await produce(cluster, topic, [pairs[at : at + 50] for at in range(0, 1_000, 50)], codec)
    partition = TopicPartition(topic, 0)

    await eventually(lambda: log_bytes(cluster, topic) < 100_000, "the log is cleaned", timeout_s=60)
    async with SingleConsumer(cluster.brokers) as consumer:
        consumer.assign([partition])
        left = await read(consumer, len(pairs))
    assert len(left) < 500
    assert [record.offset for record in left] == sorted({record.offset for record in left})
    assert all(
        (record.key, record.value) == (pairs[record.offset][0].encode(), pairs[record.offset][1]) for record in left
    )
    last = {key: offset for offset, (key, _) in enumerate(pairs)}
    assert set(last.values()) <= {record.offset for record in left}
    before, after = next((a, b) for a, b in itertools.pairwise(left) if b.offset > a.offset + 1)
    async with SingleConsumer(cluster.brokers, max_bytes=KIB, fetch_buffer_bytes=4 * KIB) as consumer:
        consumer.assign([partition])
        found = await read(consumer, len(left))
        assert [record.offset for record in found][-5:] == [record.offset for record in left][-5:]
        assert {record.offset for record in found} >= set(last.values())
        consumer.seek(partition, before.offset + 1)
        async with asyncio.timeout(10):
            assert (await consumer.getone()).offset >= after.offset
        consumer.seek(partition, len(pairs) - 1)
        assert [record.offset for record in await read(consumer, 1)] == [len(pairs) - 1]
        assert consumer.highwater(partition) == await consumer.position(partition) == len(pairs)
        assert not consumer.metrics.total("fetches_unreadable")

    archive = Archive(tmp_path, topic, cluster.brokers)
    there = {record.offset for record in left} - {before.offset}
    archive.add({"0": {"from": 0, "to": 1_000, "token": 1}}, [(0, offset, None) for offset in sorted(there)])
    result = await asyncio.to_thread(verify_archive, str(archive.output), brokers=",".join(cluster.brokers))
    # Compaction may have gone on meanwhile, and have removed more.
    assert result.totals()["compacted"] + result.totals()["missing"] == 1_000 - len(there)
    assert {(each.start, each.reason) for each in result.logs[0].unexplained} <= {
        (before.offset, "in the log of today")
    }
    assert (result.logs[0].log, result.logs[0].waiting) == ((0, 1_000), 0)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kafka", ["0.8.1.1", "0.8.2.2"])
async def test_sets_larger_than_a_share_are_delivered(
    shared_clusters: Callable[..., Cluster], unique: Unique, kafka: str, codec: str | None
) -> None:
    """
    Answers end within messages and within sets, of all sizes: each record is delivered once, and in order, to a
    consumer whose shares and whose buffer are smaller than most sets.
    """
    if codec == "lz4" and kafka == "0.8.1.1":
        pytest.skip("brokers of 0.8.1 do not know lz4")
    cluster, topic, chance = shared_clusters("3.9.5", kafka), unique("topic"), random.Random(8)
    await cluster.create_topic(topic, 1)
    sizes = [0, 1, 10, 100, 1 * KIB, 5 * KIB, 40 * KIB]
    sets = [
        [(None, b"%d " % place + chance.randbytes(chance.choice(sizes))) for place in range(chance.randint(1, 12))]
        for _ in range(60)
    ]
    await produce(cluster, topic, sets, codec)
    sent = [value for pairs in sets for _, value in pairs]
    for settings in (
        {"max_bytes": 4 * KIB, "fetch_buffer_bytes": 8 * KIB},
        {"max_bytes": 30 * KIB},
        {"max_bytes": 200},
    ):
        async with SingleConsumer(cluster.brokers, **settings) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found = await read(consumer, len(sent))
        assert [record.offset for record in found] == list(range(len(sent)))
        assert [record.value for record in found] == sent
        assert consumer.metrics.total("fetch_share_grown") or settings["max_bytes"] > 200
        assert not consumer.metrics.total("fetches_unreadable")


async def from_loop(consumer: SingleConsumer, topic: str) -> list[bytes | None]:
    """Return the values that a loop delivers, until it raises."""
    async for record in consumer:
        return [record.value]
    return []


async def from_consume(consumer: SingleConsumer, topic: str) -> list[bytes | None]:
    """Return the values of one call of ``consume``."""
    return list(await consumer.consume(topic, start=SingleConsumer.BEGINNING))


async def from_getmany(consumer: SingleConsumer, topic: str) -> list[bytes | None]:
    """Return the values of one call of ``getmany``."""
    return [record.value for records in (await consumer.getmany()).values() for record in records]


async def from_getone(consumer: SingleConsumer, topic: str) -> list[bytes | None]:
    """Return the value of one call of ``getone``."""
    return [(await consumer.getone()).value]


STYLES = [from_loop, from_consume, from_getmany, from_getone]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("style", STYLES)
async def test_a_message_beyond_every_bound_is_an_error(
    cluster_39: Cluster,
    unique: Unique,
    style: Callable[[SingleConsumer, str], Awaitable[list[bytes | None]]],
    codec: str | None,
) -> None:
    """
    What precedes it is delivered, and then an error is raised, again and again, that names topic, partition, offset and
    size. Other partitions continue. ``seek`` passes the message.
    """
    topic, large = unique("topic"), random.Random(9).randbytes(200_000)
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, [[(None, b"before")]])
    await produce(cluster_39, topic, [[(None, large)]], codec)
    await produce(cluster_39, topic, [[(None, b"after")]])
    first, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    settings = {"deserializer": bytes} if style is from_consume else {}
    async with (
        SingleConsumer(cluster_39.brokers, max_bytes=10_000, max_message_bytes=100_000, **settings) as consumer,
        asyncio.timeout(60),
    ):
        await consumer.subscribe(topic, start=SingleConsumer.BEGINNING)
        found: list[bytes | None] = []
        texts: list[str] = []
        place = rf"{topic}:0 at offset 1: the message takes 20\d\d\d\d bytes, max_message_bytes is 100000"
        while len(texts) < 2:
            try:
                found += await style(consumer, topic)
            except MessageTooLargeError as error:
                texts.append(str(error))
        assert found == [b"before"]
        assert all(re.match(place, text) for text in texts), texts
        async with Producer(cluster_39.brokers) as producer:
            await producer.produce(topic, b"other", partition=1)
        while b"other" not in found:
            with suppress(MessageTooLargeError):
                found += await style(consumer, topic)
        consumer.seek(first, 2)
        while b"after" not in found:
            found += await style(consumer, topic)
        assert found == [b"before", b"other", b"after"]
        assert consumer.highwater(other) == 1


@pytest.mark.parametrize("codec", CODECS)
async def test_null_keys_and_values_are_none(cluster_39: Cluster, unique: Unique, codec: str | None) -> None:
    """Null and empty differ in each style, in a group and without one, and no deserializer is called for null."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    pairs: list[tuple[Any, Any]] = [(None, None), ("", ""), (None, ""), ("", None), ("key", None), (None, "value")]
    await produce(cluster_39, topic, [pairs], codec)
    expected = [tuple(None if each is None else each.encode() for each in pair) for pair in pairs]
    partition = TopicPartition(topic, 0)
    for deserializer in (None, bytes):
        async with SingleConsumer(
            cluster_39.brokers, deserializer=deserializer, key_deserializer=deserializer
        ) as consumer:
            consumer.assign([partition])
            assert [(record.key, record.value) for record in await read(consumer, len(pairs))] == expected
    async with (
        GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts) as member,
        asyncio.timeout(30),
    ):
        await member.subscribe(topic)
        records = aiter(member)
        assert [(r.key, r.value) for r in [await anext(records) for _ in pairs]] == expected
