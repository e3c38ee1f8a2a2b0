"""Name the pieces of work that a worker group shares: connectors, and the tasks of each connector."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

__all__ = ["ConnectorId", "TaskId", "Work"]


class ConnectorId(NamedTuple):
    """A connector as a piece of work: the object that watches its source or sink, and configures the tasks."""

    connector: str

    def __str__(self) -> str:
        return self.connector


class TaskId(NamedTuple):
    """
    One task of a connector. Its text form is ``connector-number``, as in Kafka Connect.

    Task ids are ordered by connector as text, then by number.
    """

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


#: A piece of work that one worker at a time runs.
Work: TypeAlias = ConnectorId | TaskId
