"""Logs of brokers from 0.11 on, whose answers to Fetch v0 are converted: transactions, large messages, refusals."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kiel_groups import OffsetAndTimestamp, Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.errors import BrokerError, MessageTooLargeError
from kiel_groups.model import TopicPartition
from tests.helpers.commands import kiel_groups_here
from tests.helpers.group_backends import GroupBackend
from tests.helpers.java_tools import running_java
from tests.helpers.servers import played_kafkas

pytestmark = pytest.mark.integration

Unique: TypeAlias = Callable[[str], str]
Produce: TypeAlias = Callable[..., Awaitable[None]]

PRODUCER = Path(__file__).parent / "java" / "ModernProducer.java"
#: For one broker alone.
TRANSACTIONS = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
}


@pytest.fixture(
    scope="module", params=played_kafkas(("1.1.1", "2.8.2", "3.9.1")), ids=lambda version: f"kafka{version}"
)
def modern(request: pytest.FixtureRequest) -> Any:
    """Return a cluster of one broker on which transactions work, and its release."""
    with Cluster(kafka=request.param, broker_overrides=TRANSACTIONS) as cluster:
        yield cluster, request.param


@pytest.fixture(scope="module")
def produce(modern: tuple[Cluster, str]) -> Iterator[Produce]:
    """Return a function that has the Java program of ``PRODUCER`` carry out commands."""
    cluster, _ = modern
    with running_java(kafka_release("3.9.1").classes, PRODUCER) as program:
        assert program.process.stdin is not None
        typed, answered = program.process.stdin, 0
        print(",".join(cluster.brokers), file=typed)

        async def carry_out(*commands: str) -> None:
            nonlocal answered
            print(*commands, sep="\n", file=typed, flush=True)
            answered += len(commands)
            await asyncio.to_thread(program.wait_for_lines, answered)

        yield carry_out


async def values(consumer: SingleConsumer, count: int) -> list[bytes]:
    """Return the next ``count`` values or more."""
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in records]
    return found


async def test_a_topic_with_transactions_is_read_to_its_end(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique
) -> None:
    """
    All records of transactions are delivered, those of aborted ones too. Then the lag is 0 although the log ends with
    the mark of a transaction, and the records of the next transaction follow.
    """
    cluster, _ = modern
    topic = unique("transactions")
    await produce(f"create {topic}", f"commit {topic} 0 1", f"abort {topic} aborted")
    tp = TopicPartition(topic, 0)
    async with SingleConsumer(cluster.brokers) as consumer:
        consumer.assign([tp])
        assert await values(consumer, 3) == [b"0", b"1", b"aborted"]
        async with asyncio.timeout(30):
            while consumer.lag(tp) != 0:
                assert await consumer.getmany(timeout_ms=100) == {}
        assert await consumer.position(tp) == 5
        assert await consumer.end_offsets([tp]) == {tp: 5}
        await produce(f"commit {topic} 5 6")
        assert await values(consumer, 2) == [b"5", b"6"]


async def test_the_lag_of_a_group_is_0_behind_the_mark_of_a_transaction(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique
) -> None:
    """A member commits the end of what is readable, so that the group has no lag, whoever measures it."""
    cluster, _ = modern
    topic, group = unique("transactions"), unique("group")
    await produce(f"create {topic}", f"commit {topic} 0 1")
    backend = GroupBackend(cluster, "brokers")
    async with backend.consumer(group, auto_commit_interval_ms=100) as consumer:
        await consumer.subscribe(topic)
        async with asyncio.timeout(30):
            assert [(await consumer.getone()).value for _ in range(2)] == [b"0", b"1"]
        getting = asyncio.ensure_future(consumer.getone())
        try:
            await backend.await_committed(group, topic, 3)
            assert consumer.lag(TopicPartition(topic, 0)) == 0
            words = ["--check", "0", "--coordination", "brokers", "--brokers", ",".join(cluster.brokers)]
            outcome = await asyncio.to_thread(kiel_groups_here, "lag", group, *words)
            assert (outcome.returncode, outcome.stderr) == (0, "")
        finally:
            getting.cancel()


async def test_a_position_within_marks_reads_on(modern: tuple[Cluster, str], produce: Produce, unique: Unique) -> None:
    """From each position, also that of a mark, the records at and after it are delivered once."""
    cluster, _ = modern
    topic = unique("transactions")
    tp = TopicPartition(topic, 0)
    await produce(f"create {topic}", *[f"commit {topic} {n} {n + 1}" for n in range(0, 9, 3)])
    async with SingleConsumer(cluster.brokers) as consumer:
        consumer.assign([tp])
        for position in range(8):
            consumer.seek(tp, position)
            wanted = [b"%d" % n for n in range(position, 9) if n % 3 < 2]
            assert await values(consumer, len(wanted)) == wanted, position


@pytest.mark.parametrize("size", [20_000, 500_000])
async def test_a_large_message_grows_its_fetch(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique, size: int
) -> None:
    """A message that is larger than a fetch's share is delivered, also by brokers that send nothing of it at first."""
    cluster, _ = modern
    topic = unique("large")
    await produce(f"create {topic}", f"send {topic} none {size}", f"send {topic} none 1")
    async with SingleConsumer(cluster.brokers, max_bytes=4_096) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert await values(consumer, 2) == [b"x" * size, b"x"]


