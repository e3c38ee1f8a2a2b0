"""The values that the parts of a worker share: ids of connectors and tasks, configurations and assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kiel_groups.group.znodes.worker_contents import TargetState


class ConnectorId(NamedTuple):
    """The id of a connector as a piece of work: to watch its source or sink, and to configure its tasks."""

    connector: str

    def __str__(self) -> str:
        return self.connector


class TaskId(NamedTuple):
    """
    The id of one task of a connector. The text form of the id is ``connector-number``, as in Kafka Connect.

    Task ids are ordered by connector as text, then by number.
    """

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


#: A piece of work: a connector or a task. Only one worker at a time runs it.
Work: TypeAlias = ConnectorId | TaskId


@dataclass(frozen=True, slots=True)
class ConnectorEntry:
    """
    The configuration of one connector, and of its tasks.

    Args:
        config: The settings of the connector, as users have given them.
        target: Whether the connector and its tasks have to run.
        tasks: The settings of each task, by its number; None if the connector has not configured its tasks yet.
        problem: Why the stored configuration cannot be used, or "" if it is usable. With a problem, the tasks do not
            run.
        created: A number that no earlier connector of the same name had.
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
        offset: The number of the last change that the snapshot contains. Each change has a larger number than the
            change before.
        connectors: The connectors by name.
    """

    offset: int = 0
    connectors: Mapping[str, ConnectorEntry] = field(default_factory=dict)

    def sorted_connectors(self) -> list[ConnectorId]:
        """Return all connectors sorted by name, even connectors without tasks or with a problem."""
        return [ConnectorId(name) for name in sorted(self.connectors)]

    def sorted_tasks(self) -> list[TaskId]:
        """Return the tasks that can be assigned, ordered by the connector's name as text, then by number."""
        return [task for name in sorted(self.connectors) for task in self.tasks_of(name)]

    def tasks_of(self, connector: str) -> list[TaskId]:
        """
        Return the tasks of a connector.

        The list is empty if the connector does not exist, has a problem, or has not configured its tasks yet.
        """
        entry = self.connectors.get(connector)
        if entry is None or entry.problem or entry.tasks is None:
            return []
        return [TaskId(connector, number) for number in range(len(entry.tasks))]

    def works(self) -> list[Work]:
        """Return all work that can be assigned: the sorted connectors, then the sorted tasks."""
        return [*self.sorted_connectors(), *self.sorted_tasks()]


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """
    The work of one worker in one generation, and the configuration by which it was assigned.

    Args:
        leader: The member id of the leader.
        leader_url: The URL of the leader's REST interface.
        offset: The configuration offset that the worker must have read before it starts work. If ``is_failed``, the
            largest offset that any worker has read.
        connectors: The names of the assigned connectors, sorted.
        tasks: The assigned tasks, sorted.
        is_failed: Whether the leader has assigned nothing to any worker, because the leader's configuration is behind.
    """

    leader: str
    leader_url: str
    offset: int
    connectors: tuple[str, ...] = ()
    tasks: tuple[TaskId, ...] = ()
    is_failed: bool = False

    @property
    def works(self) -> tuple[Work, ...]:
        """All work of this assignment: its connectors, then its tasks."""
        return (*map(ConnectorId, self.connectors), *self.tasks)
