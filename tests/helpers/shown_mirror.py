"""A connector that the console takes for a mirror: its task has the metrics of one, and mirrors nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kiel_groups.mirror.metrics import MirrorMetrics
from kiel_groups.model import TopicPartition
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.interfaces import (
    ConnectorContext,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)

__all__ = ["MIRROR", "Mirror", "ShownTask"]

MIRROR = f"{__name__}:Mirror"


class ShownTask(SourceTask):
    """Is behind in three partitions, because the target does not answer."""

    async def start(self, context: SourceTaskContext, settings: Settings) -> None:
        self._context = context
        partitions = [TopicPartition("page-views", number) for number in range(3)]
        MirrorMetrics(context.metrics, partitions).measure(lambda: dict.fromkeys(partitions, 4_000))
        context.report_problem("the target new:9092 has not stored 7 records within 10 s; trying again")

    async def poll(self) -> Sequence[SourceRecord]:
        await self._context.pause(1)
        return []


class Mirror(SourceConnector):
    """Has one task."""

    task_class: ClassVar[type[SourceTask]] = ShownTask

    async def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    async def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._config]
