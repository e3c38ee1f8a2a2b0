"""One simulated group of workers with its environment: servers, workers, their users, an operator, and the checker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.worker_contents import WorkState
from kiel_groups.workers.plugins.interfaces import ConnectorContext
from tests.fakes import SimulatedProcess
from tests.sim.garbage_collection import deferred_collection
from tests.sim.programs.member_world import MemberWorld
from tests.sim.worker_groups.recording_connectors import CONNECTORS, Run, play_in
from tests.sim.worker_groups.recording_sinks import SINKS
from tests.sim.worker_groups.sim_worker import SimWorker
from tests.sim.worker_groups.sink_checker import SinkChecker
from tests.sim.worker_groups.sink_groups import TOPIC, SinkCluster
from tests.sim.worker_groups.worker_checker import WorkerChecker
from tests.sim.worker_groups.worker_scenario import WorkerScenario, make_worker_scenario

__all__ = ["Hang", "WorkerWorld", "workers_at_rest"]

#: The interval, in seconds, at which users restart what has failed, after all faults have ended.
RESTART_S = 3.0
#: The settings of a group at rest.
AT_REST: dict[str, Any] = {
    "members": 2,
    "connectors": 1,
    "sinks": (),
    "partitions": 2,
    "call_s": 0.05,
    "commit_s": 5.0,
    "losses_s": math.inf,
    "allocator": "round_robin",
    "start_s": 0.0,
    "stop_s": 0.0,
    "is_threaded": False,
    "rebalance_timeout_ms": 15_000,
    "reconcile_interval_ms": 30_000,
    "sync_limit": 4,
    "events": (),
}


class Hang:
    """Has ``stop`` of some work not return until the fault ends."""

    def __init__(self) -> None:
        self._is_over = False
        self._waiting: list[tuple[SimulatedProcess, asyncio.Event]] = []

    def is_set(self) -> bool:
        return self._is_over

    async def wait(self, run: Run) -> None:
        event = asyncio.Event()
        self._waiting.append((run.worker.process, event))
        await event.wait()

    def end(self) -> None:
        self._is_over = True
        for process, event in self._waiting:
            process.run_on_loop(process.call, event.set)


class WorkerWorld(MemberWorld):
    """The group of one scenario, with its environment."""

    scenario: WorkerScenario
    checker: WorkerChecker
    consumers: list[SimWorker]  # type: ignore[assignment]

    def __init__(self, scenario: WorkerScenario) -> None:
        super().__init__(scenario)
        self.workers_layout = WorkerLayout(self.group)
        self.consumers = []
        #: The connectors and tasks that raise an error, and those whose ``stop`` hangs.
        self.raising: set[str] = set()
        self.hanging: dict[str, Hang] = {}
        #: When the last hang of some work has ended.
        self.hung_until_s: dict[str, float] = {}
        #: How many tasks connectors want, and the contexts of their latest runs.
        self.wanted: dict[str, int] = {}
        self.contexts: dict[str, tuple[SimWorker, ConnectorContext]] = {}
        self.revision = 0
        #: Whether the last change is under way.
        self.is_changing = False
        self.checker, self.sinks = WorkerChecker(self), SinkChecker(self)
        self.cluster = SinkCluster(self, scenario.partitions, scenario.losses_s)
        self.ensemble.observers.append(self.checker.committed)
        play_in(self)
        for _ in range(scenario.members):
            self.join()
        for number in range(scenario.connectors):
            self.running[0].ask(self._first_connector(f"c{number + 1}"))

    def _first_connector(self, name: str) -> Any:
        async def create() -> None:
            worker = self.running[0]
            await worker.starting
            await worker.requests.create(name, self.config(name, 2))

        return create

    def config(self, connector: str, tasks_max: int, *, restarts: bool = True) -> dict[str, str]:
        """Return new settings of a connector."""
        self.revision += 1
        is_sink = connector in self.scenario.sinks
        return {
            "connector.class": (SINKS if is_sink else CONNECTORS)[self.scenario.is_threaded],
            **({"topics": TOPIC} if is_sink else {}),
            "tasks.max": str(tasks_max),
            "rev": str(self.revision),
            "restart.policy": "backoff" if restarts else "none",
            "restart.backoff.max.ms": "3000",
            "task.stop.timeout.ms": "2000",
        }

    def task_configs(self, connector: str, revision: int, most: int) -> Sequence[Mapping[str, str]]:
        """Return the settings of the tasks that a connector wants."""
        count = min(most, self.wanted.get(connector, 2))
        topics = {"topics": TOPIC} if connector in self.scenario.sinks else {}
        return [{"rev": str(revision), "number": str(number)} | topics for number in range(count)]

    def want(self, connector: str, tasks: int) -> None:
        """Have a connector want another number of tasks; its present run is notified."""
        self.wanted[connector] = tasks
        if connector in self.contexts:
            worker, context = self.contexts[connector]
            worker.process.run_on_loop(worker.process.call, context.request_task_reconfiguration)

    def join(self) -> SimWorker:
        """Start a worker."""
        worker = SimWorker(self, f"w{len(self.consumers) + 1}")
        self.consumers.append(worker)
        return worker

    def replace(self, worker: SimWorker) -> None:
        """Start another process in the place of a worker that has failed."""
        if worker.is_running:
            worker.kill()
            self.join()

    @property
    def running(self) -> list[SimWorker]:
        return [worker for worker in self.consumers if worker.is_running]

    @property
    def present(self) -> SimWorker:
        """The worker whose code runs."""
        process = self.timeline.running
        return next(worker for worker in self.consumers if worker.process is process)

    def heal(self) -> None:
        """End all faults."""
        self.raising.clear()
        for work, hang in self.hanging.items():
            hang.end()
            self.hung_until_s[work] = self.timeline.now_s
        self.hanging.clear()
        self.cluster.heal()
        self.heal_environment()
        self._empty_garbled_config()

    def _empty_garbled_config(self) -> None:
        """Have the operator empty the configuration offset if it has garbage, again if the connection has lost that."""
        config = self.ensemble.tree.znodes.get(self.workers_layout.config)
        if config is not None and config.data and not config.data.startswith(b"{"):
            self.operator.set_async(self.workers_layout.config, b"")
            self.timeline.after(1.0, self._empty_garbled_config)

    def create_last(self) -> None:
        """Have a user create or change one more connector, so that garbage that was written before is noticed."""
        self.is_changing = True
        if not self.running:
            self.timeline.after(1.0, self.create_last)
            return
        worker = self.running[0]

        async def create() -> None:
            try:
                await worker.starting
                await worker.requests.put_config("last", self.config("last", 1))
                self.is_changing = False
            except KielGroupsError:
                # The worker may have failed for good, and another one may have taken its place.
                self.timeline.after(1.0, self.create_last)

        worker.ask(create)

    def settle(self, limit_s: float = 60.0) -> None:
        """Advance the time until all work runs as the configuration says; users restart what has failed."""
        next_s = self.timeline.now_s

        def unsettled() -> str:
            nonlocal next_s
            if self.timeline.now_s >= next_s:
                next_s = self.timeline.now_s + RESTART_S
                self._restart_failed()
            return self.checker.unsettled()

        self.wait(unsettled, limit_s)

    def _restart_failed(self) -> None:
        for worker in self.running:
            for work, supervisor in list(worker.herder._running.items()):
                if supervisor.status is None or supervisor.status.state != WorkState.FAILED:
                    continue
                worker.ask(lambda worker=worker, work=work: worker.requests.restart(work))  # type: ignore[misc]


@contextmanager
def workers_at_rest(**changes: Any) -> Iterator[WorkerWorld]:
    """
    Provide a settled group without faults or other events, and kill its processes at the end of the block.

    Args:
        changes: Other values of fields of ``WorkerScenario``.
    """
    with deferred_collection() as killed:
        world = WorkerWorld(replace(make_worker_scenario(1), **{**AT_REST, **changes}))
        try:
            world.run_for(1.0)
            world.settle()
            yield world
        finally:
            for worker in world.consumers:
                worker.kill()
                killed.append(worker.process)
