"""
Every codec with Java's clients: each side reads what the other side writes.

The broker checks the codec, too. Brokers of 0.8 decompress a set to give its messages their offsets, and compress it
again.
"""

from __future__ import annotations

import asyncio
import base64
import random
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.clients import BEGINNING, GroupedConsumer, Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.errors import BrokerError, MessageTooLargeError
from kiel_groups.model import TopicPartition
from kiel_groups.wire import codecs
from tests.helpers.reference_compression import NUMBERS, lz4_frame

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

JAVA_LIMIT_S = 60


async def java(folder: Path, main: str, *arguments: str, stdin: str = "") -> str:
    """Run one of the tools of Kafka 0.8.2.2, and return its standard output."""
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
    native_folder = f"-Djava.io.tmpdir={folder}"  # Snappy writes its native code there.
    class_path = java_class_path(kafka_release("0.8.2.2").classes)
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", "--", "java", *options, native_folder, "-cp", class_path, main, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(JAVA_LIMIT_S):
            printed, errors = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return printed.decode()


def codecs_on_disk(cluster: Cluster, topic: str) -> list[int]:
    """Return the codec number of each message in the log of partition 0. A wrapper counts as one message."""
    (log,) = (cluster.kafka[0].folder / "data" / f"{topic}-0").glob("*.log")
    data, found, at = log.read_bytes(), [], 0
    while at < len(data):
        size, attributes = struct.unpack_from(">8xi5xb", data, at)
        found.append(attributes & 7)
        at += 12 + size
    return found


def texts() -> list[str]:
    """
    Return lines that compress well and lines that do not. Lines of each kind need more than one block of any codec.
    """
    chance = random.Random(8)
    plain = [f"visitor {n} saw /page-{n % 7}.html {'again ' * (n % 30)}" for n in range(2_000)]
    noise = [base64.b64encode(chance.randbytes(3_000)).decode() for _ in range(60)]
    return [*plain[:1_000], *noise, *plain[1_000:], "", "ünïcödé"]


@pytest.mark.parametrize("codec", NUMBERS)
async def test_java_reads_what_this_producer_writes(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, codec: str
) -> None:
    """Java's consumer reads every line in order. The log contains only compressed sets of the codec."""
    topic, lines = unique("topic"), texts()
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers, compression=codec, batch_size=500, linger_ms=1_000) as producer:
        await asyncio.gather(*(producer.produce(topic, line.encode(), key=f"key {n}") for n, line in enumerate(lines)))
    wrappers = codecs_on_disk(cluster_39, topic)
    assert set(wrappers) == {NUMBERS[codec]}
    assert len(wrappers) < 20
    place = ("--broker-list", cluster_39.brokers[0], "--topic", topic, "--partition", "0", "--offset", "-2")
    printing = ("--no-wait-at-logend", "--property", "print.key=true")
    *printed, end = (await java(tmp_path, "kafka.tools.SimpleConsumerShell", *place, *printing)).splitlines()
    assert printed == [f"key {n}\t{line}" for n, line in enumerate(lines)]
    assert end.startswith("Terminating. Reached the end of partition")


@pytest.mark.parametrize("flavour", [(), ("--new-producer",)], ids=["Scala producer", "Java producer"])
@pytest.mark.parametrize("codec", NUMBERS)
async def test_this_consumer_reads_what_java_produces(
    cluster_39: Cluster, unique: Unique, tmp_path: Path, codec: str, flavour: tuple[str, ...]
) -> None:
    """
    The consumer reads every key and value at its offset, from the beginning and from the middle of a compressed set.
    """
    topic, lines = unique("topic"), texts()
    await cluster_39.create_topic(topic, 1)
    producing = ("--broker-list", cluster_39.brokers[0], "--topic", topic, "--compression-codec", codec, *flavour)
    keyed = ("--property", "parse.key=true", "--batch-size", "600", "--timeout", "5000")
    typed = "".join(f"key {n}\t{line}\n" for n, line in enumerate(lines))
    await java(tmp_path, "kafka.tools.ConsoleProducer", *producing, *keyed, stdin=typed)
    expected = [(n, f"key {n}".encode(), line.encode()) for n, line in enumerate(lines)]
    assert await read(cluster_39, topic, BEGINNING, len(expected)) == expected
    # These tools wait for no acknowledgement: the broker may store the last set after they have ended.
    assert set(codecs_on_disk(cluster_39, topic)) == {NUMBERS[codec]}
    middle = {TopicPartition(topic, 0): 1_030}
    assert await read(cluster_39, topic, middle, 20) == expected[1_030:1_050]


