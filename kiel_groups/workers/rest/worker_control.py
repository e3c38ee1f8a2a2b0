"""
Define what the REST interface asks of its worker.

All methods run on the worker's event loop. They raise errors of ``kiel_groups.errors``, which the REST interface
answers with the statuses of Kafka Connect; every method may raise these:

- ``UnknownConnectorError`` (404): there is no such connector, or it has no such task.
- ``RebalanceError`` (409): the worker cannot do this before the rebalance is over, or is not the one that can.
- another retriable error, such as ``SessionLostError`` or ``NoZooKeeperError`` (503).
- any other error (500).

Configurations are passed with their secrets; the REST interface has these hidden by ``masked``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from kiel_groups.workers.plugins.plugin_registry import ConnectorPlugin
from kiel_groups.workers.values import Work, WorkStatus

__all__ = ["ConnectorInfo", "ConnectorKind", "ConnectorStatus", "WorkerControl"]

#: ``unknown`` if the connector's class cannot be imported or used.
ConnectorKind: TypeAlias = Literal["source", "sink", "unknown"]


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """
    A connector as it is configured.

    Args:
        name: The name of the connector.
        config: Its settings, with ``name``.
        tasks: The number of its tasks; 0 if it has not made any yet.
        kind: Whether it is a source or a sink.
    """

    name: str
    config: Mapping[str, str]
    tasks: int = 0
    kind: ConnectorKind = "unknown"


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """
    What a connector and its tasks do.

    Args:
        name: The name of the connector.
        connector: The status of the connector itself.
        tasks: The status of each task, by its number.
        kind: Whether it is a source or a sink.
    """

    name: str
    connector: WorkStatus
    tasks: Sequence[WorkStatus] = ()
    kind: ConnectorKind = "unknown"


class WorkerControl(Protocol):
    """
    A worker as its REST interface sees it.

    The REST interface calls ``create``, ``put_config``, ``patch_config`` and ``delete`` on the leader only, and
    ``restart`` on the owner only; it forwards requests to these by ``leader_url`` and ``owner_url``. All other methods
    are called on any worker.
    """

    # ------------------------------------------------------------------ the group, as this worker knows it now

    def is_rebalancing(self) -> bool:
        """Return whether this worker has no assignment, or has to join again. Changes are then refused (409)."""

    def leader_url(self) -> str | None:
        """Return the URL of the leader's REST interface, which is the worker's own if it leads; None if unknown."""

    def owner_url(self, work: Work) -> str | None:
        """
        Return the URL of the REST interface of the worker that has a connector or a task.

        That is the worker's own if it has the work. Otherwise only the leader knows it, and others return None.
        """

    async def is_registered(self, url: str) -> bool:
        """
        Return whether a worker of the group has registered this URL in ZooKeeper.

        ``leader_url`` and ``owner_url`` are what members of the group say. Where brokers coordinate it, every client of
        the brokers can be one.
        """

    # ------------------------------------------------------------------ connectors

    async def connectors(self) -> Sequence[str]:
        """Return the names of all connectors."""

    async def connector_info(self, name: str) -> ConnectorInfo:
        """Return how a connector is configured."""

    async def config(self, name: str) -> Mapping[str, str]:
        """Return the settings of a connector."""

    async def status(self, name: str) -> ConnectorStatus:
        """Return what a connector and its tasks do."""

    async def create(self, name: str, config: Mapping[str, str]) -> ConnectorInfo:
        """
        Create a connector.

        Args:
            name: Its name, which may have any characters.
            config: Its settings. ``name`` is among them, and is the same.

        Raises:
            ConnectorExistsError: A connector of this name exists (409).
            ConfigError: A setting is not legal, or the name is not (400). The text has all errors.
        """

    async def put_config(self, name: str, config: Mapping[str, str]) -> tuple[ConnectorInfo, bool]:
        """
        Create a connector, or replace its settings.

        A setting keeps its stored text if its new one is ``[hidden]``, or is what answers show of the stored one: users
        may write back what they have read.

        Returns:
            The connector, and whether it was created.

        Raises:
            ConfigError: As ``create``.
        """

    async def patch_config(self, name: str, changes: Mapping[str, str | None]) -> ConnectorInfo:
        """
        Change some settings of a connector, and keep those that others change at the same time.

        Args:
            name: Its name.
            changes: The new texts; None removes a setting. ``[hidden]`` keeps one, as in ``put_config``.

        Raises:
            ConfigError: As ``create``.
        """

    async def delete(self, name: str) -> None:
        """Delete a connector."""

    async def pause(self, name: str) -> None:
        """Have a connector and its tasks pause. The call does not wait until they have."""

    async def resume(self, name: str) -> None:
        """Have a paused connector and its tasks run again. The call does not wait until they do."""

    async def restart(self, work: Work) -> None:
        """Restart a connector, but not its tasks, or a task. This worker has it."""

    # ------------------------------------------------------------------ tasks

    async def tasks(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the settings of a connector's tasks, by number."""

    async def task_status(self, name: str, task: int) -> WorkStatus:
        """Return what a task does."""

    # ------------------------------------------------------------------ plugins

    async def plugins(self) -> Sequence[ConnectorPlugin]:
        """Return the connectors that are installed on this worker."""

    async def masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """
        Return settings with their secrets hidden.

        Args:
            connector_class: The name of the connector's class, or "".
            configs: The settings of the connector, or of its tasks.
        """

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Any]:
        """
        Check settings without creating a connector.

        Args:
            plugin: The full or short name of the connector's class.
            config: The settings, also if some are missing or None.

        Returns:
            The answer in the form of Kafka Connect: ``name``, ``error_count``, ``groups``, ``configs``.

        Raises:
            ConfigError: There is no such class (400).
        """
