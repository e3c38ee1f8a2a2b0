"""
Workers of one group whose rebalances the test makes, on simulated time: no coordinator, no store, no connectors.

A rebalance runs the hooks of each worker in the order of a real member: prepare, protocols, perform_assignment of the
leader, complete.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.workers.membership import WorkerContext, WorkerHooks
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, Work, WorkerAssignment
from tests.fakes import FakeEnsemble, SimulatedProcess, Timeline

__all__ = ["Assigned", "FakeWorker", "FakeWorkerGroup", "Lost", "Revoked", "config_of", "url_of"]

_T = TypeVar("_T")


class Assigned(NamedTuple):
    """A call of ``on_assigned``."""

    worker: str
    assignment: WorkerAssignment
    generation: int


class Revoked(NamedTuple):
    """A call of ``on_revoked``."""

    worker: str


class Lost(NamedTuple):
    """A call of ``on_lost``."""

    worker: str


def config_of(offset: int, **tasks: int | None) -> ConfigSnapshot:
    """Return a configuration with connectors of these names and numbers of tasks; None is no task set."""
    entries = {name: ConnectorEntry({}, tasks=None if n is None else ({},) * n) for name, n in tasks.items()}
    return ConfigSnapshot(offset, entries)


def url_of(worker: str) -> str:
    return f"http://{worker}:8083/"


class FakeWorker:
    """
    A worker: its hooks, and the member and the listener that these hooks use.

    ``views`` are the next results of reads of the configuration: snapshots, errors, or None for a read that hangs.
    After them, reads return ``stuck_at`` if it is set, and otherwise the present configuration of the group.
    """

    def __init__(self, group: FakeWorkerGroup, name: str, allocator: str) -> None:
        self.group = group
        self.name = name
        self.metrics = Metrics()
        self.views: deque[ConfigSnapshot | Exception | None] = deque()
        self.stuck_at: ConfigSnapshot | None = None
        #: Of each read of the configuration, whether it had to be current.
        self.reads: list[bool] = []
        context = WorkerContext(group="g", url=url_of(name), metrics=self.metrics, runtime=group.process.runtime)
        self.hooks = WorkerHooks(context, self, allocator)
        self.hooks.member = self
        #: The member: whether it leads and has to join again, its gate, and its hook that runs.
        self.leads = False
        self.need_rejoin = True
        self.gate: GenerationGate | None = None
        self.completing: asyncio.Task[None] | None = None
        #: The seconds of simulated time at which the hooks have asked for a rejoin.
        self.rejoins_s: list[float] = []
        #: The seconds of simulated time at which the worker has left the group.
        self.leaves_s: list[float] = []
        #: Called within ``on_assigned`` and ``on_revoked``.
        self.on_call: Callable[[], Awaitable[object]] | None = None

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        self.reads.append(current)
        view = self.views.popleft() if self.views else (self.stuck_at or self.group.config)
        if view is None:
            await asyncio.Event().wait()
        if isinstance(view, Exception):
            raise view
        assert view is not None
        return view

    def request_rejoin(self) -> None:
        self.rejoins_s.append(self.group.timeline.now_s)
        self.need_rejoin = True

    def leave(self) -> None:
        self.leaves_s.append(self.group.timeline.now_s)
        gate, task = self.gate, self.completing
        assert gate is not None, "only a worker with an assignment leaves"
        gate.shut()
        self.gate = self.completing = None
        if task is not None:
            task.cancel()
        self.hooks.lost(gate)

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        self.group.calls.append(Assigned(self.name, assignment, generation))
        await self._called()

    async def on_revoked(self) -> None:
        self.group.calls.append(Revoked(self.name))
        await self._called()

    def on_lost(self) -> None:
        self.group.calls.append(Lost(self.name))

    async def _called(self) -> None:
        if self.on_call is not None:
            await self.on_call()

    @property
    def assigned(self) -> list[WorkerAssignment]:
        """The assignments of which the listener was notified."""
        return [call.assignment for call in self.group.calls if isinstance(call, Assigned) and call.worker == self.name]

    def gauge(self, name: str) -> float:
        """Return the value of a gauge."""
        return {metric: value for metric, _, value in self.metrics.samples()}[name]


class FakeWorkerGroup:
    """The workers, the configuration, and all calls of the listeners in their order."""

    def __init__(self, *workers: str, allocator: str = "round_robin", seed: int = 1) -> None:
        self.timeline = Timeline(seed)
        self.process = SimulatedProcess(FakeEnsemble(self.timeline, 1))
        self.config = config_of(1)
        self.generation = 0
        self.calls: list[Assigned | Revoked | Lost] = []
        #: What each member has offered at its last join.
        self.offered: dict[str, list[GroupProtocol]] = {}
        #: Changed by a test that sends other bytes than the hooks have returned.
        self.tamper: Callable[[dict[str, bytes]], Mapping[str, bytes]] = lambda metadata: metadata
        self.workers = {name: FakeWorker(self, name, allocator) for name in workers}

    def __getitem__(self, name: str) -> FakeWorker:
        return self.workers[name]

    def add(self, name: str, allocator: str = "round_robin") -> FakeWorker:
        """Add a worker, which joins with the next rebalance. A former one of that name has died."""
        self.workers[name] = worker = FakeWorker(self, name, allocator)
        return worker

    def run(self, work: Coroutine[Any, Any, _T], limit_s: float = 60.0) -> _T:
        """Run a coroutine on simulated time, and return its result."""
        task = self.process.start(work)
        self.timeline.run_until(task.done, limit_s)
        return task.result()

    def rebalance(self, leader: str = "") -> None:
        """Have all workers join; the first by name leads unless the test says so. Run what is ready after it."""
        self.run(self._rebalance(leader or min(self.workers)))
        self.timeline.run_for(0.0)
        self.check()

    async def _rebalance(self, leader: str) -> None:
        await asyncio.gather(*(self._prepare(worker) for worker in self.workers.values()))
        for name, worker in self.workers.items():
            worker.leads = name == leader
            self.offered[name] = list(await worker.hooks.protocols())
        names = [[protocol.name for protocol in self.offered[worker]] for worker in self.workers]
        chosen = next(name for name in names[0] if all(name in others for others in names))
        metadata = {worker: dict(self.offered[worker])[chosen] for worker in self.workers}
        joined = JoinedGroup(chosen, leader, self.tamper(metadata))
        assignments = await self.workers[leader].hooks.perform_assignment(joined)
        assert assignments.keys() == self.workers.keys()
        self.generation += 1
        for name, worker in self.workers.items():
            token = GenerationToken(self.generation, name)
            worker.gate = GenerationGate(token, 10_000, self.timeline.now_s)
            worker.need_rejoin = False
            its = joined if name == leader else JoinedGroup(chosen, leader, {})
            worker.completing = self.process.loop.create_task(
                worker.hooks.complete(worker.gate, its, assignments[name])
            )

    async def _prepare(self, worker: FakeWorker) -> None:
        gate = worker.gate
        if gate is None:
            return
        await _cancelled(worker)
        await worker.hooks.prepare(gate)
        gate.shut()
        worker.gate = None

    def leave(self, name: str) -> None:
        """Have a worker give its work back and leave; the others join with the next rebalance."""
        self.run(self._prepare(self.workers.pop(name)))

    def lose(self, name: str) -> None:
        """End the membership of a worker at once; it stays a worker that joins with the next rebalance."""
        self.run(self._lose(self.workers[name]))

    async def _lose(self, worker: FakeWorker) -> None:
        if worker.gate is not None:
            await _cancelled(worker)
            worker.gate.shut()
            worker.hooks.lost(worker.gate)
        worker.gate, worker.need_rejoin = None, True

    def pass_s(self, seconds: float) -> None:
        """Advance the time."""
        self.timeline.run_for(seconds)
        self.check()

    def check(self) -> None:
        """Raise the error of a ``complete`` that has failed."""
        for worker in self.workers.values():
            task = worker.completing
            if task is not None and task.done() and not task.cancelled():
                task.result()

    def owners(self) -> dict[Work, str]:
        """Return the worker that has each piece of work, by the present assignments."""
        found: dict[Work, str] = {}
        for name, worker in self.workers.items():
            assignment = worker.hooks.assignment
            for work in assignment.works if assignment else ():
                assert work not in found, f"{work} is assigned twice"
                found[work] = name
        return found


async def _cancelled(worker: FakeWorker) -> None:
    task, worker.completing = worker.completing, None
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task})
