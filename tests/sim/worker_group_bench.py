"""
A test bench for groups of workers on simulated time: real members, sessions and stores on a fake ensemble.

Only the clients of tasks are fakes: the topics are in memory.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import WorkerInfo, WorkState, WorkStatus
from kiel_groups.members.programs.generic_member import member_on_zookeeper
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.herder import Herder
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.execution.worker_requests import WorkerRequests
from kiel_groups.workers.membership import WorkerContext
from kiel_groups.workers.session import WorkerSession
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from kiel_groups.zookeeper.tasks import ProcessContext
from tests.fakes import FakeEnsemble, Host, SimulatedProcess, Timeline, fake_client
from tests.helpers.contexts import process_context
from tests.helpers.counting_connectors import COUNTING_SOURCE, Counts, FakeClients, plugins, use

__all__ = ["LAYOUT", "WorkerGroupBench", "WorkerProcess"]

LAYOUT = WorkerLayout("g")

_T = TypeVar("_T")

_CONFIG = GroupConfig(
    group="g", client="generic", debounce=DebounceConfig(quiet_ms=50, bound_ms=200, initial_delay_ms=100)
)
_ZOOKEEPER = ZooKeeperConfig(hosts="fake1:2181", session_timeout_ms=6_000)


class WorkerProcess:
    """
    A process with one worker: its sessions, its member, and the requests of its users.

    Args:
        bench: The ensemble, and the time.
        name: The name of the process, and of its host.
        config: The settings of the group.
        zookeeper: The servers, and the session timeout.
        rebalance_timeout_ms: How long the group waits for the worker in a rebalance.
    """

    def __init__(
        self,
        bench: Any,
        name: str,
        config: GroupConfig = _CONFIG,
        zookeeper: ZooKeeperConfig = _ZOOKEEPER,
        rebalance_timeout_ms: int = 30_000,
    ) -> None:
        self.name = name
        self.bench = bench
        self.process = SimulatedProcess(bench.ensemble, name)
        self.metrics = Metrics()
        self.failures: list[KielGroupsError] = []
        runtime = self.process.runtime
        process = process_context(config, zookeeper, metrics=self.metrics, runtime=runtime)
        self.url = f"http://{name}:8083/"
        context = WorkerContext(
            group="g", url=self.url, metrics=self.metrics, runtime=runtime, refusals=process.refusals
        )
        found, clients = WorkerPlugins(plugins(), runtime), self._clients()
        self.herder = self._new_herder(context, found, clients)
        self.requests = WorkerRequests(self.herder, found, clients)
        self.process.call(self._compose, process, rebalance_timeout_ms)
        self.starting = self.process.start(self._start())

    def _compose(self, process: ProcessContext, rebalance_timeout_ms: int) -> None:
        self.session = WorkerSession(
            process, WorkerInfo(url=self.url), self.herder.opened, self.herder.lost, self._failed
        )
        self.member = member_on_zookeeper(process, self.herder.hooks, rebalance_timeout_ms, self._failed)
        self.herder.hooks.member = self.member

    def _clients(self) -> FakeClients:
        clients: FakeClients = self.bench.clients
        return clients

    def _new_herder(self, context: WorkerContext, found: WorkerPlugins, clients: FakeClients) -> Herder:
        return Herder(context, found, clients)

    def _failed(self, error: KielGroupsError) -> None:
        self.failures.append(error)

    async def _start(self) -> None:
        await self.session.start()
        await self.member.start()

    def run(self, work: Coroutine[Any, Any, _T], limit_s: float = 60.0) -> _T:
        """Run a coroutine in this process, and return its result."""
        task = self.process.start(work)
        self.bench.timeline.run_until(task.done, limit_s)
        return task.result()

    async def _close(self) -> None:
        await self.herder.close()
        await self.session.close()

    def close(self) -> None:
        """Stop the worker in order."""
        self.run(self._close())

    def states(self, name: str) -> dict[Work, WorkStatus]:
        """Return the statuses of a connector and its tasks, as this worker reads them."""
        status = self.run(self.requests.status(name))
        found: dict[Work, WorkStatus] = {ConnectorId(name): status.connector}
        return found | {TaskId(name, number): task for number, task in enumerate(status.tasks)}


class WorkerGroupBench:
    """An ensemble, workers of the group "g", and what their connectors have done."""

    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline(seed)
        self.ensemble = FakeEnsemble(self.timeline, 1)
        self.clients = FakeClients()
        self.counts = use(Counts())
        self.workers: dict[str, WorkerProcess] = {}

    def start(self, *names: str) -> list[WorkerProcess]:
        """Start workers, and wait until each has its first assignment."""
        started = [WorkerProcess(self, name) for name in names]
        self.workers |= {worker.name: worker for worker in started}
        for worker in started:
            self.timeline.run_until(worker.starting.done)
            worker.starting.result()
        return started

    def create(self, name: str, **config: str) -> None:
        """Create a connector that counts, on the first worker that runs."""
        settings = {"connector.class": COUNTING_SOURCE, **{key.replace("_", "."): text for key, text in config.items()}}
        worker = next(worker for worker in self.workers.values() if worker.process.runs)
        worker.run(worker.requests.create(name, settings))

    def owner(self, work: Work) -> str | None:
        """Return the worker whose session owns work, or None."""
        node = self.ensemble.tree.znodes.get(LAYOUT.owner(*work))
        if node is None:
            return None
        for worker in self.workers.values():
            role = worker.herder._role
            if role is not None and role.worker_id.encode() == node.data:
                return worker.name
        return "?"

    def owned(self, *works: Work) -> dict[Work, str | None]:
        return {work: self.owner(work) for work in works}

    def until_running(self, name: str, tasks: int, limit_s: float = 60.0) -> None:
        """Wait until a connector and all of its tasks run."""
        works: list[Work] = [ConnectorId(name), *(TaskId(name, number) for number in range(tasks))]
        self.timeline.run_until(lambda: all(self.state(work) == WorkState.RUNNING for work in works), limit_s)

    def state(self, work: Work) -> WorkState | None:
        """Return what the owner of work has reported."""
        for worker in self.workers.values():
            supervisor = worker.herder.running(work)
            if worker.process.runs and supervisor is not None and supervisor.status is not None:
                return supervisor.status.state
        return None

    def delivered(self, topic: str, task: str) -> list[int]:
        """Return what a task has written to a topic."""
        return [int(value) for key, value in self.clients.topics[topic] if key == task.encode()]

    def until_delivered(self, task: str, last: int, topic: str = "t", limit_s: float = 60.0) -> None:
        """Wait until a task has written a number."""
        self.timeline.run_until(lambda: last in self.delivered(topic, task), limit_s)

    def write(self, path: str, data: bytes) -> None:
        """Write a znode as an operator does."""
        client = fake_client(Host(self.ensemble))
        client.start()
        client.set(path, data)
        client.stop()
        client.close()

    def operator_deletes(self, path: str) -> None:
        """Delete a znode as an operator does."""
        client = fake_client(Host(self.ensemble))
        client.start()
        client.delete(path)
        client.stop()
        client.close()