async def test_a_message_beyond_the_bound_is_an_error(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique
) -> None:
    """A message that is larger than ``max_message_bytes`` is raised with its partition and offset."""
    cluster, _ = modern
    topic = unique("large")
    tp = TopicPartition(topic, 0)
    await produce(f"create {topic}", f"send {topic} none 1", f"send {topic} none 500000")
    async with SingleConsumer(cluster.brokers, max_bytes=4_096, max_message_bytes=100_000) as consumer:
        consumer.assign([tp])
        assert await values(consumer, 1) == [b"x"]
        with pytest.raises(MessageTooLargeError, match=rf"{topic}:0 at offset 1.*max_message_bytes"):
            await values(consumer, 1)


@pytest.mark.parametrize(
    ("setting", "codec", "code"),
    [
        ("compression.type=producer", "zstd", 76),
        ("compression.type=zstd", "none", 76),
        ("message.downconversion.enable=false", "none", 35),
    ],
)
async def test_batches_that_cannot_be_converted_are_an_error(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique, setting: str, codec: str, code: int
) -> None:
    """Batches in zstd, and those of topics that refuse conversion, are raised with the code's name and what to do."""
    cluster, kafka = modern
    if kafka == "1.1.1":
        pytest.skip("has neither zstd nor the setting")
    topic = unique("refused")
    await produce(f"create {topic} {setting}", f"send {topic} {codec} 1000")
    async with SingleConsumer(cluster.brokers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(
            BrokerError, match=rf"{topic}:0 at offset 0 cannot be fetched.*UNSUPPORTED.*\({code}\)"
        ) as caught:
            await values(consumer, 1)
        assert caught.value.code == code


async def test_reading_from_a_time_starts_at_the_first_record_of_that_time(
    modern: tuple[Cluster, str], produce: Produce, unique: Unique
) -> None:
    """
    Brokers from 0.10.1 on know the time of each record of a newer producer; if all are older, the end of the log is
    meant. Our producer's records have no time, so reading starts at the segment, which may be early, but skips none.
    """
    cluster, _ = modern
    dated, undated = unique("dated"), unique("undated")
    await produce(f"create {dated}", f"create {undated}", f"date {dated} 3600 1800 600 20 10")
    async with Producer(cluster.brokers) as producer:
        await producer.produce(undated, b"now")
    words = ["--from", "5m", "--brokers", ",".join(cluster.brokers), "--max", "2", "--timeout", "20"]
    outcome = await asyncio.to_thread(kiel_groups_here, "consume", dated, *words)
    assert (outcome.stdout.split(), outcome.returncode) == (["20", "10"], 0), outcome.stderr
    reset = ["reset", unique("group"), "--new", "--topic", dated, "--by-duration", "25m", "--dry-run", "--json"]
    at = ["--coordination", "brokers", "--brokers", ",".join(cluster.brokers)]
    outcome = await asyncio.to_thread(kiel_groups_here, "offsets", *reset, *at)
    (change,) = json.loads(outcome.stdout)["changes"]
    assert change["after"] == 2
    assert re.fullmatch(r"its record is of .*Z, (14|15)\.\d min later", change["note"])
    first, second, now_ms = TopicPartition(dated, 0), TopicPartition(undated, 0), int(time.time() * 1000)
    async with SingleConsumer(cluster.brokers) as consumer:
        minutes = {ago: now_ms - ago * 60_000 for ago in (120, 20, 0)}
        found = {ago: await consumer.offsets_for_times({first: at}) for ago, at in minutes.items()}
        assert {ago: offsets[first].offset for ago, offsets in found.items()} == {120: 0, 20: 2, 0: 5}
        assert await consumer.offsets_for_times({second: minutes[20]}) == {second: OffsetAndTimestamp(0)}
