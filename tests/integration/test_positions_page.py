"""The page about positions: its programs run as printed, and what it says about late reads is so."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, Producer, Record, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import IllegalStateError
from tests.helpers.cluster_data import produce
from tests.helpers.commands import REPOSITORY
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PAGE = (REPOSITORY / "docs/positions.rst").read_text(encoding="utf-8")


class Done(Exception):  # noqa: N818 -- ends a program
    """The program has done what the test waits for."""


async def run(cluster: Cluster, number: int, topic: str, group: str, **names: Any) -> None:
    """Run a program of the page by its number, from 0, with these names of its surroundings."""
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", PAGE, re.MULTILINE)
    text = textwrap.indent(textwrap.dedent(blocks[number]), "    ")
    scope: dict[str, Any] = {"brokers": cluster.brokers, "zk_hosts": cluster.zk_hosts, "topic": topic, "group": group}
    scope |= names
    exec(f"async def main():\n{text}", scope)
    async with asyncio.timeout(60.0):
        await scope["main"]()


async def filled(cluster: Cluster, unique: Unique, count: int) -> str:
    topic = unique("topic")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, count)
    return topic


async def test_a_loop_takes_columns(cluster_39: Cluster, unique: Unique) -> None:
    topic, written = await filled(cluster_39, unique, 25), list[bytes]()

    async def write(_: TopicPartition, first_offset: int, rows: Any) -> None:
        assert first_offset == len(written)
        written.extend(rows.column("value").to_pylist())
        if len(written) == 25:
            raise Done

    with pytest.raises(Done):
        await run(cluster_39, 0, topic, unique("group"), write=write)
    assert written == [b"%d" % number for number in range(25)]


async def test_a_replayer_seeks_in_its_hook(cluster_39: Cluster, unique: Unique) -> None:
    topic, seen = await filled(cluster_39, unique, 25), list[int]()

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 24:
            raise Done

    with pytest.raises(Done):
        await run(cluster_39, 1, topic, unique("group"), handle=handle)
    assert seen == list(range(15, 25))


async def uneven(cluster: Cluster, unique: Unique, *counts: int) -> tuple[str, dict[TopicPartition, list[int]]]:
    """Make a topic whose partitions have these numbers of records; return it, and their offsets."""
    topic = unique("topic")
    await cluster.create_topic(topic, len(counts))
    async with Producer(cluster.brokers) as producer:
        numbers = [number for number, count in enumerate(counts) for _ in range(count)]
        await asyncio.gather(*(producer.produce(topic, b"value", partition=number) for number in numbers))
    return topic, {TopicPartition(topic, number): list(range(count)) for number, count in enumerate(counts)}


def offsets_of(records: Iterable[Record]) -> dict[TopicPartition, list[int]]:
    offsets = defaultdict[TopicPartition, list[int]](list)
    for record in records:
        offsets[record.topic_partition].append(record.offset)
    return dict(offsets)


async def test_a_program_pauses_what_waits_for_its_sink(cluster_39: Cluster, unique: Unique) -> None:
    """A partition that has nothing more, or nothing at all, keeps no other from being stored."""
    topic, expected = await uneven(cluster_39, unique, 100, 3, 0)
    stored = list[Record]()

    async def store(rows: dict[TopicPartition, list[Record]]) -> None:
        assert max(len(records) for records in rows.values()) < 10, "a paused partition delivers nothing"
        stored.extend(record for records in rows.values() for record in records)
        if len(stored) == 103:
            raise Done

    with pytest.raises(Done):
        await run(cluster_39, 2, topic, unique("group"), rows=defaultdict(list), store=store)
    assert offsets_of(stored) == {partition: offsets for partition, offsets in expected.items() if offsets}


@pytest.mark.parametrize("counts", [(30,), (1, 200), (40, 0)])
async def test_a_program_ends_without_lag(cluster_39: Cluster, unique: Unique, counts: tuple[int, ...]) -> None:
    """Also if a partition is short, and another was not fetched yet; and if one is empty."""
    (topic, expected), seen = await uneven(cluster_39, unique, *counts), list[Record]()
    await run(cluster_39, 3, topic, unique("group"), handle=seen.append)
    assert offsets_of(seen) == {partition: offsets for partition, offsets in expected.items() if offsets}


async def test_a_record_that_is_read_too_late_was_delivered_again(cluster_39: Cluster, unique: Unique) -> None:
    topic = await filled(cluster_39, unique, 1)
    async with GroupedConsumer(cluster_39.brokers, unique("group"), cluster_39.zk_hosts) as consumer:
        await consumer.subscribe(topic)
        unread = consumer.getone()
        await eventually(unread.done, "a record has come, and is not read")
        async with asyncio.timeout(30.0):
            assert (await asyncio.create_task(another(consumer))).offset == 0
        with pytest.raises(IllegalStateError, match="delivered again"):
            await unread


async def another(consumer: GroupedConsumer) -> Record:
    return await consumer.getone()
