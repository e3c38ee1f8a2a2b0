"""The connectors of simulated groups of workers: they report what they do, and misbehave as the scenario says."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)

if TYPE_CHECKING:
    from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["CONNECTORS", "MISBEHAVES", "Recording", "Run", "play_in"]

#: The classes of sources by whether their short methods run on threads.
CONNECTORS = {False: f"{__name__}:RecordingConnector", True: f"{__name__}:ThreadedConnector"}

#: The error of connectors and tasks that misbehave.
MISBEHAVES = "misbehaves as the scenario says"

#: The records of one poll, and the pause before them, in seconds.
RECORDS, POLL_S = 3, 0.4

#: The present world, which is garbage after its run.
_world: weakref.ref[WorkerWorld]


def play_in(world: WorkerWorld) -> None:
    """Have connectors that are created from now on report to this world."""
    global _world
    _world = weakref.ref(world)


class Run:
    """
    One run of a connector or a task: from the call of ``start`` to the return of ``stop``.

    ``token`` is 0 for a connector. ``revision`` is that of the configuration that it was started with.
    """

    def __init__(self, work: str, token: int, revision: int) -> None:
        world = _world()
        assert world is not None
        self.world, self.worker = world, world.present
        self.work, self.token, self.revision = work, token, revision
        #: The last number that was delivered.
        self.delivered = 0
        self.world.checker.starting(self)

    async def pause(self, most_s: float) -> None:
        if most_s:
            await asyncio.sleep(self.world.timeline.random.uniform(0.0, most_s))

    def check_fault(self) -> None:
        """Raise an error if the scenario says so."""
        if self.work in self.world.raising:
            raise ValueError(f"{self.work} {MISBEHAVES}")

    async def stop(self) -> None:
        """Stop after some time. A run that hangs does not react to its cancellation, as a thread."""
        hanging = self.world.hanging.get(self.work)
        while hanging is not None and not hanging.is_set():
            try:
                await hanging.wait(self)
            except asyncio.CancelledError:
                continue
        try:
            await self.pause(self.world.scenario.stop_s)
        finally:
            self.world.checker.stopping(self)


class RecordingTask(SourceTask):
    """Counts from its stored offset up, a few records with each poll."""

    _run: Run | None = None

    async def start(self, context: SourceTaskContext, settings: Settings) -> None:
        work = f"{context.connector}-{context.task}"
        run = self._run = Run(work, context.fencing_token, settings["rev"])
        self._partition = {"task": work}
        await run.pause(run.world.scenario.start_s)
        stored = await context.offset(self._partition)
        self._next = 1 if stored is None else stored["next"]
        self._context = context
        run.world.checker.began(run, self._next)

    async def poll(self) -> Sequence[SourceRecord]:
        run = self._run
        assert run is not None
        run.world.checker.polling(run)
        if await self._context.pause(POLL_S):
            return ()
        run.check_fault()
        numbers = range(self._next, self._next + RECORDS)
        self._next = numbers[-1] + 1
        key = b"%s %d" % (run.work.encode(), run.token)
        return [SourceRecord(self._partition, {"next": n + 1}, "t", b"%d" % n, key) for n in numbers]

    async def stop(self) -> None:
        if self._run is not None:
            await self._run.stop()


class Recording:
    """What recording sources and sinks have in common: the world says how many tasks they have."""

    version: ClassVar[str] = "1"
    _run: Run | None = None

    async def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context, self._revision = context, settings["rev"]
        run = self._run = Run(context.name, 0, self._revision)
        run.world.contexts[context.name] = (run.worker, context)
        await run.pause(run.world.scenario.start_s)

    async def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return self._configs(most)

    def _configs(self, most: int) -> Sequence[Mapping[str, str]]:
        assert self._run is not None
        self._run.check_fault()
        return self._run.world.task_configs(self._context.name, self._revision, most)

    async def stop(self) -> None:
        if self._run is not None:
            await self._run.stop()


class RecordingConnector(Recording, SourceConnector):
    """Has as many tasks as the world says, but at most ``tasks.max``."""

    task_class: ClassVar[type[SourceTask]] = RecordingTask
    config = ConfigDefinition(ConfigKey("rev", "int", 0))


class ThreadedTask(RecordingTask):
    """Is flushed on a thread."""

    def flush(self) -> Any:
        return None


class ThreadedConnector(RecordingConnector):
    """Configures its tasks on a thread."""

    task_class = ThreadedTask

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:  # type: ignore[override]
        return self._configs(most)
