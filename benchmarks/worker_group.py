"""Run a group of workers, and measure from their tasks' reports the cost of a join, a leave or a kill."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from kazoo.client import KazooClient

from benchmarks.contenders import FLOOR, SESSION_TIMEOUT_MS
from benchmarks.members.idle_connector import IDLE_CONNECTOR
from benchmarks.ownership import Ownership, Paths
from benchmarks.reported_ownership import ReportedOwnership
from benchmarks.reporting_processes import ReportingProcesses, since_1970_ms
from benchmarks.transaction_log import TransactionLog
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout, WorkerLayout
from kiel_groups.workers.rest.client import WorkerClient

__all__ = ["WORKER_GROUPS", "WorkerFigures", "WorkerGroup", "WorkerSetup", "worker_group", "worker_paths"]

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

    ``s``: the duration in seconds, from the time at which the other workers could notice the event. ``total``: the
    duration from the cause. ``stopped``: until the last task that had to move has stopped. ``longest``: the longest
    time in which one task did not run, within ``s``. ``unowned``: the sum of these times over all tasks, in
    task-seconds. ``moved``: tasks that moved unnecessarily. ``restarted``: tasks that were stopped and started again by
    the same worker. ``writes``: transactions within ``s``. ``cpu_s``: processor time of workers and servers within
    ``s``. ``cores``: the same, as the average number of cores that they kept busy.
    """

    s: float
    total: float
    stopped: float
    longest: float
    unowned: float
    moved: int
    restarted: int
    writes: int
    cpu_s: float
    cores: float


class WorkerGroup:
    """One group whose workers are processes, and the servers that it uses."""

    def __init__(self, setup: WorkerSetup, name: str, cluster: Cluster) -> None:
        self._setup = setup
        self._name = name
        settings = json.dumps({"session_timeout_ms": SESSION_TIMEOUT_MS, **setup.settings})

        def command(_: int) -> list[str]:
            return [sys.executable, "-m", "benchmarks.members.kiel_worker", cluster.zk_hosts, name, settings]

        self._seen = ReportedOwnership(leaving_ends=False)
        self._processes = ReportingProcesses(
            setup.name, command, [server.pid for server in cluster.servers], self._seen
        )
        self._log = TransactionLog(cluster.zookeeper.folder / "data")
        self._sessions = Ownership(worker_paths(name), 0)
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
        self._sessions.take(self._log.read())
        before, known, starts = self._seen.owners, self._seen.members, self._seen.starts
        self._processes.cpu.sample()
        caused_ns, zxid = time.monotonic_ns(), max(self._sessions.writes)
        cause()
        self._settle(workers)
        self._sessions.take(self._log.read())
        (changed,) = self._seen.members ^ known
        if event != "kill":
            caused_ns = (self._seen.joining_ns if event == "join" else self._seen.leaving_ns)[changed]
        noticed_ms = {"join": self._sessions.joined_ms, "kill": self._sessions.ended_ms}.get(event, {})
        began_ns = caused_ns if event == "leave" else _last_ns(noticed_ms.values(), caused_ns)
        if both := self._seen.overlaps():
            raise click.ClickException(f"{self._setup.name}: two workers ran {both[0]} at once")
        ended_ns, moved = self._seen.last_owned_ns, self._seen.moved(before)
        owners = self._seen.owners if event == "join" else before
        began_ms, ended_ms = since_1970_ms(began_ns), since_1970_ms(ended_ns)
        return WorkerFigures(
            s=(ended_ns - began_ns) / 1e9,
            total=(ended_ns - caused_ns) / 1e9,
            stopped=(self._seen.stopped_ns(began_ns) - began_ns) / 1e9,
            longest=self._seen.longest_gap_ns(began_ns, ended_ns) / 1e9,
            unowned=self._seen.unowned_ns(began_ns, ended_ns) / 1e9,
            moved=moved - sum(1 for owner in owners.values() if owner == changed),
            restarted=self._seen.starts - starts - moved,
            writes=self._sessions.between(zxid, round(ended_ms)) - self._sessions.between(zxid, round(began_ms) - 1),
            cpu_s=self._processes.cpu.used_s(began_ms, ended_ms),
            cores=self._processes.cores(began_ns, ended_ns),
        )

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


def worker_paths(group: str) -> Paths:
    """
    Return the paths of a worker's znodes, which it has on two sessions: that of its work, and that of its membership.

    No path is an owner's, because the tasks themselves report when they run.
    """
    folders = (WorkerLayout(group).workers, GroupLayout(group).members)
    return Paths(owner="(?!)", member="|".join(f"{re.escape(folder)}/[^/]+" for folder in folders))


def _last_ns(times_ms: Iterable[int], since_ns: int) -> int:
    """Return the last of these times of ZooKeeper's log, in that of the monotonic clock, or the given one if later."""
    return max(since_ns, since_ns + round((max(times_ms) - since_1970_ms(since_ns)) * 1e6))


@contextmanager
def worker_group(setup: WorkerSetup, name: str, cluster: Cluster) -> Iterator[WorkerGroup]:
    """Provide a group without workers; those that still run at the end leave."""
    running = WorkerGroup(setup, name, cluster)
    try:
        yield running
    finally:
        running.close()
