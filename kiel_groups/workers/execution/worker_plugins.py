"""
On threads, find the classes of connectors, check settings by these classes, and hide secrets.

The import of a class and ``Connector.check`` run code of a plugin, and may take long. The search for secrets in a
megabyte of settings may take long, too. On the event loop, such calls would stop the worker's heartbeats and all its
work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.secret_texts import HIDDEN, ErrorTexts, error_texts, without_secrets
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.plugins.config_definition import CheckedConfig, ConfigDefinition
from kiel_groups.workers.plugins.connector_checks import (
    RunSettings,
    checked_config,
    masked,
    named_topics,
    run_settings,
    secret_values,
    validation_report,
)
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.plugin_registry import ENTRY_POINTS, ConnectorPlugin, PluginRegistry
from kiel_groups.workers.plugins.secret_references import NO_REFERENCES, SecretReferences
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of
from kiel_groups.workers.runners.plugin_calls import guarded
from kiel_groups.zookeeper.runtime import Runtime

#: How long the code of a plugin may take, in seconds: half of what a request to the REST interface may take.
_LIMIT_S = 30.0

#: How long the text of an error may take, in seconds.
_TEXTS_LIMIT_S = 5.0

_INSTALLED = "the import of the installed connectors"

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class WorkerPlugins:
    """
    Runs the code of the connectors' classes on threads, with a time limit.

    Args:
        registry: Finds the classes of connectors.
        runtime: Starts the threads.
        limit_s: The time limit of a call, in seconds. A late call raises ConfigError, and its thread continues.
        references: Finds the secrets that settings refer to.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        runtime: Runtime,
        limit_s: float = _LIMIT_S,
        *,
        references: SecretReferences = NO_REFERENCES,
    ) -> None:
        self._registry = registry
        self._references = references
        self._runtime = runtime
        self._limit_s = limit_s
        #: The classes that were found. A connector may have a thousand tasks, whose class is the same.
        self._found: dict[str, type[Connector]] = {}
        # Threads that compute share the processor with the event loop, so one answer is masked at a time.
        self._masking = asyncio.Lock()

    async def resolve(self, name: str) -> type[Connector]:
        """
        Return the class of a connector; see ``PluginRegistry.resolve``.

        Raises:
            ConfigError: There is no such class, the class cannot be imported or used, or the import takes too long.
        """
        if name not in self._found:
            self._found[name] = await self._on_thread(
                f"connector.class: the import of {name!r}", self._registry.resolve, name
            )
        return self._found[name]

    def found(self, name: str) -> type[Connector]:
        """
        Return a class that ``resolve`` has returned before for this name.

        Raises:
            ConfigError: ``resolve`` has not returned a class for this name.
        """
        if name not in self._found:
            raise ConfigError(f"connector.class: {name!r} is not imported")
        return self._found[name]

    async def checked(self, config: Mapping[str, str | None]) -> CheckedConfig:
        """
        Check the settings of a connector, and return the outcome; see ``checked_config``.

        Raises:
            ConfigError: The class of the connector is missing or cannot be used, a setting names a class that is not
                allowed, or the check takes too long.
        """
        connector_class = await self.resolve(class_name(config))
        self._registry.check_classes(definition_of(connector_class), config)
        check = f"{connector_class.__name__}.check"
        return await self._on_thread(check, checked_config, connector_class, config, self._references)

    async def settings(self, spec: WorkSpec) -> RunSettings:
        """
        Read the secrets that the settings of a connector or a task refer to, and return its typed settings.

        Raises:
            ConfigError: A setting is not legal or names a class that is not allowed, a reference has no value, the
                class of the connector cannot be used, or the check takes too long. The text has no secrets.
        """
        connector_class = await self.resolve(class_name(spec.config))
        what = f"{connector_class.__name__}.check"
        if spec.task is None:
            self._registry.check_classes(definition_of(connector_class), spec.config)
        else:
            self._registry.check_classes(task_definition_of(connector_class), spec.task)
            what = f"the check of the settings of a task of {connector_class.__name__}"
        # A setting may be a class, which is imported.
        return await self._on_thread(what, run_settings, connector_class, spec.config, spec.task, self._references)

    async def report(
        self, plugin: str, config: Mapping[str, str | None]
    ) -> tuple[Mapping[str, Any], Mapping[str, Sequence[str]]]:
        """
        Check settings. Return the ``validation_report`` for users, and the topics by setting (``named_topics``).

        Raises:
            ConfigError: There is no such class, a setting names a class that is not allowed, or the check takes too
                long.
        """
        connector_class = await self.resolve(plugin)
        self._registry.check_classes(definition_of(connector_class), config)

        def report() -> tuple[Mapping[str, Any], Mapping[str, Sequence[str]]]:
            found = validation_report(connector_class, config, self._references)
            return found, named_topics(connector_class, config)

        return await self._on_thread(f"{connector_class.__name__}.check", report)

    async def installed(self) -> Sequence[ConnectorPlugin]:
        """
        Return the installed connectors that can be imported, sorted by name.

        Raises:
            ConfigError: The import of the connectors takes too long.
        """
        return await self._on_thread(_INSTALLED, lambda: self._registry.plugins)

    async def warn_of_problems(self) -> None:
        """
        Import the installed connectors, and log a warning for each entry point whose class cannot be used.

        The warnings explain why a connector is missing in ``installed``. If the import takes too long, log a warning,
        too.
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

    # ------------------------------------------------------------------ secrets

    async def masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """
        Return settings of a connector or its tasks, with ``[hidden]`` in place of secrets.

        If ``resolve`` has not found the class before, all settings are hidden except the standard settings.
        """
        async with self._masking:
            return await self._runtime.in_thread(partial(self._masked, connector_class, configs), "masks")

    def _masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        try:
            found = self.found(connector_class)
        except ConfigError:
            return [masked(config, None) for config in configs]
        definitions = (definition_of(found), task_definition_of(found))
        shown = []
        for config in configs:
            for_connector, for_task = (masked(config, definition) for definition in definitions)
            shown.append({name: HIDDEN if for_task[name] == HIDDEN else text for name, text in for_connector.items()})
        return shown

    async def error_texts(self, error: BaseException, spec: WorkSpec, secrets: Collection[str] = ()) -> ErrorTexts:
        """
        Return the texts of an error of work for users and logs, without the secrets of the work's settings.

        Args:
            error: The error.
            spec: The settings, as they are stored.
            secrets: The secrets of the run; see ``RunSettings``. References may have other values by now.
        """
        # Making an error's text may call a plugin, which may take any time, and may raise any error.
        text = f"{type(error).__name__}, whose text cannot be made"
        make = partial(error_texts, error)
        return await self._without_secrets(ErrorTexts(text, text), make, spec, secrets)

    async def problem_text(self, problem: str, spec: WorkSpec, secrets: Collection[str] = ()) -> str:
        """Return the text of a problem for users, in one line and without secrets; see ``error_texts``."""

        def make(values: Collection[str]) -> str:
            # First, a value may have blanks in a row. Then, a line may continue with the secret that it names.
            return without_secrets(" ".join(without_secrets(problem, values).split()))

        return await self._without_secrets(HIDDEN, make, spec, secrets)

    async def _without_secrets(
        self, otherwise: _T, make: Callable[[Collection[str]], _T], spec: WorkSpec, secrets: Collection[str]
    ) -> _T:
        """Call ``make`` with the secrets of the work. Return ``otherwise`` if the call fails or takes too long."""

        def call() -> _T:
            return make(self._secrets(spec).union(secrets))

        try:
            return await self._on_thread("a text", call, limit_s=_TEXTS_LIMIT_S)
        except Exception:  # code of a plugin
            return otherwise

    def _secrets(self, spec: WorkSpec) -> set[str]:
        """Return the secrets in the stored settings of work, in all forms in which error texts may quote them."""
        for_connector = for_task = ConfigDefinition()
        with suppress(ConfigError):
            connector_class = self.found(class_name(spec.config))
            for_connector, for_task = definition_of(connector_class), task_definition_of(connector_class)
        return secret_values(spec.config, for_connector) | secret_values(spec.task or {}, for_task)

    async def _on_thread(
        self, what: str, function: Callable[..., _T], *arguments: object, limit_s: float | None = None
    ) -> _T:
        limit_s = limit_s or self._limit_s
        running: asyncio.Future[_T] = self._runtime.in_thread(lambda: guarded(function, arguments), "plugins")
        try:
            done, _ = await asyncio.wait({running}, timeout=limit_s)
        finally:
            running.cancel()
        if not done:
            raise ConfigError(f"{what} did not return within {limit_s:g} s")
        return running.result()


def class_name(config: Mapping[str, str | None]) -> str:
    """
    Return the setting ``connector.class``.

    Raises:
        ConfigError: The setting is missing.
    """
    name = config.get("connector.class")
    if not name:
        raise ConfigError("connector.class: required, but not given; expected the name of a connector's class")
    return name
