"""Create the runners of connectors and tasks from their settings."""

from __future__ import annotations

from collections.abc import Callable

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ConfigError
from kiel_groups.workers.execution.session_parts import SessionParts
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.execution.work_supervisor import RunnerStart
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.connector_checks import checked_config, task_settings
from kiel_groups.workers.plugins.connector_interfaces import Connector, SinkConnector
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
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
        plugins: Finds the classes of connectors.
        clients: Creates the clients of tasks.
        runtime: Clocks and threads.
    """

    def __init__(self, plugins: PluginRegistry, clients: TaskClients, runtime: Runtime) -> None:
        self._plugins = plugins
        self._clients = clients
        self._runtime = runtime
        self._classes: dict[str, type[Connector]] = {}

    def settings(self, work: Work, spec: WorkSpec) -> Settings:
        connector_class = self._class_of(spec)
        if isinstance(work, ConnectorId):
            return checked_config(connector_class, spec.config).settings
        return task_settings(connector_class, spec.config, spec.task or {})

    def runner(self, start: RunnerStart, parts: SessionParts, fence: WorkFence, started: Callable[[], None]) -> Runner:
        connector_class = self._class_of(start.spec)
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
        )
        if isinstance(start.work, ConnectorId):
            return ConnectorRunner(context)
        return (SinkTaskRunner if issubclass(connector_class, SinkConnector) else SourceTaskRunner)(context)

    def _class_of(self, spec: WorkSpec) -> type[Connector]:
        name = spec.config.get("connector.class")
        if not name:
            raise ConfigError("connector.class: required, but not given; expected the name of a connector's class")
        # A connector may have a thousand tasks, whose class is the same.
        if name not in self._classes:
            self._classes[name] = self._plugins.resolve(name)
        return self._classes[name]
