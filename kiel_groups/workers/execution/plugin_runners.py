"""Create the runners of connectors and tasks from their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ConfigError
from kiel_groups.workers.execution.plugin_lookups import PluginLookups, class_name
from kiel_groups.workers.execution.session_parts import SessionParts
from kiel_groups.workers.execution.supervisor_context import RunnerStart
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.connector_interfaces import SinkConnector
from kiel_groups.workers.plugins.secret_masks import secret_values
from kiel_groups.workers.plugins.secret_texts import HIDDEN, ErrorTexts, error_texts, without_secrets
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of
from kiel_groups.workers.runners.connector_runner import ConnectorRunner
from kiel_groups.workers.runners.plugin_calls import guarded
from kiel_groups.workers.runners.runner_interface import Runner, RunnerContext, retrieve
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from kiel_groups.workers.runners.source_task_runner import SourceTaskRunner
from kiel_groups.workers.runners.task_clients import TaskClients
from kiel_groups.workers.runners.work_fence import WorkFence
from kiel_groups.workers.values.work_ids import ConnectorId, Work

__all__ = ["PluginRunners"]

_T = TypeVar("_T")

#: How long the text of an error may take, in seconds.
_TEXTS_LIMIT_S = 5.0


class PluginRunners:
    """
    Creates runners; see ``RunnerFactory``.

    Args:
        plugins: Finds the classes of connectors, and checks settings.
        clients: Creates the clients of tasks.
        runtime: Clocks and threads.
    """

    def __init__(self, plugins: PluginLookups, clients: TaskClients, runtime: Runtime) -> None:
        self._plugins = plugins
        self._clients = clients
        self._runtime = runtime

    async def settings(self, work: Work, spec: WorkSpec) -> Settings:
        if isinstance(work, ConnectorId):
            return (await self._plugins.checked(spec.config)).settings
        return await self._plugins.task_settings(spec.config, spec.task or {})

    def runner(
        self,
        start: RunnerStart,
        parts: SessionParts,
        fence: WorkFence,
        started: Callable[[], None],
        problem: Callable[[str], None],
    ) -> Runner:
        connector_class = self._plugins.found(class_name(start.spec.config))
        context = RunnerContext(
            work=start.work,
            token=start.token,
            connector_class=connector_class,
            config=start.spec.config,
            settings=start.settings,
            fence=fence,
            stores=parts,
            clients=self._clients,
            runtime=self._runtime,
            started=started,
            problem=problem,
        )
        if isinstance(start.work, ConnectorId):
            return ConnectorRunner(context)
        return (SinkTaskRunner if issubclass(connector_class, SinkConnector) else SourceTaskRunner)(context)

    async def error_texts(self, error: BaseException, spec: WorkSpec) -> ErrorTexts:
        # The text of an error may be code of a plugin, which may take any time, and may raise anything.
        text = f"{type(error).__name__}, whose text cannot be made"
        return await self._in_time(ErrorTexts(text, text), self._error_texts, error, spec)

    def _error_texts(self, error: BaseException, spec: WorkSpec) -> ErrorTexts:
        return error_texts(error, self._secrets(spec))

    async def problem_text(self, problem: str, spec: WorkSpec) -> str:
        return await self._in_time(HIDDEN, self._problem_text, problem, spec)

    def _problem_text(self, problem: str, spec: WorkSpec) -> str:
        return without_secrets(" ".join(problem.split()), self._secrets(spec))

    def _secrets(self, spec: WorkSpec) -> Collection[str]:
        """Return the secrets of the settings of work, in all forms in which its texts may quote them."""
        for_connector = for_task = ConfigDefinition()
        with suppress(ConfigError):
            connector_class = self._plugins.found(class_name(spec.config))
            for_connector, for_task = definition_of(connector_class), task_definition_of(connector_class)
        return secret_values(spec.config, for_connector) | secret_values(spec.task or {}, for_task)

    async def _in_time(self, otherwise: _T, make: Callable[..., _T], *arguments: object) -> _T:
        """Make a text on a thread: a megabyte of settings takes a second to be searched for secrets."""
        making: asyncio.Future[_T] = self._runtime.in_thread(partial(guarded, make, arguments), "texts")
        making.add_done_callback(retrieve)
        await asyncio.wait({making}, timeout=_TEXTS_LIMIT_S)
        if making.done() and not making.exception():
            return making.result()
        making.cancel()
        return otherwise
