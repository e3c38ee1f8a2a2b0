"""The contexts that connectors and tasks get from their runners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kiel_groups.errors import KielGroupsError, TaskStoppedError
from kiel_groups.workers.plugins.plugin_contexts import JsonObject
from kiel_groups.workers.runners.runner_interface import Runner
from kiel_groups.workers.runners.task_clients import SourceProducer
from kiel_groups.workers.values.work_ids import TaskId

__all__ = ["RunnerConnectorContext", "SinkRunnerContext", "SourceRunnerContext"]

_T = TypeVar("_T")


class RunnerConnectorContext:
    """
    The worker as a connector sees it; see ``ConnectorContext``.

    Args:
        name: The name of the connector.
        config: Its settings, as texts.
        reconfigure: Called on the event loop when the connector wants its tasks to be configured again.
        fail: Called on the event loop with an error of the connector.
    """

    def __init__(
        self,
        name: str,
        config: Mapping[str, str],
        reconfigure: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.config = config
        self._reconfigure = reconfigure
        self._fail = fail
        self._loop = asyncio.get_running_loop()

    def request_task_reconfiguration(self) -> None:
        self._on_loop(self._reconfigure)

    def raise_error(self, error: BaseException) -> None:
        self._on_loop(self._fail, error)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        # The worker may have ended, and its loop with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class _TaskRunnerContext:
    """What the contexts of both kinds of tasks have in common; see ``TaskContext``."""

    def __init__(self, runner: Runner) -> None:
        work = runner.context.work
        assert isinstance(work, TaskId)
        self.connector, self.task = work
        self.fencing_token = runner.context.token
        self._runner = runner
        self._loop = asyncio.get_running_loop()

    @property
    def should_stop(self) -> bool:
        return self._runner.should_stop

    async def pause(self, seconds: float) -> bool:
        return await self._runner.pause(seconds)

    def report_problem(self, problem: str) -> None:
        # The worker may have ended, and its loop with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._runner.report, "task", problem)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            coroutine.close()
            raise KielGroupsError("context.run(): called on the event loop; await the coroutine instead")
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            coroutine.close()
            raise TaskStoppedError("the worker has ended") from None


class SourceRunnerContext(_TaskRunnerContext):
    """The worker as a source task sees it; see ``SourceTaskContext``."""

    async def offset(self, partition: JsonObject) -> JsonObject | None:
        return await self._runner.context.stores.read_offset(self.connector, partition)


class SinkRunnerContext(_TaskRunnerContext):
    """
    The worker as a sink task sees it; see ``SinkTaskContext``.

    Args:
        runner: The runner of the task.
        producer: Returns the producer of the task, which is created at the first call.
    """

    def __init__(self, runner: Runner, producer: Callable[[], SourceProducer]) -> None:
        super().__init__(runner)
        self._producer = producer

    async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        await self._runner.context.fence.wait_open()
        await self._producer().produce(topic, value, key)
