"""Connectors for tests of workers: their tasks count, write down what happens to them, and misbehave as a test says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from kiel_groups.model import Record, TopicPartition
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SinkConnector,
    SinkTask,
    SinkTaskContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry

__all__ = ["COUNTING_SINK", "COUNTING_SOURCE", "Call", "Counts", "FakeClients", "FakeProducer", "plugins", "use"]

COUNTING_SOURCE = f"{__name__}:CountingSourceConnector"
COUNTING_SINK = f"{__name__}:CountingSinkConnector"


def plugins() -> PluginRegistry:
    """Return a registry without installed connectors: these are named by their modules."""
    return PluginRegistry(())


class Call(NamedTuple):
    """A call of a connector or a task: its method, the work, and the fencing token; 0 for a connector."""

    method: str
    work: str
    token: int = 0


@dataclass
class Counts:
    """
    What the connectors of one test have done, and how they misbehave.

    ``hooks`` are called within a method of a task, by ``(method, work)`` or by the method alone: they may raise, and
    may return something to await.
    """

    calls: list[Call] = field(default_factory=list)
    hooks: dict[str | tuple[str, str], Callable[[], Any]] = field(default_factory=dict)
    #: What a connector returns from ``task_configs`` in place of its settings, by its name.
    task_configs: dict[str, Any] = field(default_factory=dict)
    connectors: dict[str, ConnectorContext] = field(default_factory=dict)
    contexts: dict[str, SourceTaskContext | SinkTaskContext] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    put: list[Record] = field(default_factory=list)
    flushed: list[dict[TopicPartition, int]] = field(default_factory=list)

    async def note(self, method: str, work: str, token: int = 0) -> None:
        self.calls.append(Call(method, work, token))
        hook = self.hooks.get((method, work)) or self.hooks.get(method)
        if hook is not None:
            waiting = hook()
            if waiting is not None:
                await waiting

    def methods(self, work: str) -> list[str]:
        """Return the methods that were called on a connector or a task, without its polls."""
        return [call.method for call in self.calls if call.work == work and call.method not in {"poll", "flush"}]

    def count(self, method: str, work: str) -> int:
        """Return how often a method of a connector or a task was called."""
        return sum(call.method == method and call.work == work for call in self.calls)


#: The counts of the present test.
present = Counts()


def use(counts: Counts) -> Counts:
    """Have the connectors write down what they do there."""
    global present
    present = counts
    return counts


class CountingSourceTask(SourceTask):
    """Counts from its stored offset up, ten records with each poll, to ``limit``."""

    async def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._counts = present
        self._work = f"{context.connector}-{context.task}"
        self._context = context
        self._counts.contexts[self._work], self._counts.settings[self._work] = context, settings
        self._partition = {"task": self._work}
        await self._note("start")
        stored = await context.offset(self._partition)
        self._next = 1 if stored is None else stored["next"]
        self._limit, self._topic = settings["limit"], settings["topic"]

    async def _note(self, method: str) -> None:
        await self._counts.note(method, self._work, self._context.fencing_token)

    async def poll(self) -> Sequence[SourceRecord]:
        await self._note("poll")
        numbers = range(self._next, min(self._next + 10, self._limit + 1))
        if not numbers:
            await self._context.pause(0.5)
            return ()
        await self._context.pause(0.05)
        self._next = numbers[-1] + 1
        return [
            SourceRecord(self._partition, {"next": n + 1}, self._topic, b"%d" % n, self._work.encode()) for n in numbers
        ]

    async def flush(self) -> None:
        await self._note("flush")

    async def stop(self) -> None:
        await self._note("stop")


class CountingSourceConnector(SourceConnector):
    """Has ``tasks.max`` tasks."""

    task_class = CountingSourceTask
    version: ClassVar[str] = "1"
    config = ConfigDefinition(
        ConfigKey("topic", default="t"),
        ConfigKey("limit", "int", 100),
        ConfigKey("login", "password", None),
    )

    async def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._counts, self._context = present, context
        self._counts.connectors[context.name] = context
        await self._counts.note("start", context.name)

    async def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        await self._counts.note("task_configs", self._context.name)
        configs: Any = self._counts.task_configs.get(self._context.name)
        return [self._context.config] * most if configs is None else configs

    async def stop(self) -> None:
        await self._counts.note("stop", self._context.name)


class CountingSinkTask(SinkTask):
    """Keeps the records that it gets."""

    async def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._counts, self._work = present, f"{context.connector}-{context.task}"
        self._counts.contexts[self._work] = context
        await self._counts.note("start", self._work)

    async def open(self, partitions: Any) -> None:
        await self._counts.note("open", self._work)

    async def put(self, records: Sequence[Record]) -> None:
        await self._counts.note("put", self._work)
        self._counts.put.extend(records)

    async def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._counts.note("flush", self._work)
        self._counts.flushed.append(dict(offsets))

    async def close(self, partitions: Any) -> None:
        await self._counts.note("close", self._work)

    async def stop(self) -> None:
        await self._counts.note("stop", self._work)


class CountingSinkConnector(SinkConnector):
    """Has ``tasks.max`` tasks."""

    task_class = CountingSinkTask

    async def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context = context

    async def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._context.config] * most


class FakeProducer:
    """A producer whose records are in their topics a little later; ``clients`` says how it fails."""

    def __init__(self, clients: FakeClients) -> None:
        self._clients = clients
        self._outcomes: list[asyncio.Future[None]] = []
        self.is_full = False
        self.is_closed = False

    def produce(self, topic: str, message: Any, key: Any = None, partition: int | None = None) -> asyncio.Future[None]:
        outcome = asyncio.ensure_future(self._send(topic, message, key))
        self._outcomes.append(outcome)
        return outcome

    async def _send(self, topic: str, message: Any, key: Any) -> None:
        await self._clients.delay()
        if self._clients.failure is not None:
            raise self._clients.failure
        self._clients.topics[topic].append((key, message))

    async def drain(self) -> None:
        await self.flush()

    async def flush(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            await asyncio.wait(outcomes)

    async def close(self, timeout_ms: int | None = None) -> None:
        self.is_closed = True
        for outcome in self._outcomes:
            outcome.cancel()


class FakeClients:
    """The clients of tasks, on topics in memory."""

    def __init__(self) -> None:
        self.topics: defaultdict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.failure: Exception | None = None
        #: The topics that no broker knows, or an error of the look-up.
        self.missing: set[str] | Exception = set()
        self.delay_s = 0.01
        self.producers: list[FakeProducer] = []
        self.consumer_of: Callable[..., Any] | None = None

    async def delay(self) -> None:
        await asyncio.sleep(self.delay_s)

    def producer(self) -> FakeProducer:
        producer = FakeProducer(self)
        self.producers.append(producer)
        return producer

    async def missing_topics(self, topics: Collection[str]) -> list[str]:
        if isinstance(self.missing, Exception):
            raise self.missing
        return sorted(self.missing.intersection(topics))

    def consumer(self, group: str, listener: object, on_bad_record: Any) -> Any:
        assert self.consumer_of is not None
        return self.consumer_of(group, listener, on_bad_record)
