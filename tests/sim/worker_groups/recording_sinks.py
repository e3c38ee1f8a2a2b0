"""The sinks of simulated groups of workers: they report what they get, and misbehave as the scenario says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import SinkConnector, SinkTask, SinkTaskContext
from tests.sim.worker_groups.recording_connectors import Recording, Run
from tests.sim.worker_groups.sink_checker import SinkCalls

__all__ = ["SINKS"]

#: The classes by whether the methods of tasks run on threads.
SINKS = {False: f"{__name__}:RecordingSink", True: f"{__name__}:ThreadedSink"}

#: The longest time of a slow call, in seconds, and how many calls of a slow sink take so long.
SLOW_S, SLOW_PORTION = 25.0, 0.15
#: How many calls of a task that raises errors do so.
RAISING_PORTION = 0.5


class RecordingSinkTask(SinkTask):
    """Keeps records until they are flushed."""

    _run: Run | None = None
    _calls: SinkCalls

    async def start(self, context: SinkTaskContext, settings: Settings) -> None:
        run = self._run = Run(f"{context.connector}-{context.task}", context.fencing_token, settings["rev"])
        self._calls = SinkCalls(run)
        with self._calls.calling("start"):
            await run.pause(run.world.scenario.start_s)

    async def open(self, partitions: Collection[TopicPartition]) -> None:
        with self._calls.calling("open"):
            self._calls.opened(partitions)
            await self._work()

    async def put(self, records: Sequence[Record]) -> None:
        with self._calls.calling("put"):
            self._calls.put(records)
            await self._work()

    async def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self._calls.calling("flush"):
            kept = self._calls.flushing(offsets)
            await self._work()
            self._calls.wrote(kept)

    async def close(self, partitions: Collection[TopicPartition]) -> None:
        with self._calls.calling("close"):
            self._calls.closed(partitions)
            await self._work()

    async def stop(self) -> None:
        if self._run is not None:
            with self._calls.calling("stop"):
                await self._run.stop()

    async def _work(self) -> None:
        """Work for a while, and raise an error if the scenario says so."""
        assert self._run is not None
        cluster, random = self._run.world.cluster, self._run.world.timeline.random
        is_slow = cluster.is_slow and random.random() < SLOW_PORTION
        await self._run.pause(SLOW_S if is_slow else self._run.world.scenario.call_s)
        self._check_fault()

    def _check_fault(self) -> None:
        assert self._run is not None
        if self._run.world.timeline.random.random() < RAISING_PORTION:
            self._run.check_fault()


class RecordingSink(Recording, SinkConnector):
    """Has as many tasks as the world says, but at most ``tasks.max``."""

    task_class: ClassVar[type[SinkTask]] = RecordingSinkTask
    config = ConfigDefinition(ConfigKey("rev", "int", 0))


class ThreadedSinkTask(RecordingSinkTask):
    """Opens, puts and flushes on a thread."""

    def open(self, partitions: Collection[TopicPartition]) -> None:  # type: ignore[override]
        with self._calls.calling("open"):
            self._calls.opened(partitions)
            self._check_fault()

    def put(self, records: Sequence[Record]) -> None:  # type: ignore[override]
        with self._calls.calling("put"):
            self._calls.put(records)
            self._check_fault()

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:  # type: ignore[override]
        with self._calls.calling("flush"):
            kept = self._calls.flushing(offsets)
            self._check_fault()
            self._calls.wrote(kept)


class ThreadedSink(RecordingSink):
    """Has tasks with plain functions."""

    task_class: ClassVar[type[SinkTask]] = ThreadedSinkTask
