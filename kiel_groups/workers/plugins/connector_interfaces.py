"""
Define the interfaces of connectors, which divide work among tasks.

Every method may be a coroutine function, which runs on the worker's event loop, or a plain one, which runs on a thread.
The methods of one connector never run at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar

from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.plugin_contexts import ConnectorContext
from kiel_groups.workers.plugins.task_interfaces import SinkTask, SourceTask

__all__ = ["Connector", "SinkConnector", "SourceConnector"]


class Connector(ABC):
    """
    What source connectors and sink connectors have in common. A connector is created without arguments.

    A method that raises an error makes the connector FAILED, and so does the constructor; its tasks continue. The
    constructor runs on the worker's event loop if any method is a coroutine function, and on a thread otherwise.
    """

    #: The version of the plugin, as users see it.
    version: ClassVar[str] = "unknown"

    #: The settings of this kind of connector, without those of every connector.
    config: ClassVar[ConfigDefinition] = ConfigDefinition()

    #: The class of the tasks.
    task_class: ClassVar[type[SourceTask] | type[SinkTask]]

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, str | Sequence[str]]:
        """
        Return what is wrong with settings that are legal each by itself: one text or several by the setting's name.

        It is called without a connector, also before one exists, and may not have effects.
        """
        return {}

    def start(self, context: ConnectorContext, settings: Settings) -> Awaitable[None] | None:
        """
        Prepare the connector. This is the first call.

        Args:
            context: What the connector gets from its worker; valid until ``stop`` returns.
            settings: The settings of the connector, checked and typed.
        """
        return None

    @abstractmethod
    def task_configs(self, most: int) -> Sequence[Mapping[str, str]] | Awaitable[Sequence[Mapping[str, str]]]:
        """
        Return the settings of each task, as texts. Usually they are ``context.config`` with additions.

        Args:
            most: The largest number of tasks that users allow (``tasks.max``).
        """

    def stop(self) -> Awaitable[None] | None:
        """Release what the connector holds. This is the last call, also after an error."""
        return None


class SourceConnector(Connector):
    """Copies data of another system into topics."""

    task_class: ClassVar[type[SourceTask]]


class SinkConnector(Connector):
    """Copies the records of ``topics`` to another system. The topics' partitions are shared among its tasks."""

    task_class: ClassVar[type[SinkTask]]
