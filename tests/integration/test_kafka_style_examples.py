"""The five programs of examples/kafka_style, and the page that has them beside what they were before."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiel_groups import GroupedConsumer, OffsetAndTimestamp, Producer, Record, SingleConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, CommitFailedError, ConfigError, IllegalStateError, UnknownTopicError
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import await_committed, members, owners, produce, stored_offsets, zookeeper
from tests.helpers.commands import REPOSITORY, Running, environment
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

PROGRAMS = REPOSITORY / "examples" / "kafka_style"
#: The programs, in the order of the pages.
NAMES = ["dead_letters.py", "manual_committer.py", "aggregator.py", "pausing_batcher.py", "replayer.py"]
PAGES = "".join(
    (REPOSITORY / "docs" / f"programs-{name}.rst").read_text(encoding="utf-8") for name in ("aiokafka", "kafka-python")
)

Unique = Callable[[str], str]


def blocks() -> list[str]:
    """Return the programs of the pages: theirs and ours by turns."""
    found = re.findall(r"^\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", PAGES, re.MULTILINE)
    return [textwrap.dedent(block).strip() + "\n" for block in found]


def started(name: str, cluster: Cluster, *arguments: str) -> Running:
    return Running([str(PROGRAMS / name), cluster.brokers[0], cluster.zk_hosts, *arguments])


def test_every_program_is_tested() -> None:
    assert {path.name for path in PROGRAMS.glob("*.py")} == set(NAMES)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_the_page_has_the_program_as_it_is(number: int) -> None:
    """Ours are the files. Theirs are Python, and for one of the two libraries."""
    theirs, ours = blocks()[2 * number : 2 * number + 2]
    assert ours == (PROGRAMS / NAMES[number]).read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(theirs)) if isinstance(node, ast.ImportFrom)}
    assert len(imported & {"kafka", "aiokafka"}) == 1


def test_the_page_has_no_other_program() -> None:
    assert len(blocks()) == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_without_arguments_a_program_prints_its_usage(name: str) -> None:
    command = [sys.executable, str(PROGRAMS / name)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"usage: {name} ")
    assert "Traceback" not in done.stderr


async def test_calls_that_fail_do_so_as_the_page_says(cluster_39: Cluster, unique: Unique) -> None:
    """Each call of the other libraries that fails here fails with the error that the page names."""
    topic = unique("t")
    await cluster_39.create_topic(topic, 1)
    partition, other = TopicPartition(topic, 0), TopicPartition(topic, 7)
    consumer: Any = GroupedConsumer(cluster_39.brokers, unique("g"), cluster_39.zk_hosts)
    for method in ("start", "stop", "poll", "seek_to_committed"):
        assert not hasattr(consumer, method)
    for field in ("timestamp", "headers"):
        assert not hasattr(Record(topic, 0, 0, None, b""), field)
    await consumer.subscribe(topic)
    with pytest.raises(ClosedError):
        await consumer.getone()
    async with consumer:
        await eventually(consumer.assignment, "the partition is assigned")
        assert await consumer.committed([partition, other]) == {partition: 0, other: None}
        assert await consumer.position(partition) == 0
        assert await consumer.commit() == frozenset()
        assert await consumer.getmany() == {}
        assert await consumer.offsets_for_times({partition: 2**42}) == {partition: OffsetAndTimestamp(0, -1)}
        assert await consumer.topics() >= {topic}
        assert consumer.partitions_for_topic(topic) == {0}
        for error, call in [
            (IllegalStateError, lambda: consumer.subscribe(pattern="clicks.*")),
            (ConfigError, consumer.__aiter__),
            (CommitFailedError, lambda: consumer.commit({other: 1})),
            (ConfigError, lambda: consumer.commit({partition: 1})),
            (TypeError, lambda: consumer.committed(partition, metadata=True)),
            (IllegalStateError, lambda: consumer.position(other)),
            (IllegalStateError, lambda: consumer.assign([partition])),
            (TypeError, lambda: consumer.metrics()),
            (UnknownTopicError, lambda: consumer.end_offsets([other])),
        ]:
            with pytest.raises(error) as raised:
                await call()
            assert raised.type is error
        await consumer.unsubscribe()
        assert consumer.member_id in members(cluster_39, consumer.group_name)
    async with GroupedConsumer(cluster_39.brokers, unique("g"), cluster_39.zk_hosts) as assigned:
        assigned.assign([partition])
        assert assigned.member_id is None
        with pytest.raises(IllegalStateError, match="no claim"):
            await assigned.commit()


async def test_a_dead_letter_arrives_before_its_offset_is_committed(cluster_39: Cluster, unique: Unique) -> None:
    """The dead letter has the key and the bytes of the record; the group's offset is behind it."""
    topic, group = unique("t"), unique("g")
    for name in (topic, f"{topic}-dead"):
        await cluster_39.create_topic(name, 1)
    values = [b'{"number": 1}', b'\xff{"number": 2}', b'{"number": 3}', b"{"]
    async with Producer(cluster_39.brokers) as producer:
        for number, value in enumerate(values):
            await producer.produce(topic, value, key=b"key-%d" % number)
    with started("dead_letters.py", cluster_39, topic, group) as program:
        lines = program.wait_for_lines(4)
        assert [line for line in lines if line.startswith("order")] == ["order 1", "order 3"]
        assert sum(line.startswith("dead letter: ") for line in lines) == 2
        await await_committed(cluster_39, group, topic, 4)
        assert program.end(signal.SIGINT) == 0
        assert program.errors[-1] == "left the group"
    async with SingleConsumer(cluster_39.brokers) as consumer, asyncio.timeout(30):
        await consumer.subscribe(f"{topic}-dead", start=SingleConsumer.BEGINNING)
        letters = [await anext(consumer) for _ in range(2)]
    assert [(letter.key, letter.value) for letter in letters] == [(b"key-1", values[1]), (b"key-3", values[3])]


