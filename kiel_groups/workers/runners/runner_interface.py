"""Define what a runner does, and what it gets: the work, its settings, the stores and the clients."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.connector_interfaces import Connector
from kiel_groups.workers.plugins.plugin_contexts import JsonObject
from kiel_groups.workers.runners.plugin_calls import PluginCalls
from kiel_groups.workers.runners.task_clients import TaskClients
from kiel_groups.workers.runners.work_fence import WorkFence
from kiel_groups.workers.values.work_ids import TaskId, Work

__all__ = ["Runner", "RunnerContext", "RunnerStores", "SourceOffsets", "retrieve"]

#: Pairs of a source partition and its offset.
SourceOffsets = Sequence[tuple[JsonObject, JsonObject]]


class RunnerStores(Protocol):
    """What runners read and write in ZooKeeper. Each write is refused without the claim of the work."""

    async def read_offset(self, connector: str, partition: JsonObject) -> JsonObject | None:
        """Return the stored source offset of a source partition, or None if there is none."""

    async def write_offsets(self, task: TaskId, offsets: SourceOffsets) -> None:
        """
        Store source offsets of a task.

        Raises:
            ClaimLostError: The claim is gone.
            SessionLostError: The session is over.
        """

    async def write_tasks(self, connector: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """
        Store the configurations of a connector's tasks; if they are equal to the stored ones, write nothing.

        Raises:
            ClaimLostError: The claim is gone.
            ConfigError: They cannot be stored.
            UnknownConnectorError: The connector was deleted.
            SessionLostError: The session is over.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext:
    """
    What a runner gets.

    Args:
        work: The connector or the task.
        token: The fencing token of the claim.
        connector_class: The class of the connector.
        config: The settings of the connector, as users have given them.
        settings: The settings of the connector or the task, checked and typed.
        fence: Passed before each delivery and each commit.
        stores: The stores of the worker's session.
        clients: Creates producers and consumers.
        runtime: Clocks and threads.
        started: Called when ``start`` of the connector or the task has returned.
        problem: Called with why the work makes no progress although it has not failed, or with "" if it does again.
    """

    work: Work
    token: int
    connector_class: type[Connector]
    config: Mapping[str, str]
    settings: Settings
    fence: WorkFence
    stores: RunnerStores
    clients: TaskClients
    runtime: Runtime
    started: Callable[[], None]
    problem: Callable[[str], None]


class Runner(ABC):
    """
    Runs a connector or a task once, from ``start`` to ``stop``.

    Args:
        context: What the runner gets.
    """

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.calls = PluginCalls(context.runtime, str(context.work), context.fence)
        self._stop_requested = asyncio.Event()
        #: Why the plugin makes no progress, by what has noticed that.
        self._problems: dict[str, str] = {}
        #: What a source task has delivered, and not stored yet. It is set when ``run`` has returned.
        self.delivered: SourceOffsets = ()

    @property
    def should_stop(self) -> bool:
        """Whether the plugin has to return soon."""
        return self._stop_requested.is_set()

    def request_stop(self) -> None:
        """Have ``run`` end in order: what is delivered is flushed before, and ``stop`` is called."""
        self._stop_requested.set()

    def report(self, source: str, problem: str) -> None:
        """Show in the status why the plugin makes no progress, until the same source reports ``""``."""
        if self.should_stop or self._problems.get(source, "") == problem:
            return
        self._problems[source] = problem
        self.context.problem("; ".join(filter(None, self._problems.values())))

    async def run(self) -> None:
        """
        Run the plugin until a stop is requested. If this is cancelled, nothing more is delivered or committed.

        No method of the plugin runs any more when this ends, also if it is cancelled several times.

        Raises:
            Exception: Any error of the plugin, and of the clients and stores.
        """
        try:
            await self._run_and_stop()
        except GeneratorExit:
            # The event loop was closed, so nothing can be awaited any more.
            raise
        except BaseException:
            await self.calls.ended()
            raise
        await self.calls.ended()

    async def _run_and_stop(self) -> None:
        try:
            await self._run_plugin()
        except GeneratorExit:
            raise
        except BaseException:
            await self._stop_plugin()
            raise
        await self._stop_plugin()

    @abstractmethod
    async def _run_plugin(self) -> None:
        """Call the plugin from its ``start`` on; all but its ``stop``."""

    @abstractmethod
    async def _stop_plugin(self) -> None:
        """Call the plugin's ``stop``, and close the clients."""

    async def until_stop(self, waiting: Coroutine[Any, Any, object]) -> bool:
        """
        Wait for a coroutine, or until a stop is requested, which cancels the coroutine.

        Returns:
            Whether the coroutine has returned.

        Raises:
            Exception: Any error of the coroutine.
        """
        task = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            task.add_done_callback(retrieve)
            task.cancel()
            stop.cancel()

    async def pause(self, seconds: float) -> bool:
        """Wait for a time, or until a stop is requested, and return ``should_stop``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_requested.wait()
        return self.should_stop


def retrieve(task: asyncio.Future[Any]) -> None:
    """Look at the error of a cancelled call: a client that is closed meanwhile ends its calls with one."""
    if not task.cancelled():
        task.exception()
