"""The worker as connectors and tasks see it, without a worker: contexts that record what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from kiel_groups.metrics import Metrics
from kiel_groups.workers.plugins.connector_checks import checked_config, run_settings
from kiel_groups.workers.plugins.interfaces import Connector, JsonObject

__all__ = ["RecordingConnectorContext", "RecordingTaskContext", "one_task_settings", "typed"]


@dataclass
class RecordingConnectorContext:
    """The context of a connector."""

    config: Mapping[str, str]
    name: str = "c"
    reconfigurations: int = 0
    errors: list[BaseException] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def request_task_reconfiguration(self) -> None:
        self.reconfigurations += 1

    def raise_error(self, error: BaseException) -> None:
        self.errors.append(error)

    def report_problem(self, problem: str) -> None:
        self.problems.append(problem)


@dataclass
class RecordingTaskContext:
    """The context of a task of a source or a sink. Pauses take no time; they end the task after ``stop_after``."""

    offsets: list[tuple[JsonObject, JsonObject]] = field(default_factory=list)
    connector: str = "c"
    task: int = 0
    fencing_token: int = 1
    stop_after: int | None = None
    pauses: list[float] = field(default_factory=list)
    produced: list[tuple[str, bytes | None, bytes | None]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    is_owner: bool = True

    @property
    def should_stop(self) -> bool:
        return self.stop_after is not None and len(self.pauses) >= self.stop_after

    async def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return self.should_stop

    def report_problem(self, problem: str, part: str = "") -> None:
        if problem or not part:
            self.problems.append(problem)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    async def offset(self, partition: JsonObject) -> Mapping[str, Any] | None:
        return next((offset for stored, offset in reversed(self.offsets) if stored == partition), None)

    async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        self.produced.append((topic, key, value))


def typed(connector_class: type[Connector], config: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the settings of a connector, whose standard settings do not have to be given."""
    return checked_config(
        connector_class, {"name": "c", "connector.class": connector_class.__name__, **config}
    ).settings


def one_task_settings(connector_class: type[Connector], config: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the settings of the first task of a connector with plain methods, as a worker computes them."""
    whole = {"name": "c", "connector.class": connector_class.__name__, **config}
    connector = connector_class()
    connector.start(RecordingConnectorContext(whole), typed(connector_class, whole))
    configs = connector.task_configs(1)
    assert isinstance(configs, list)
    connector.stop()
    return run_settings(connector_class, whole, configs[0]).settings