async def test_the_batcher_loses_nothing_when_a_second_one_joins(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Both pause, write and resume. In the end, all is written and committed."""
    topic, group, file = unique("t"), unique("g"), tmp_path / "sink"
    await cluster_39.create_topic(topic, 4)
    values = await produce(cluster_39, topic, 1_000)
    with started("pausing_batcher.py", cluster_39, topic, group, str(file)) as first:
        assert first.wait_for_lines(3)[:3] == ["paused 4", "stored 100", "paused 4"]
        with started("pausing_batcher.py", cluster_39, topic, group, str(file)) as second, zookeeper(cluster_39) as zk:

            def shares() -> list[int]:
                return sorted(Counter(owner for owner, _ in owners(zk, group, topic).values()).values())

            await eventually(lambda: shares() == [2, 2], "each owns two partitions")
            values += await produce(cluster_39, topic, 1_000, first=1_000)
            await await_committed(cluster_39, group, topic, 2_000)
            assert [program.end(signal.SIGINT) for program in (first, second)] == [0, 0]
            assert [program.errors[-1] for program in (first, second)] == ["left the group"] * 2
            assert any(line.startswith("stored ") for line in second.lines)
    assert set(file.read_bytes().splitlines()) == set(values)


async def test_the_replayer_begins_at_a_time(cluster_39: Cluster, unique: Unique) -> None:
    """Brokers know the last write of each segment, so the topic has small ones. Nothing from the time on is missing."""
    topic = unique("t")
    with zookeeper(cluster_39) as zk:
        config = {"version": 1, "config": {"segment.bytes": "200"}}
        zk.create(f"/config/topics/{topic}", json.dumps(config).encode(), makepath=True)
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        for number in range(40):
            if number == 20:
                # File systems and Java may round the times of files to seconds.
                since_ms = (int(time.time()) + 2) * 1_000
                await eventually(lambda: time.time() * 1_000 >= since_ms, "the time has come")  # noqa: B023
            await producer.produce(topic, b"%d" % number)
    with Running([str(PROGRAMS / "replayer.py"), cluster_39.brokers[0], topic, str(since_ms)]) as program:
        assert program.wait(60) == 0, program.errors
        delivered = [line.split() for line in program.lines]
    first = int(delivered[0][1])
    assert 0 < first <= 20
    assert delivered == [["0", str(offset), str(offset)] for offset in range(first, 40)]


async def test_the_committer_is_killed_and_its_offsets_are_what_it_committed(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """The next run continues there, and nothing is lost."""
    topic, group, file = unique("t"), unique("g"), tmp_path / "file"
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 2_500)
    with started("manual_committer.py", cluster_39, topic, group, str(file)) as killed:
        killed.wait_for_lines(5)
        killed.end(signal.SIGKILL)
    # It may have been faster than this process.
    values += await produce(cluster_39, topic, 500, first=2_500)
    printed = [int(line.split()[2]) for line in killed.lines]
    with zookeeper(cluster_39) as zk:
        stored = stored_offsets(zk, group, topic)[0]
        # The kill may come between a commit and its line, or between a write and its commit.
        assert stored in (printed[-1], printed[-1] + 10)
        assert stored < 3_000
        rows = file.read_bytes().splitlines()
        assert rows in (values[:stored], values[: stored + 10])
        close_sessions_below(zk, GroupLayout(group).root)
        with started("manual_committer.py", cluster_39, topic, group, str(file)) as other:
            assert re.fullmatch(rf"committed {topic}:0 \d+", other.wait_for_lines(1)[0])
            assert stored < int(other.lines[0].split()[2]) <= stored + 10
            await eventually(lambda: stored_offsets(zk, group, topic) == {0: 3_000}, "the rest is committed", 60)
            assert other.end(signal.SIGINT) == 0
    assert file.read_bytes().splitlines() == rows + values[stored:]


@pytest.mark.slow
async def test_the_totals_follow_their_partitions(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """A member joins, and the other leaves or is killed. No record is counted twice, and none is left out."""
    topic, group = unique("t"), unique("g")
    await cluster_39.create_topic(topic, 4)
    expected: Counter[str] = Counter()

    async def send(first: int) -> None:
        async with Producer(cluster_39.brokers) as producer:
            for number in range(first, first + 200):
                expected[f"key-{number % 7}"] += number
            sent = (producer.produce(topic, b"%d" % n, key=b"key-%d" % (n % 7)) for n in range(first, first + 200))
            await asyncio.gather(*sent)

    def moved(program: Running, word: str) -> list[str]:
        return [line.split()[1] for line in program.lines if line.startswith(word)]

    arguments = (cluster_39, topic, group, str(tmp_path))
    with started("aggregator.py", *arguments) as first:
        assert len(first.wait_for_lines(4)) == 4
        await send(0)
        await await_committed(cluster_39, group, topic, 200)
        with started("aggregator.py", *arguments) as second:
            await eventually(lambda: len(moved(second, "assigned")) == 2, "the second owns two partitions")
            assert sorted(moved(first, "revoked")) == sorted(moved(second, "assigned"))
            await send(200)
            await await_committed(cluster_39, group, topic, 400)
            assert first.end(signal.SIGINT) == 0
            await eventually(lambda: len(moved(second, "assigned")) == 4, "the second owns all partitions")
            await send(400)
            await await_committed(cluster_39, group, topic, 600)
            second.end(signal.SIGKILL)
    with zookeeper(cluster_39) as zk:
        close_sessions_below(zk, GroupLayout(group).root)
    with started("aggregator.py", *arguments) as third:
        third.wait_for_lines(4)
        await send(600)
        await await_committed(cluster_39, group, topic, 800)
        assert third.end(signal.SIGINT) == 0
        assert len(moved(third, "revoked")) == 4
    files = [json.loads((tmp_path / f"{topic}-{number}.json").read_text()) for number in range(4)]
    assert sum(state["offset"] for state in files) == 800
    totals: Counter[str] = Counter()
    for state in files:
        totals.update(state["totals"])
    assert totals == expected
