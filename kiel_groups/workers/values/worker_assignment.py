"""Describe the assignment that a worker gets from the leader of its group."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work

__all__ = ["WorkerAssignment"]


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """
    The work of one worker in one generation, and the configuration that it was assigned by.

    Args:
        leader: The member id of the leader.
        leader_url: The URL of the leader's REST interface.
        offset: The configuration offset that the worker must have read before it starts anything. If ``is_failed``,
            it is the largest one that any worker has read.
        connectors: The names of the assigned connectors, sorted.
        tasks: The assigned tasks, sorted.
        is_failed: Whether the leader has assigned nothing to any worker, because its configuration is behind.
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