async def test_keys_get_the_partitions_that_java_chooses(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """A producer with ``murmur2`` adds each record to the partition to which Java's producer sends its key."""
    topic, keys = unique("topic"), [f"key {n}" * (1 + n % 5) for n in range(200)]
    await cluster_39.create_topic(topic, 7)
    producing = ("--broker-list", cluster_39.brokers[0], "--topic", topic, "--new-producer", "--timeout", "5000")
    typed = "".join(f"{key}\tjava\n" for key in keys)
    await java(tmp_path, "kafka.tools.ConsoleProducer", *producing, "--property", "parse.key=true", stdin=typed)
    async with Producer(cluster_39.brokers, partitioner="murmur2") as producer:
        assert await producer.produce_many(topic, ["ours"] * len(keys), keys) == len(keys)
    places = defaultdict(list)
    async with SingleConsumer(cluster_39.brokers) as consumer, asyncio.timeout(60):
        await consumer.subscribe(topic, start=BEGINNING)
        for _ in range(2 * len(keys)):
            record = await anext(consumer)
            places[record.key].append(record.partition)
    assert {key: len(found) for key, found in places.items()} == {key.encode(): 2 for key in keys}
    assert all(ours == java for ours, java in places.values())


@pytest.mark.parametrize("codec", NUMBERS)
async def test_a_set_above_max_decompressed_bytes_is_an_error(cluster_39: Cluster, unique: Unique, codec: str) -> None:
    """
    Records before a set that is too large are delivered. The error names partition, offset and setting. With the
    default limit all records are read.
    """
    topic, packed = unique("topic"), [b"%d" % n * 10_000 for n in range(10)]
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        await producer.produce(topic, b"before")
    async with Producer(cluster_39.brokers, compression=codec, batch_size=10, linger_ms=1_000) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in packed))
    place = cluster_39.brokers, unique("group"), cluster_39.zk_hosts
    async with GroupedConsumer(*place, max_decompressed_bytes=90_000) as member:
        await member.subscribe(topic)
        records = aiter(member)
        assert (await anext(records)).value == b"before"
        with pytest.raises(MessageTooLargeError, match=rf"{topic}:0 at offset 10: .*max_decompressed_bytes"):
            await asyncio.wait_for(anext(records), 30)
    async with GroupedConsumer(*place) as member, asyncio.timeout(30):
        await member.subscribe(topic)
        records = aiter(member)
        assert [(await anext(records)).value for _ in packed] == packed


async def read(cluster: Cluster, topic: str, start: Any, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    async with SingleConsumer(cluster.brokers, max_bytes=100_000) as consumer, asyncio.timeout(60):
        await consumer.subscribe(topic, start=start)
        return [(r.offset, r.key, r.value) for r in [await anext(consumer) for _ in range(count)]]


async def test_the_broker_refuses_the_right_lz4_checksum(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stores the same frame only with Kafka's wrong checksum, so the producer writes the wrong one."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    for kafka in (False, True):
        written = replace(codecs.codec_by_name("lz4"), compress=partial(lz4_frame, kafka=kafka))
        monkeypatch.setitem(codecs._CODECS, written.number, written)
        async with Producer(cluster_39.brokers, compression="lz4", retries=0) as producer:
            if kafka:
                assert (await producer.produce(topic, "stored")).offset == 0
            else:
                with pytest.raises(BrokerError) as caught:
                    await producer.produce(topic, "refused")
                assert caught.value.code == -1
