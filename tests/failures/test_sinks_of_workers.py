"""Sinks whose workers die, freeze or stop while records arrive."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kiel_groups import Producer
from kiel_groups.config import parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import find_log_ends
from kiel_groups.workers.runners.runner_interface import sink_group
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.journal_sink import JOURNAL_SINK, read_written
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import WorkerPrograms
from tests.helpers.worker_journals import RECOVERY_S, Journal

pytestmark = pytest.mark.failures

SESSION_TIMEOUT_MS = 4_000

Unique = Callable[[str], str]

_PARTITIONS = 6


class SinkGroup:
    """A sink with three tasks, what they have written, and what its consumer group has committed."""

    def __init__(self, cluster: Cluster, client: KazooClient, topic: str, folder: Path) -> None:
        self.journal = Journal(cluster, topic, folder)
        self._client = client
        self._written = folder / "written.txt"

    async def create(self, url: str, name: str) -> None:
        """Create the connector through a worker."""
        self._group = sink_group(name)
        settings = {"connector_class": JOURNAL_SINK, "topics": self.journal.topic, "written": self._written}
        await self.journal.create(url, name, 3, **settings)

    async def committed(self) -> dict[int, int]:
        """Return the committed offsets by partition. Fail if a record before one of them is not written."""
        found = await asyncio.to_thread(stored_offsets, self._client, self._group, self.journal.topic)
        # What was written before the commit is still there after it was read.
        written = read_written(self._written)
        for number, offset in found.items():
            missing = set(range(offset)) - written.get(number, set())
            assert not missing, f"partition {number}: committed {offset}, but {sorted(missing)} are not written"
        return found

    async def allocator(self) -> str:
        """Return the name of the allocator that the sink's consumer group uses."""
        path = GroupLayout(self._group).group_state
        data, _ = await asyncio.to_thread(self._client.get, path)
        return GroupState.parse(data, path).allocator

    async def watch(self) -> None:
        """Check the committed offsets again and again; they do not decrease."""
        before: dict[int, int] = {}
        while True:
            after = await self.committed()
            assert all(after[number] >= offset for number, offset in before.items()), (before, after)
            before = after
            await asyncio.sleep(0.1)

    async def check(self) -> None:
        """Wait until all records of the topic are committed; they are written then."""
        partitions = [TopicPartition(self.journal.topic, number) for number in range(_PARTITIONS)]
        brokers = parse_hosts(self.journal.cluster.brokers, 9092, "brokers")
        ends = await find_log_ends(brokers, partitions)
        expected = {partition.partition: offset for partition, offset in ends.offsets.items()}
        assert len(expected) == _PARTITIONS
        assert min(expected.values()) > 0

        async def are_committed() -> bool:
            return await self.committed() == expected

        await eventually(are_committed, f"{expected} are committed", RECOVERY_S)


async def _keep_producing(cluster: Cluster, topic: str) -> None:
    """Write a record to each partition in turn, until this is cancelled."""
    async with Producer(cluster.brokers) as producer:
        for number in count():
            await producer.produce(topic, b"%d" % number, partition=number % _PARTITIONS)
            await asyncio.sleep(0.005)


async def test_workers_of_a_sink_are_killed_frozen_and_stopped(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    The sink's tasks and their partitions are on other workers after a session timeout, or at once if the worker is
    stopped. A ``put`` that is slow meanwhile delays the partitions that its task gives back. A committed offset is
    never beyond what tasks have flushed, also when a frozen worker continues. All records are written, and some may be
    repeated. The tasks share the partitions so that few of them move.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, _PARTITIONS)
    with (
        zookeeper(cluster_39) as client,
        WorkerPrograms(cluster_39, unique("workers"), SESSION_TIMEOUT_MS) as workers,
    ):
        sink = SinkGroup(cluster_39, client, topic, tmp_path)
        first, second, third = await workers.add(3)
        pids = [process.process.pid for process in (first, second, third)]
        await sink.create(workers.url, unique("sink"))
        async with asyncio.TaskGroup() as running:
            judging = running.create_task(sink.watch())
            producing = running.create_task(_keep_producing(cluster_39, topic))
            await sink.journal.all_run(*pids)
            assert await sink.allocator() == "sticky"
            await _killed_while_puts_are_slow(sink.journal, pids[0])
            await sink.journal.all_run(*pids[1:])
            os.kill(pids[1], signal.SIGSTOP)
            sink.journal.frozen.add(pids[1])
            await sink.journal.all_run(pids[2])
            os.kill(pids[1], signal.SIGCONT)
            await sink.journal.all_run(*pids[1:])
            assert await asyncio.to_thread(third.end, signal.SIGTERM) == 143
            await sink.journal.all_run(pids[1])
            producing.cancel()
            await asyncio.wait([producing])
            await sink.check()
            judging.cancel()
        assert await asyncio.to_thread(second.end, signal.SIGTERM) == 143
        await sink.check()


async def _killed_while_puts_are_slow(journal: Journal, pid: int) -> None:
    """Kill a worker, and have all puts last until the tasks of that worker have started elsewhere."""
    tasks = {entry.task for entry in journal.entries("start") if entry.pid == pid}
    journal.misbehave("block")
    await eventually(lambda: {entry.task for entry in journal.entries("block")} == journal.tasks, "all puts are slow")
    os.kill(pid, signal.SIGKILL)

    def are_moved() -> bool:
        return tasks <= {entry.task for entry in journal.entries("start") if entry.pid != pid}

    await eventually(are_moved, "the killed worker's tasks have started elsewhere", RECOVERY_S)
    journal.misbehave("")
