"""Run a group of workers, and measure from their tasks' reports the cost of a join, a leave or a kill."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from kazoo.client import KazooClient

from benchmarks.contenders import FLOOR, SESSION_TIMEOUT_MS
from benchmarks.members.idle_connector import IDLE_CONNECTOR
from benchmarks.reported_ownership import Member
from benchmarks.reporting_processes import ReportingProcesses
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.worker_layout import WorkerLayout
from kiel_groups.workers.rest_client.worker_client import WorkerClient

__all__ = ["WORKER_GROUPS", "WorkerFigures", "WorkerGroup", "WorkerSetup", "worker_group"]

#: How long a group must be without changes until an event counts as over, in seconds: longer than any debounce.
REST_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The settings of all workers of a group."""

    name: str
    settings: Mapping[str, Any]


WORKER_GROUPS = (
    WorkerSetup("workers, sticky, floor", {"allocator": "sticky", **FLOOR}),
    WorkerSetup("workers, sticky, defaults", {"allocator": "sticky"}),
    WorkerSetup("workers, round robin, floor", FLOOR),
    WorkerSetup("workers, round robin, defaults", {}),
)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """
    The cost of one event, until all tasks run again.

    ``s``: the duration in seconds. ``unowned``: task-seconds in which tasks did not run. ``moved``: tasks that moved
    unnecessarily. ``restarted``: tasks that were stopped and started again by the same worker. ``cores``: the average
    number of cores that workers and servers kept busy.
    """

    s: float
    unowned: float
    moved: int
    restarted: int
    cores: float


class WorkerGroup:
    """One group whose workers are processes, and the servers that it uses."""

    def __init__(self, setup: WorkerSetup, name: str, cluster: Cluster) -> None:
        self._setup = setup
        self._name = name
        settings = json.dumps({"session_timeout_ms": SESSION_TIMEOUT_MS, **setup.settings})

        def command(_: int) -> list[str]:
            return [sys.executable, "-m", "benchmarks.members.kiel_worker", cluster.zk_hosts, name, settings]

        self._processes = ReportingProcesses(setup.name, command, [server.pid for server in cluster.servers])
        self._seen = self._processes.seen
        self._zookeeper = KazooClient(cluster.zk_hosts)
        self._zookeeper.start()
        self._tasks = 0
        self.prepared, self.join = self._processes.prepared, self._processes.join
        self.leave, self.kill = self._processes.leave, self._processes.kill

    def gather(self, workers: int, connectors: int, tasks: int) -> None:
        """Start the workers that stay during all events, create connectors, and wait until all tasks run."""
        for number in [self._processes.prepare() for _ in range(workers)]:
            self.join(number)
        folder = WorkerLayout(self._name).workers
        self._processes.wait(lambda: self._count(folder) == workers, "the workers do not join", 0.1)
        asyncio.run(self._create(connectors, tasks))
        self._tasks = connectors * tasks
        self._settle(workers)

    async def _create(self, connectors: int, tasks: int) -> None:
        folder = WorkerLayout(self._name).workers
        any_worker = self._zookeeper.get_children(folder)[0]
        url = json.loads(self._zookeeper.get(f"{folder}/{any_worker}")[0])["url"]
        async with WorkerClient(url) as client:
            for number in range(connectors):
                config = {"connector.class": IDLE_CONNECTOR, "tasks.max": str(tasks)}
                await client.call("POST", "/connectors", {"name": f"c{number:03d}", "config": config})

    def _count(self, folder: str) -> int:
        return len(self._zookeeper.get_children(folder)) if self._zookeeper.exists(folder) else 0

    def measure(self, event: str, workers: int, cause: Callable[[], object]) -> WorkerFigures:
        """Cause an event, and return its cost until all tasks run, shared by this number of workers."""
        self._rest()
        before, known = self._seen.owners, self._seen.members
        starts = self._seen.starts
        self._processes.cpu.sample()
        cause()
        began_ns = self._ended_ns(workers) if event == "kill" else 0
        self._settle(workers)
        after, now = self._seen.owners, self._seen.members
        (changed,) = now - known if event == "join" else known - now
        if event != "kill":
            began_ns = (self._seen.joining_ns if event == "join" else self._seen.leaving_ns)[changed]
        return self._figures(began_ns, before, after if event == "join" else before, changed, starts)

    def _figures(
        self, began_ns: int, before: Mapping[str, Member], moving: Mapping[str, Member], changed: Member, starts: int
    ) -> WorkerFigures:
        if both := self._seen.overlaps():
            raise click.ClickException(f"{self._setup.name}: two workers ran {both[0]} at once")
        ended_ns, moved = self._seen.last_owned_ns, self._seen.moved(before)
        return WorkerFigures(
            s=(ended_ns - began_ns) / 1e9,
            unowned=self._seen.unowned_ns(began_ns, ended_ns) / 1e9,
            moved=moved - sum(1 for owner in moving.values() if owner == changed),
            restarted=self._seen.starts - starts - moved,
            cores=self._processes.cores(began_ns, ended_ns),
        )

    def _ended_ns(self, workers: int) -> int:
        """
        Wait until ZooKeeper has ended both sessions of a killed worker, and return when that was seen.

        No other worker can notice the death of its member, or claim its tasks, before that.
        """
        folders = [WorkerLayout(self._name).workers, GroupLayout(self._name).members]
        for folder in folders:
            self._processes.wait(lambda: self._count(folder) == workers, "a killed worker stays")  # noqa: B023
        return time.monotonic_ns()

    def _rest(self) -> None:
        until_ns = self._seen.last_owned_ns + REST_S * 1e9
        self._processes.wait(lambda: time.monotonic_ns() >= until_ns, "the group does not come to rest")

    def _settle(self, workers: int) -> None:
        """Wait until this number of workers has shared all tasks for a while."""
        self._processes.wait(
            lambda: (
                self._seen.is_shared(self._tasks, workers)
                and time.monotonic_ns() >= self._seen.last_owned_ns + REST_S * 1e9
            ),
            "not all tasks run",
        )

    def close(self) -> None:
        """Have the workers leave that still run, and wait for their processes."""
        self._processes.close()
        self._zookeeper.stop()
        self._zookeeper.close()


@contextmanager
def worker_group(setup: WorkerSetup, name: str, cluster: Cluster) -> Iterator[WorkerGroup]:
    """Provide a group without workers; those that still run at the end leave."""
    running = WorkerGroup(setup, name, cluster)
    try:
        yield running
    finally:
        running.close()
