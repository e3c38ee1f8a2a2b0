"""
Derive from the configuration what a worker runs of its assignment, and whether the group has to assign again.

These functions are pure: a ``WorkSpec`` is all that a start of a connector or a task depends on, so work is restarted
if and only if its spec has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.plugin_lookups import PluginLookups, class_name
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, Settings
from kiel_groups.workers.plugins.connector_checks import secret_values
from kiel_groups.workers.plugins.interfaces import SinkConnector
from kiel_groups.workers.plugins.secret_texts import HIDDEN, ErrorTexts, error_texts, without_secrets
from kiel_groups.workers.plugins.standard_keys import definition_of, standard_settings, task_definition_of
from kiel_groups.workers.runners.plugin_calls import WorkFence, guarded
from kiel_groups.workers.runners.runner_interface import Runner, RunnerContext, TaskClients, retrieve
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from kiel_groups.workers.runners.source_task_runner import ConnectorRunner, SourceTaskRunner
from kiel_groups.workers.session import WorkerRole
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TargetState, Work
from kiel_groups.zookeeper.runtime import Runtime

__all__ = [
    "WorkSpec",
    "needs_rejoin",
    "outdated",
    "planned",
    "still_valid",
    "RunnerFactory",
    "RunnerStart",
    "SupervisorContext",
    "PluginRunners",
]


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """
    What a connector or a task is started with.

    Args:
        config: The settings of the connector. For a task, only the standard ones: the others are the task's own.
        task: The settings of the task; None for a connector.
        target: Whether it has to run.
        problem: Why it cannot run; "" if it can.
        created: Distinguishes connectors that have had the same name, one after the other; see ``ConnectorEntry``.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] | None = None
    target: TargetState = TargetState.STARTED
    problem: str = ""
    created: int = 0


def planned(config: ConfigSnapshot, works: Iterable[Work]) -> dict[Work, WorkSpec]:
    """
    Return what has to run of the assigned work. Work that the configuration lacks is left out.

    A connector whose configuration has a problem is included, so that its owner reports it as FAILED.
    """
    specs = {work: _spec_of(config.connectors.get(work.connector), work) for work in works}
    return {work: spec for work, spec in specs.items() if spec is not None}


def _spec_of(entry: ConnectorEntry | None, work: Work) -> WorkSpec | None:
    if entry is None:
        return None
    if isinstance(work, ConnectorId):
        return WorkSpec(dict(entry.config), None, entry.target, entry.problem, entry.created)
    if entry.problem or entry.tasks is None or work.task >= len(entry.tasks):
        return None
    return WorkSpec(standard_settings(entry.config), dict(entry.tasks[work.task]), entry.target, created=entry.created)


def outdated(config: ConfigSnapshot, running: Mapping[Work, WorkSpec]) -> list[Work]:
    """
    Return the running work that has to stop before the group assigns again.

    That is the work of deleted connectors, also if connectors of the same names were created since, and tasks that were
    removed or whose settings have changed. The settings of a connector's tasks fit each other, so a task with former
    settings must not run beside tasks with new ones on other workers.
    """
    wanted = planned(config, running)
    return [work for work, spec in running.items() if work not in wanted or _identity(wanted[work]) != _identity(spec)]


def still_valid(assigned: ConfigSnapshot | None, wanted: Mapping[Work, WorkSpec]) -> dict[Work, WorkSpec]:
    """
    Return the work that a newer configuration leaves as the group has assigned it.

    Args:
        assigned: The configuration by which the work was assigned; None if it is not known, so that no task is valid.
        wanted: What has to run by the newest configuration.
    """
    former = {} if assigned is None else planned(assigned, wanted)
    return {
        work: spec
        for work, spec in wanted.items()
        if (_identity(former[work]) == _identity(spec) if work in former else spec.task is None)
    }


def _identity(spec: WorkSpec) -> tuple[int, Mapping[str, str] | None]:
    """Return the part of a spec whose change requires another assignment. The owner alone acts on other changes."""
    return spec.created, spec.task


def needs_rejoin(assigned: ConfigSnapshot, present: ConfigSnapshot) -> bool:
    """
    Return whether the group has to assign its work again.

    It has to if a connector or a task was added or removed, if the settings of a task have changed, or if a connector
    was deleted and created again. If only the settings of a connector have changed, or it was paused or resumed, the
    owners of its work act alone.

    Args:
        assigned: The configuration by which the present work was assigned.
        present: The newest configuration.
    """
    return _shared(assigned) != _shared(present)


def _shared(config: ConfigSnapshot) -> dict[str, object]:
    """Return what is assigned: each connector, and the settings of its tasks, or None if these are not assigned."""
    return {name: (entry.created, None if entry.problem else entry.tasks) for name, entry in config.connectors.items()}


class RunnerStart(NamedTuple):
    """What is started: the work, its spec, its checked settings, and the fencing token of its claim."""

    work: Work
    spec: WorkSpec
    settings: Settings
    token: int


class RunnerFactory(Protocol):
    """Creates runners."""

    async def settings(self, work: Work, spec: WorkSpec) -> Settings:
        """
        Return the checked settings of a connector or a task.

        Raises:
            Exception: They are not legal, or the class of the connector cannot be imported, or one of both took too
                long.
        """

    def runner(
        self,
        start: RunnerStart,
        role: WorkerRole,
        fence: WorkFence,
        started: Callable[[], None],
        problem: Callable[[str], None],
    ) -> Runner:
        """
        Create a runner for one run; see ``RunnerContext``.

        Raises:
            Exception: The plugin's class cannot be used.
        """

    async def error_texts(self, error: BaseException, spec: WorkSpec) -> ErrorTexts:
        """Return what users and logs may see of an error of work, without the secrets of its settings."""

    async def problem_text(self, problem: str, spec: WorkSpec) -> str:
        """Return what users may see of a problem of work, in one line and without the secrets of its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """
    What the supervisors of one assignment on one session share.

    Args:
        role: The worker on the session.
        factory: Creates runners.
        address: ``host:port`` of the worker's REST interface, for statuses.
        generation: The generation of the assignment that has started them.
        metrics: The worker's registry.
        runtime: Clocks and randomness.
    """

    role: WorkerRole
    factory: RunnerFactory
    address: str
    generation: int
    metrics: Metrics
    runtime: Runtime


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
        role: WorkerRole,
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
            stores=role,
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
