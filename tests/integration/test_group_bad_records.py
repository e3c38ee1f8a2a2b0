"""Records that a deserializer refuses, and damaged messages, at members on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import (
    BadRecordError,
    ConfigError,
    DamagedRecordError,
    ProtocolError,
    RecordDeserializationError,
)
from kiel_groups.model import Record, TopicPartition
from tests.helpers.cluster_data import committed, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.group_backends import GroupBackend
from tests.helpers.waiting import eventually
from tests.proxies import KafkaProxy, damaging

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

VALUES = [b"0", b"1", b"poison", b"3", b"4"]


@asynccontextmanager
async def consumer_of(backend: GroupBackend, topic: str, group: str, **settings: Any) -> AsyncIterator[GroupedConsumer]:
    """Yield a member that owns all partitions of a topic."""
    settings.setdefault("deserializer", int)
    async with backend.consumer(group, max_wait_time=200, **settings) as consumer:
        await consumer.subscribe(topic)
        await eventually(lambda: consumer.settled and bool(consumer.assignment()), "it owns the partitions")
        yield consumer


async def topic_of(backend: GroupBackend, unique: Unique, values: list[bytes], **settings: Any) -> str:
    """Create a topic with one partition, and produce these values in one request."""
    topic = unique("topic")
    await backend.cluster.create_topic(topic, 1)
    async with Producer(backend.cluster.brokers, serializer=bytes, **settings) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in values))
    return topic


async def test_a_loop_raises_until_the_record_is_passed(release_backend: GroupBackend, unique: Unique) -> None:
    """The record is never committed past; a member that dies of it hands it on; a seek passes it."""
    topic, group = await topic_of(release_backend, unique, VALUES), unique("group")
    seen: list[int] = []

    async def loop(consumer: GroupedConsumer) -> None:
        async for record in consumer:
            seen.append(record.value)
            if record.value == 4:
                break

    async def die() -> None:
        async with consumer_of(release_backend, topic, group) as consumer:
            await loop(consumer)

    for _ in range(2):
        with pytest.raises(RecordDeserializationError, match=f"{topic}:0 at offset 2: .*ValueError"):
            await die()
        assert release_backend.committed(group, topic) == 2
    assert seen == [0, 1]
    async with consumer_of(release_backend, topic, group) as consumer:
        for _ in range(3):
            with pytest.raises(BadRecordError) as got:
                await loop(consumer)
        error = got.value
        assert (error.topic_partition, error.offset, error.value) == (TopicPartition(topic, 0), 2, b"poison")
        assert await consumer.commit() == frozenset()
        assert consumer.metrics.counter("bad_records_raised") == 3
        consumer.seek(error.topic_partition, error.next_offset)
        await loop(consumer)
    assert seen == [0, 1, 3, 4]
    assert release_backend.committed(group, topic) == 5


async def test_calls_return_the_records_before_and_raise_then(backend: GroupBackend, unique: Unique) -> None:
    """``getmany()`` and ``getone()`` raise in the record's place, also in the blocking consumer."""
    topic = await topic_of(backend, unique, VALUES)
    partition = TopicPartition(topic, 0)
    async with consumer_of(backend, topic, unique("g1")) as consumer:
        found = await consumer.getmany(timeout_ms=30_000)
        assert [record.value for record in found[partition]] == [0, 1]
        with pytest.raises(RecordDeserializationError):
            await consumer.getmany(timeout_ms=30_000)
        with pytest.raises(RecordDeserializationError):
            await consumer.getone()
        consumer.seek(partition, 3)
        assert (await consumer.getone()).value == 3

    def read() -> list[int]:
        values = []
        with backend.blocking(unique("g2"), deserializer=int) as consumer:
            consumer.subscribe(topic)
            while not values or values[-1] != 4:
                try:
                    values.append(consumer.getone().value)
                except RecordDeserializationError as error:
                    consumer.seek(error.topic_partition, error.next_offset)
        return values

    assert await asyncio.to_thread(read) == [0, 1, 3, 4]


async def test_other_partitions_go_on(backend: GroupBackend, unique: Unique) -> None:
    """While one partition raises again and again, records of the other are delivered and committed."""
    topic, group = unique("topic"), unique("group")
    await backend.cluster.create_topic(topic, 2)
    values: list[int] = []
    async with Producer(backend.cluster.brokers, serializer=bytes) as producer:
        await producer.produce(topic, b"poison", partition=0)
        async with consumer_of(backend, topic, group) as consumer:
            for number in range(5):
                await producer.produce(topic, b"%d" % number, partition=1)
                while len(values) <= number:
                    try:
                        values.append((await consumer.getone()).value)
                    except RecordDeserializationError:
                        continue
            assert consumer.metrics.counter("bad_records_raised") >= 1
    with zookeeper(backend.cluster):
        assert values == list(range(5))
        assert backend.committed(group, topic) == 5


@pytest.mark.parametrize("style", ["loop", "getone", "consume"])
async def test_a_hook_gets_bad_records(backend: GroupBackend, unique: Unique, style: str) -> None:
    """All records are finished when the hook has returned; if it raises, it is called again after its error."""
    topic, group = await topic_of(backend, unique, VALUES), unique("group")
    letters: list[Record] = []
    failures = [RuntimeError("the dead-letter topic is away")]
    seen: list[int] = []
    raised: list[BadRecordError] = []

    async def keep(record: Record, error: BadRecordError) -> None:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        letters.append(record)

    async with consumer_of(backend, topic, group, on_bad_record=keep, auto_commit_interval_ms=100) as consumer:
        while 4 not in seen:
            try:
                if style == "loop":
                    async for record in consumer:
                        seen.append(record.value)
                        if record.value == 4:
                            break
                elif style == "getone":
                    seen.append((await consumer.getone()).value)
                else:
                    seen += await consumer.consume(topic) or []
            except RecordDeserializationError as error:
                raised.append(error)
    assert seen == [0, 1, 3, 4]
    assert [type(error.__cause__) for error in raised] == [RuntimeError]
    assert [(record.offset, record.value) for record in letters] == [(2, b"poison")]
    assert backend.committed(group, topic) == 5


