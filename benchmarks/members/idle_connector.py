"""A connector whose tasks do nothing but report when they start and stop; see ``event_lines``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from benchmarks.members.event_lines import report
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)

__all__ = ["IDLE_CONNECTOR", "IdleConnector"]

IDLE_CONNECTOR = f"{__name__}:IdleConnector"

#: How long a poll waits, in seconds. A stop interrupts it.
_POLL_S = 60.0


class IdleTask(SourceTask):
    """Reports its start as a record of its own partition, and its stop as a revocation."""

    async def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._context = context
        self._name = f"{context.connector}:{context.task}"
        report(0, "record", [self._name, 0])

    async def poll(self) -> Sequence[SourceRecord]:
        await self._context.pause(_POLL_S)
        return ()

    async def stop(self) -> None:
        report(0, "revoked", [self._name])


class IdleConnector(SourceConnector):
    """Has ``tasks.max`` tasks."""

    task_class = IdleTask
    version: ClassVar[str] = "1"
    config = ConfigDefinition()

    async def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._context = context

    async def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [dict(self._context.config)] * most

    async def stop(self) -> None:
        pass
