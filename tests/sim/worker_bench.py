"""A test bench for the stores of worker groups: workers with one session each, on simulated time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, TypeVar

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Answer, Create, Delete, Done, Operation
from kiel_groups.group.znodes.worker_contents import ConfigChange
from kiel_groups.metrics import Metrics
from kiel_groups.workers.stores.config_store import ConfigStore
from kiel_groups.workers.stores.source_offset_store import SourceOffsetStore
from kiel_groups.workers.stores.status_store import StatusStore
from kiel_groups.workers.values import Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session, SessionEvent
from tests.fakes import FakeEnsemble, Host, SimulatedProcess, Timeline, fake_client

__all__ = ["LAYOUT", "SimulatedWorker", "WorkerBench"]

LAYOUT = WorkerLayout("g")

_Result = TypeVar("_Result")


class SimulatedWorker:
    """The stores of a worker on an open session, whose znode exists."""

    def __init__(self, process: SimulatedProcess, session: Session, worker_id: str) -> None:
        self.process = process
        self.session = session
        self.worker_id = worker_id
        writer = FencedWriter(session, LAYOUT.worker(worker_id), _catch_up)
        self.configuration = ConfigStore(session, writer, LAYOUT, worker_id, process.runtime)
        self.statuses = StatusStore(session, writer, LAYOUT)
        self.offsets = SourceOffsetStore(session, writer, LAYOUT)

    def lose(self, what: Literal["request", "reply"], path: str) -> None:
        """Lose the next transaction that has this path, or the answer to it."""
        transact = self.session.transact

        async def losing(operations: Iterable[Operation]) -> Answer:
            listed = list(operations)
            if any(operation.path == path for operation in listed):
                self.session.transact = transact  # type: ignore[method-assign]
                self.process.lose(what)
            return await transact(listed)

        self.session.transact = losing  # type: ignore[method-assign]

    async def claim(self, work: Work) -> None:
        """Claim a connector or a task."""
        await self.session.ensure([LAYOUT.connector_owners(work.connector)])
        created = Create(LAYOUT.owner(*work), self.worker_id.encode(), ephemeral=True)
        assert isinstance(await self.session.transact([created]), Done)

    async def release(self, work: Work) -> None:
        """Release a claim."""
        assert isinstance(await self.session.transact([Delete(LAYOUT.owner(*work))]), Done)


class WorkerBench:
    """An ensemble, and workers of the group "g", which have created its folders."""

    def __init__(self, servers: int = 1, seed: int = 1) -> None:
        self.timeline = Timeline(seed)
        self.ensemble = FakeEnsemble(self.timeline, servers)

    def worker(self, worker_id: str = "w1", *, server: int | None = None) -> SimulatedWorker:
        """Start a worker: a process whose session, which may be on one server only, has the worker's znode."""
        process = SimulatedProcess(self.ensemble, worker_id)
        process.only = None if server is None else self.ensemble.servers[server]

        async def start() -> SimulatedWorker:
            session = Session(ZooKeeperConfig(hosts="fake1:2181"), Metrics(), _ignore, process.runtime)
            await session.open()
            await session.ensure(LAYOUT.folders)
            created = Create(LAYOUT.worker(worker_id), ephemeral=True)
            assert isinstance(await session.transact([created]), Done)
            return SimulatedWorker(process, session, worker_id)

        return self._result(process, start())

    def run(self, worker: SimulatedWorker, work: Awaitable[_Result]) -> _Result:
        """Run a call of a worker's store, and return its result."""
        return self._result(worker.process, work)

    def run_all(self, *works: tuple[SimulatedWorker, Callable[[], Awaitable[object]]]) -> list[object]:
        """Run several workers' coroutine functions at the same time, and return their results or errors."""
        tasks = [worker.process.start(_called(work)) for worker, work in works]
        self.timeline.run_until(lambda: all(task.done() for task in tasks), 60.0)
        return [task.exception() or task.result() for task in tasks]

    def _result(self, process: SimulatedProcess, work: Awaitable[_Result]) -> _Result:
        task = process.start(_awaited(work))
        self.timeline.run_until(task.done, 60.0)
        return task.result()

    def write(self, path: str, data: bytes) -> None:
        """Write a znode as an operator does, creating it and its parents where they are missing."""
        client = fake_client(Host(self.ensemble))
        client.start()
        client.ensure_path(path)
        client.set(path, data)
        client.stop()
        client.close()

    def history(self) -> list[ConfigChange]:
        """Return the changes in the history of the configuration, in ascending order."""
        paths = [f"{LAYOUT.history}/{name}" for name in self.znodes(LAYOUT.history)]
        return [ConfigChange.parse(self.ensemble.tree.get(path).data, path) for path in paths]

    def znodes(self, folder: str) -> list[str]:
        """Return the names of the children of a znode, sorted."""
        return sorted(self.ensemble.tree.children(folder))


async def _awaited(work: Awaitable[_Result]) -> _Result:
    return await work


async def _called(work: Callable[[], Awaitable[object]]) -> object:
    return await work()


async def _catch_up() -> None:
    """Do nothing: these workers have no watches before whose events they must not write."""


def _ignore(event: SessionEvent) -> None:
    """Drop the event."""
