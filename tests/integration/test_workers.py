"""Workers on real servers: from a file to a topic and to another file, with workers that join, stop and die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.workers.execution.worker import Worker
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = pytest.mark.integration


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Copying:
    """A file to read, a file to write, and the connectors that copy one to the other through a topic."""

    def __init__(self, cluster: Cluster, folder: Path, unique: Callable[[str], str]) -> None:
        self._cluster = cluster
        self.read, self.written, self.topic = folder / "read.txt", folder / "written.txt", unique("lines")
        self.source, self.sink = unique("source"), unique("sink")

    async def create(self, worker: Worker) -> None:
        """Create the topic, and the connectors through a worker."""
        await self._cluster.create_topic(self.topic, 1)
        source = {"connector.class": "FileStreamSource", "file": str(self.read), "topic": self.topic}
        sink = {"connector.class": "FileStreamSink", "file": str(self.written), "topics": self.topic}
        for name, config in ((self.source, source), (self.sink, sink)):
            await ask(worker.url, "POST", "/connectors", {"name": name, "config": config})

    def add(self, *added: str) -> None:
        """Append lines to the file that is read."""
        with self.read.open("a") as file:
            file.writelines(f"{line}\n" for line in added)

    async def arrived(self, count: int) -> list[str]:
        """Wait until a number of lines has arrived, and return all that have."""
        await eventually(lambda: len(lines(self.written)) >= count, f"{count} lines")
        return lines(self.written)


@pytest.fixture
def copying(cluster_39: Cluster, tmp_path: Path, unique: Callable[[str], str]) -> Copying:
    return Copying(cluster_39, tmp_path, unique)


async def test_lines_go_from_a_file_to_a_topic_and_to_a_file(
    cluster_39: Cluster, unique: Callable[[str], str], copying: Copying
) -> None:
    """Each line arrives once, in order, also if the worker that copies it is stopped and another one continues."""
    group = unique("workers")
    expected = [f"{letter}{number}" for letter in "abc" for number in range(1_000)]
    async with worker_on(cluster_39, group) as first:
        await copying.create(first)
        copying.add(*expected[:1_000])
        await copying.arrived(1_000)
        async with worker_on(cluster_39, group) as second:
            copying.add(*expected[1_000:2_000])
            await first.close()
            for connector in (copying.source, copying.sink):
                status = await until_state(second.url, connector, "RUNNING", "RUNNING")
                assert {task["worker_id"] for task in status["tasks"]} == {second.url.split("/")[2]}
            copying.add(*expected[2_000:])
            assert await copying.arrived(3_000) == expected


async def test_a_paused_connector_resumes_where_it_stopped(
    cluster_39: Cluster, unique: Callable[[str], str], copying: Copying
) -> None:
    """While it is paused, nothing arrives; after that, everything does, once."""
    source = copying.source
    async with worker_on(cluster_39, unique("workers")) as worker:
        await copying.create(worker)
        copying.add("a", "b")
        await copying.arrived(2)
        await ask(worker.url, "PUT", f"/connectors/{source}/pause")

        await until_state(worker.url, source, "PAUSED", "PAUSED")
        copying.add("c")
        assert await copying.arrived(2) == ["a", "b"]
        await ask(worker.url, "PUT", f"/connectors/{source}/resume")
        assert await copying.arrived(3) == ["a", "b", "c"]
        await ask(worker.url, "DELETE", f"/connectors/{source}")
        assert await ask(worker.url, "GET", "/connectors") == [copying.sink]


async def test_brokers_coordinate_workers_whose_claims_are_in_zookeeper(
    shared_clusters: Callable[..., Cluster], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Workers on brokers of Kafka 0.9 copy a file, also after one of them has left."""
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    copying, group = Copying(cluster, tmp_path, unique), unique("workers")
    async with worker_on(cluster, group, coordination="brokers") as first:
        await copying.create(first)
        copying.add("a", "b")
        await copying.arrived(2)
        async with worker_on(cluster, group, coordination="brokers") as second:
            await first.close()
            for connector in (copying.source, copying.sink):
                await until_state(second.url, connector, "RUNNING", "RUNNING")
            copying.add("c")
            assert await copying.arrived(3) == ["a", "b", "c"]
