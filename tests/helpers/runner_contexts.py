"""What a runner gets from its runtime, without a runtime: stores in memory, and a session that a test ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kiel_groups.errors import ClaimLostError, SessionLostError
from kiel_groups.metrics import Metrics
from kiel_groups.workers.plugins.connector_checks import run_settings
from kiel_groups.workers.plugins.interfaces import Connector, JsonObject
from kiel_groups.workers.plugins.secret_references import NO_REFERENCES, SecretReferences
from kiel_groups.workers.runners.plugin_calls import WorkFence
from kiel_groups.workers.runners.runner_interface import RunnerContext
from kiel_groups.workers.stores.source_offset_store import SourceOffsets
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.counting_connectors import FakeClients

__all__ = ["FakeSession", "FakeStores", "runner_context"]


class FakeSession:
    """A session that is trusted until the test changes that."""

    def __init__(self) -> None:
        self.is_over = False
        self.trusted = True
        self.was_awaited = False

    async def wait_trusted(self) -> None:
        self.was_awaited = True
        while not self.trusted:
            if self.is_over:
                raise SessionLostError("the session is over")
            await asyncio.sleep(0.001)

    def end(self) -> None:
        self.trusted, self.is_over = False, True


class FakeStores:
    """The stores of one session; without the claim, each write is refused."""

    def __init__(self) -> None:
        self.stored: dict[str, JsonObject] = {}
        self.tasks: list[list[Mapping[str, str]]] = []
        self.is_claimed = True

    async def read_offset(self, connector: str, partition: JsonObject) -> JsonObject | None:
        return self.stored.get(str(partition))

    async def write_offsets(self, task: TaskId, offsets: SourceOffsets) -> None:
        if not self.is_claimed:
            raise ClaimLostError("the claim is gone")
        for partition, offset in offsets:
            self.stored[str(partition)] = offset

    async def write_tasks(self, connector: str, tasks: Sequence[Mapping[str, str]]) -> None:
        if not self.is_claimed:
            raise ClaimLostError("the claim is gone")
        self.tasks.append(list(tasks))


def runner_context(
    connector_class: type[Connector],
    config: Mapping[str, str],
    *,
    task: int | None = 0,
    session: FakeSession | None = None,
    stores: FakeStores | None = None,
    clients: FakeClients | None = None,
    started: Any = lambda: None,
    problem: Any = lambda text: None,
    references: SecretReferences = NO_REFERENCES,
) -> RunnerContext:
    """Return the context of a task of the connector "c", or of the connector itself."""
    whole = {"name": "c", "connector.class": "x", **config}
    work: Work = ConnectorId("c") if task is None else TaskId("c", task)
    return RunnerContext(
        work=work,
        token=7,
        connector_class=connector_class,
        config=whole,
        checked=run_settings(connector_class, whole, None if task is None else whole, references),
        fence=WorkFence(session or FakeSession()),
        stores=stores or FakeStores(),
        clients=clients or FakeClients(),
        runtime=Runtime(),
        started=started,
        problem=problem,
        metrics=Metrics(),
    )
