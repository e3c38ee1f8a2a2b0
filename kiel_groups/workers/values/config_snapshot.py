"""Describe the configuration of a worker group as a worker has read it at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work

__all__ = ["ConfigSnapshot", "ConnectorEntry", "TargetState"]


class TargetState(StrEnum):
    """Whether the work of a connector has to run, or to pause."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class ConnectorEntry:
    """
    The configuration of one connector, and of its tasks.

    Args:
        config: The settings of the connector, as users have given them.
        target: Whether the connector and its tasks have to run.
        tasks: The settings of each task, by its number; None if the connector has not made any task yet.
        problem: Why the stored configuration cannot be used; "" if it can. Its tasks do not run.
        created: A number that differs between a connector and a former one of the same name.
    """

    config: Mapping[str, str]
    target: TargetState = TargetState.STARTED
    tasks: tuple[Mapping[str, str], ...] | None = None
    problem: str = ""
    created: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ConfigSnapshot:
    """
    All connectors of a worker group at one offset of its configuration.

    Args:
        offset: The number of the last change that the snapshot contains. Each change has a larger one.
        connectors: The connectors by name.
    """

    offset: int = 0
    connectors: Mapping[str, ConnectorEntry] = field(default_factory=dict)

    def sorted_connectors(self) -> list[ConnectorId]:
        """Return all connectors in the order of their names, also those without tasks or with a problem."""
        return [ConnectorId(name) for name in sorted(self.connectors)]

    def sorted_tasks(self) -> list[TaskId]:
        """Return the tasks that can be assigned, ordered by the connector's name as text, then by number."""
        return [task for name in sorted(self.connectors) for task in self.tasks_of(name)]

    def tasks_of(self, connector: str) -> list[TaskId]:
        """Return the tasks of a connector; none if it has no task set yet, has a problem, or does not exist."""
        entry = self.connectors.get(connector)
        if entry is None or entry.problem or entry.tasks is None:
            return []
        return [TaskId(connector, number) for number in range(len(entry.tasks))]

    def works(self) -> list[Work]:
        """Return all work that can be assigned: the sorted connectors, then the sorted tasks."""
        return [*self.sorted_connectors(), *self.sorted_tasks()]
