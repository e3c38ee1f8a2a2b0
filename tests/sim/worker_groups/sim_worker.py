"""One worker of a simulated group: the product's herder, member, session and requests in a simulated process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kiel_groups.errors import KielGroupsError
from kiel_groups.workers.execution.herder import Herder
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.runners.runner_interface import sink_group
from kiel_groups.workers.values import WorkerAssignment
from tests.helpers.counting_connectors import FakeClients, FakeProducer
from tests.sim.worker_group_bench import WorkerProcess
from tests.sim.worker_groups.sink_consumer import SinkConsumerProcess

if TYPE_CHECKING:
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["SimWorker"]

#: The longest time that a broker takes to store a record, in seconds.
LONGEST_DELIVERY_S = 0.05
#: The pause, in seconds, before the process of a worker that has failed is started again.
AGAIN_S = 1.0


class _Producer(FakeProducer):
    """Reports each record to the checker, when it is sent and when it is stored."""

    def __init__(self, clients: _Clients) -> None:
        super().__init__(clients)
        self._checker = clients.worker.world.checker

    def produce(self, topic: str, message: Any, key: Any = None, partition: int | None = None) -> asyncio.Future[None]:
        work, token = key.decode().split()
        self._checker.delivering(work, int(token), int(message))
        return super().produce(topic, message, key, partition)

    async def _send(self, topic: str, message: Any, key: Any) -> None:
        await self._clients.delay()
        self._checker.delivered(key.decode().split()[0], int(message))


class _Clients(FakeClients):
    def __init__(self, worker: SimWorker) -> None:
        super().__init__()
        self.worker = worker

    async def delay(self) -> None:
        await asyncio.sleep(self.worker.world.timeline.random.uniform(0.0, LONGEST_DELIVERY_S))

    def producer(self) -> FakeProducer:
        return _Producer(self)

    def consumer(self, group: str, listener: object, on_bad_record: Any) -> SinkConsumerProcess:
        cluster = self.worker.world.cluster
        return SinkConsumerProcess(cluster, cluster.group(group.removeprefix(sink_group(""))), self.worker, listener)


class _Herder(Herder):
    """Notes the offset of each assignment."""

    assigned_offset = 0

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        if not assignment.is_failed:
            self.assigned_offset = assignment.offset
        await super().on_assigned(assignment, generation)


class SimWorker(WorkerProcess):
    """A process with one worker. If the worker fails for good, another process takes its place."""

    herder: _Herder

    def __init__(self, world: WorkerWorld, name: str) -> None:
        self.world = world
        self.closing = self.closed = False
        self.failure: KielGroupsError | None = None
        super().__init__(world, name, world.group_config, world.zookeeper_config, world.scenario.rebalance_timeout_ms)

    def _clients(self) -> FakeClients:
        return _Clients(self)

    def _new_herder(self, context: Any, found: WorkerPlugins, clients: FakeClients) -> Herder:
        return _Herder(context, found, clients, self.world.scenario.allocator)

    async def _start(self) -> None:
        try:
            await super()._start()
        except KielGroupsError as error:
            self._failed(error)

    def _failed(self, error: KielGroupsError) -> None:
        if self.failure is None and self.is_running:
            self.failure = error
            self.world.checker.failed(self, error)
            self.world.timeline.after(AGAIN_S, self.world.replace, self)

    # Used by operations, and by the checker

    @property
    def is_running(self) -> bool:
        return not (self.process.killed or self.closing)

    @property
    def znode_id(self) -> str:
        """The id in the member znode, also before the first join is answered; "" if there is no session."""
        session = getattr(self.member._coordination, "_session", None)
        return "" if session is None or session.ended else str(session.member_id)

    @property
    def worker_id(self) -> str:
        """The id in the worker's znode; "" if there is no session."""
        role = self.herder._role
        return "" if role is None or role.is_over else role.worker_id

    @property
    def session_id(self) -> int:
        """The id of the worker's session; 0 if there is none."""
        role = self.herder._role
        return 0 if role is None or role.is_over else role.session.id

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        self.process.kill()
        self.world.checker.killed(self)

    def request_rejoin(self) -> None:
        self.process.call(self.member.request_rejoin)

    def ask(self, request: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Have a user ask something of the worker; an error is the answer."""
        self.process.start(self._ask(request))

    async def _ask(self, request: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        with suppress(KielGroupsError):
            await request()

    def leave(self) -> None:
        """Stop the worker in order."""
        if not self.closing:
            self.closing = True
            self.process.start(self._leave())

    async def _leave(self) -> None:
        self.starting.cancel()
        await asyncio.wait({self.starting})
        await self._close()
        self.closed = True
        self.world.checker.closed(self)