async def test_a_release_waits_for_a_hook(backend: GroupBackend, unique: Unique) -> None:
    """A close in the middle of a hook commits its record."""
    topic, group = await topic_of(backend, unique, [b"poison"]), unique("group")
    running, may_return = asyncio.Event(), asyncio.Event()

    async def keep(record: Record, error: BadRecordError) -> None:
        running.set()
        await may_return.wait()

    async with consumer_of(backend, topic, group, on_bad_record=keep) as consumer:
        assert await consumer.getmany() == {}
        while not running.is_set():
            assert await consumer.getmany(timeout_ms=50) == {}
        closing = consumer.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), 3)
        may_return.set()
        await asyncio.wait_for(closing, 30)
    assert backend.committed(group, topic) == 1


async def test_consume_skips_by_default(backend: GroupBackend, unique: Unique) -> None:
    """Values on which the deserializer fails are skipped and finished, as kiel's did."""
    topic, group = await topic_of(backend, unique, VALUES), unique("group")
    async with consumer_of(backend, topic, group) as consumer:
        while not (values := await consumer.consume(topic)):
            pass
        assert values == [0, 1, 3, 4]
        await consumer.commit_offsets()
        await backend.await_committed(group, topic, 5)


#: The first bytes of a gzip stream: its magic, its method and its flags.
GZIP = b"\x1f\x8b\x08\x00"


@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_damage_is_raised_and_skipped_with_its_range(
    cluster_39: Cluster, unique: Unique, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain message is passed alone, a compressed one with all of its records. The error says where to seek."""
    backend = GroupBackend(cluster_39)
    topic = await topic_of(backend, unique, [b"0", b"damaged", b"2"], compression=compression)
    async with Producer(cluster_39.brokers, serializer=bytes) as producer:
        await producer.produce(topic, b"3")
    first, following = (0, 3) if compression else (1, 2)
    rest = [3] if compression else [0, 2, 3]
    with KafkaProxy(cluster_39.brokers[0], damaging(b"damaged", GZIP)) as proxy:
        async with consumer_of(backend, topic, unique("g1"), brokers=[proxy.address]) as consumer:
            seen: list[int] = []

            async def loop() -> None:
                async for record in consumer:
                    seen.append(record.value)
                    if record.value == 3:
                        break

            with pytest.raises(DamagedRecordError, match=f"seek to {following}") as got:
                await loop()
            error = got.value
            assert isinstance(error, ProtocolError)
            assert (error.offset, error.next_offset, error.key) == (first, following, None)
            assert error.value is not None
            consumer.seek(error.topic_partition, error.next_offset)
            await loop()
            assert seen == rest
        group = unique("g2")
        async with consumer_of(backend, topic, group, brokers=[proxy.address], on_bad_record="skip") as consumer:
            assert [(await consumer.getone()).value for _ in rest] == rest
        assert committed(cluster_39, group, topic) == 4
        place = "offsets 0 to 2" if compression else "offset 1"
        assert f"{topic}:0: skipping {place}" in caplog.text
        letters: list[tuple[int, Any]] = []
        group = unique("g3")
        async with consumer_of(
            backend,
            topic,
            group,
            brokers=[proxy.address],
            on_bad_record=lambda record, error: letters.append((record.offset, error.next_offset)),
        ) as consumer:
            assert [(await consumer.getone()).value for _ in rest] == rest
        assert letters == [(first, following)]
        assert committed(cluster_39, group, topic) == 4


async def test_the_command_ends_at_damage_or_skips_it(cluster_39: Cluster, unique: Unique) -> None:
    """The error names partition, offset and the option; what is before it is printed and committed."""
    topic, group = await topic_of(GroupBackend(cluster_39), unique, [b"0", b"damaged", b"2"]), unique("group")
    with KafkaProxy(cluster_39.brokers[0], damaging(b"damaged")) as proxy:
        words = ["consume", topic, f"--group={group}", f"--brokers={proxy.address}", "-q"]
        words.append(f"--zookeeper={cluster_39.zk_hosts}")
        ended = await asyncio.to_thread(kiel_groups_here, *words)
        assert (ended.returncode, ended.stdout) == (1, "0\n")
        assert f"{topic}:0 at offset 1" in ended.stderr
        assert "--on-bad-record skip" in ended.stderr
        assert committed(cluster_39, group, topic) == 1
        skipping = await asyncio.to_thread(kiel_groups_here, *words, "--on-bad-record=skip", "--max-messages=1")
        assert (skipping.returncode, skipping.stdout) == (0, "2\n")
        assert committed(cluster_39, group, topic) == 3


async def test_on_bad_record_is_checked() -> None:
    """Any other value is an error that names what is expected."""
    for wrong in ("ignore", None, 1, ValueError):
        with pytest.raises(ConfigError, match=r"on_bad_record: .* expected 'raise', 'skip', or a function"):
            GroupedConsumer("127.0.0.1", "g", "127.0.0.1", on_bad_record=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key_deserializer"):
        GroupedConsumer("127.0.0.1", "g", "127.0.0.1", key_deserializer=3)  # type: ignore[arg-type]
