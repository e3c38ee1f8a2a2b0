"""Define what the coordination of workers needs: the configuration, the member of the group, and the worker itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.metrics import Metrics
from kiel_groups.workers.values.config_snapshot import ConfigSnapshot
from kiel_groups.workers.values.work_ids import TaskId
from kiel_groups.workers.values.worker_assignment import WorkerAssignment

__all__ = ["SnapshotSource", "WorkerContext", "WorkerListener", "WorkerMember"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """
    A worker as its parts see it.

    Args:
        group: The name of the worker group.
        url: The URL of the worker's REST interface.
        metrics: The worker's registry.
        runtime: Clocks and randomness.
    """

    group: str
    url: str
    metrics: Metrics
    runtime: Runtime


class SnapshotSource(Protocol):
    """The store of the group's configuration."""

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read the whole configuration. A server that lags behind may answer with an older one.

        Args:
            current: Whether the snapshot must have all changes that were completed before this call.

        Raises:
            KielGroupsError: It cannot be read at the moment.
        """


class WorkerListener(Protocol):
    """
    The worker that runs the assigned work, called on the event loop.

    After ``on_assigned`` with an assignment that has not failed, ``on_revoked`` or ``on_lost`` is called once. A worker
    that leaves because it cannot do its part gets ``on_lost`` in any case.
    """

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """
        Start the assigned work. Before, the worker has read the configuration at least up to the assignment's offset.

        For a failed assignment, there is nothing to start: the worker joins again by itself.
        """

    async def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[TaskId]) -> None:
        """
        Give back the work that must not run while the group assigns again, before the worker joins again or leaves.

        If the membership is lost meanwhile, this call is cancelled, and ``on_lost`` follows.

        Args:
            leader: The member id of the leader that has assigned the work.
            connectors: The names of the assigned connectors.
            tasks: The assigned tasks.
        """

    def on_lost(self) -> None:
        """Have all work stop, because the membership is over: other workers may be assigned it already."""


class WorkerMember(Protocol):
    """The worker's member of the group, as its hooks use it; ``CoordinatedMember`` is one."""

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of its generation."""

    @property
    def need_rejoin(self) -> bool:
        """Whether the member has to join before it has an assignment of the present generation."""

    def request_rejoin(self) -> None:
        """Have the member join again."""

    def leave(self) -> None:
        """Leave the group at once, and stay away until ``request_rejoin``."""
