"""
Find the classes of connectors, and check settings with them, on threads.

Importing a class and ``Connector.check`` run code of a plugin, which may take long. On the event loop, that would stop
the worker's heartbeats and all of its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.workers.plugins.config_definition import CheckedConfig, Settings, full_name
from kiel_groups.workers.plugins.connector_checks import checked_config, named_topics, task_settings, validation_report
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.plugin_registry import ENTRY_POINTS, ConnectorPlugin, PluginRegistry
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of
from kiel_groups.workers.runners.plugin_calls import guarded
from kiel_groups.zookeeper.runtime import Runtime

__all__ = ["PluginLookups", "class_name"]

#: How long the code of a plugin may take, in seconds: half of what a request to the REST interface may take.
_LIMIT_S = 30.0

_INSTALLED = "the import of the installed connectors"

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class PluginLookups:
    """
    The connectors of one worker.

    Args:
        registry: Finds the classes of connectors.
        runtime: The threads.
        limit_s: How long a call may take, in seconds. After that it has failed, although its thread runs on.
    """

    def __init__(self, registry: PluginRegistry, runtime: Runtime, limit_s: float = _LIMIT_S) -> None:
        self._registry = registry
        self._runtime = runtime
        self._limit_s = limit_s
        #: The classes that were found. A connector may have a thousand tasks, whose class is the same.
        self._found: dict[str, type[Connector]] = {}

    async def resolve(self, name: str) -> type[Connector]:
        """
        Return the class of a connector; see ``PluginRegistry.resolve``.

        Raises:
            ConfigError: There is no such class, it cannot be imported or used, or its import takes too long.
        """
        if name not in self._found:
            self._found[name] = await self._on_thread(f"the import of {name!r}", self._registry.resolve, name)
        return self._found[name]

    def found(self, name: str) -> type[Connector]:
        """
        Return a class that ``resolve`` has returned before.

        Raises:
            ConfigError: It has not.
        """
        if name not in self._found:
            raise ConfigError(f"connector.class: {name!r} is not imported")
        return self._found[name]

    async def checked(self, config: Mapping[str, str | None]) -> CheckedConfig:
        """
        Check the settings of a connector; see ``checked_config``.

        Raises:
            ConfigError: The class of the connector is missing or cannot be used, or the check takes too long.
        """
        connector_class = await self.resolve(class_name(config))
        self._registry.check_classes(definition_of(connector_class), config)
        check = f"{connector_class.__name__}.check"
        return await self._on_thread(check, checked_config, connector_class, config)

    async def task_settings(self, config: Mapping[str, str], task: Mapping[str, str]) -> Settings:
        """
        Return the typed settings of a task; see ``task_settings``.

        Raises:
            ConfigError: A setting is not legal, or names a class that is not allowed; the class of the connector cannot
                be used, or the check takes too long.
        """
        connector_class = await self.resolve(class_name(config))
        self._registry.check_classes(task_definition_of(connector_class), task)
        # A setting may be a class, which is imported.
        return await self._on_thread("the check of a task's settings", task_settings, connector_class, config, task)

    async def report(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Any]:
        """
        Check settings, and return the answer for users; see ``validation_report``.

        Raises:
            ConfigError: There is no such class, or the check takes too long.
        """
        connector_class = await self.resolve(plugin)
        self._registry.check_classes(definition_of(connector_class), config)
        check, name = f"{connector_class.__name__}.check", full_name(connector_class)
        return await self._on_thread(check, validation_report, name, connector_class, config)

    async def topics(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Sequence[str]]:
        """
        Return the topics in settings; see ``named_topics``.

        Raises:
            ConfigError: There is no such class, or the check takes too long.
        """
        connector_class = await self.resolve(plugin)
        return await self._on_thread("the check of settings", named_topics, connector_class, config)

    async def installed(self) -> Sequence[ConnectorPlugin]:
        """
        Return the installed connectors that can be imported, sorted by name.

        Raises:
            ConfigError: Their import takes too long.
        """
        return await self._on_thread(_INSTALLED, lambda: self._registry.plugins)

    async def warn_of_problems(self) -> None:
        """
        Import the installed connectors, and log a warning for each entry point whose class cannot be used.

        Otherwise a package whose connector is missing in ``installed`` gives no reason. This raises no error.
        """
        try:
            problems = await self._on_thread(_INSTALLED, lambda: self._registry.problems)
        except KielGroupsError as error:
            log.warning("cannot list the installed connectors: %s", error)
            return
        for problem in problems:
            log.warning(
                "the entry point %r of the group %s offers no usable connector: %s",
                problem.entry_point,
                ENTRY_POINTS,
                problem.error,
            )

    async def _on_thread(self, what: str, function: Callable[..., _T], *arguments: object) -> _T:
        running: asyncio.Future[_T] = self._runtime.in_thread(lambda: guarded(function, arguments), "plugins")
        try:
            done, _ = await asyncio.wait({running}, timeout=self._limit_s)
        finally:
            running.cancel()
        if not done:
            raise ConfigError(f"connector.class: {what} did not return within {self._limit_s:g} s")
        return running.result()


def class_name(config: Mapping[str, str | None]) -> str:
    """
    Return the setting ``connector.class``.

    Raises:
        ConfigError: It is missing.
    """
    name = config.get("connector.class")
    if not name:
        raise ConfigError("connector.class: required, but not given; expected the name of a connector's class")
    return name
