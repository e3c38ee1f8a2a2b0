"""Workers on real servers: from a file to a topic and to another file, with workers that join, stop and die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from kiel_groups.embedded import Cluster
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.rest.rest_settings import RestSettings
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration


def worker_on(cluster: Cluster, group: str, coordination: Literal["zookeeper", "brokers"] = "zookeeper") -> Worker:
    """Return a worker of a group, which has not started, with a port of the system's choice."""
    settings = WorkerSettings(
        group=group,
        coordination=coordination,
        zookeeper=cluster.zk_hosts,
        brokers=",".join(cluster.brokers),
        rest=RestSettings(port=0),
        session_timeout_ms=6_000,
    )
    return Worker(settings)


async def ask(worker: Worker, method: str, path: str, body: object = None) -> Any:
    """Send a request to a worker's REST interface; try again during a rebalance."""
    while True:
        request = HTTPRequest(
            worker.url.rstrip("/") + path,
            method,
            headers={"Content-Type": "application/json"},
            body=None if body is None else json.dumps(body),
            allow_nonstandard_methods=True,
        )
        try:
            answer = await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            if error.code != 409:
                raise
            await asyncio.sleep(0.1)
        else:
            return json.loads(answer.body) if answer.body else None


async def until_running(worker: Worker, connector: str) -> dict[str, Any]:
    """Wait until a connector and its tasks run, and return its status."""

    async def running() -> dict[str, Any] | None:
        status: dict[str, Any] = await ask(worker, "GET", f"/connectors/{connector}/status")
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return status if len(states) > 1 and set(states) == {"RUNNING"} else None

    return await eventually(running, f"{connector} to run") or {}


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
            await ask(worker, "POST", "/connectors", {"name": name, "config": config})

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
                status = await until_running(second, connector)
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
        await ask(worker, "PUT", f"/connectors/{source}/pause")

        async def paused() -> bool:
            status = await ask(worker, "GET", f"/connectors/{source}/tasks/0/status")
            return bool(status["state"] == "PAUSED")

        await eventually(paused, "the task to pause")
        copying.add("c")
        assert await copying.arrived(2) == ["a", "b"]
        await ask(worker, "PUT", f"/connectors/{source}/resume")
        assert await copying.arrived(3) == ["a", "b", "c"]
        await ask(worker, "DELETE", f"/connectors/{source}")
        assert await ask(worker, "GET", "/connectors") == [copying.sink]


async def test_brokers_coordinate_workers_whose_claims_are_in_zookeeper(
    shared_clusters: Callable[..., Cluster], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Workers on brokers of Kafka 0.9 copy a file, also after one of them has left."""
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    copying, group = Copying(cluster, tmp_path, unique), unique("workers")
    async with worker_on(cluster, group, "brokers") as first:
        await copying.create(first)
        copying.add("a", "b")
        await copying.arrived(2)
        async with worker_on(cluster, group, "brokers") as second:
            await first.close()
            for connector in (copying.source, copying.sink):
                await until_running(second, connector)
            copying.add("c")
            assert await copying.arrived(3) == ["a", "b", "c"]
