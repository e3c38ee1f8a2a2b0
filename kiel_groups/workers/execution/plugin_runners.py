"""Create the runners of connectors and tasks from their settings."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.workers.execution.plugin_lookups import PluginLookups, class_name
from kiel_groups.workers.execution.session_parts import SessionParts
from kiel_groups.workers.execution.supervisor_context import RunnerStart
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.connector_checks import task_settings
from kiel_groups.workers.plugins.connector_interfaces import SinkConnector
from kiel_groups.workers.runners.connector_runner import ConnectorRunner
from kiel_groups.workers.runners.runner_interface import Runner, RunnerContext
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from kiel_groups.workers.runners.source_task_runner import SourceTaskRunner
from kiel_groups.workers.runners.task_clients import TaskClients
from kiel_groups.workers.runners.work_fence import WorkFence
from kiel_groups.workers.values.work_ids import ConnectorId, Work

__all__ = ["PluginRunners"]


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
        # No code of a plugin is called for a task, but its declared validators. A worker may have a thousand tasks.
        connector_class = await self._plugins.resolve(class_name(spec.config))
        self._plugins.check_task_classes(connector_class, spec.task or {})
        return task_settings(connector_class, spec.config, spec.task or {})

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
