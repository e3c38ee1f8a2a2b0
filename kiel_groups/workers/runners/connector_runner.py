"""Run a connector: it configures its tasks, and watches what it copies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from kiel_groups.errors import ConfigError, UnknownConnectorError
from kiel_groups.group.znodes.transactions import LARGEST_BYTES
from kiel_groups.workers.plugins.connector_interfaces import Connector
from kiel_groups.workers.runners.runner_contexts import RunnerConnectorContext
from kiel_groups.workers.runners.runner_interface import Runner, RunnerContext

__all__ = ["ConnectorRunner"]

log = logging.getLogger(__name__)

#: The least bytes of a task in the connector's znode, and the most tasks that fit there. ``tasks.max`` may be two
#: thousand millions, and the connector may return as many references to settings of a megabyte.
_LEAST_BYTES = len("{}, ")
_MOST_TASKS = LARGEST_BYTES // _LEAST_BYTES


class ConnectorRunner(Runner):
    """Runs one connector. Its tasks are configured after its start, and whenever it asks for that."""

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._name = context.work.connector
        #: None before it is created.
        self._connector: Connector | None = None
        #: Set when the connector wants its tasks to be configured again, or has reported an error.
        self._notified = asyncio.Event()
        self._is_outdated = True
        self._error: BaseException | None = None

    async def _run_plugin(self) -> None:
        connector = self._connector = await self.calls.create(self.context.connector_class)
        given = RunnerConnectorContext(self._name, self.context.config, self._reconfigure, self._fail)
        await self.calls.call(connector.start, given, self.context.settings)
        self.context.started()
        while not self.should_stop:
            self._notified.clear()
            if self._error is not None:
                raise self._error
            if self._is_outdated:
                self._is_outdated = False
                await self._configure(connector)
            else:
                await self.until_stop(self._notified.wait())

    async def _stop_plugin(self) -> None:
        if self._connector is not None:
            await self.calls.call_last(self._connector.stop)

    def _reconfigure(self) -> None:
        self._is_outdated = True
        self._notified.set()

    def _fail(self, error: BaseException) -> None:
        # An error that is no Exception, such as SystemExit, must not end the worker.
        self._error = error
        if not isinstance(error, Exception):
            self._error = ConfigError(f"the connector reports a {type(error).__name__}")
            self._error.__cause__ = error
        self._notified.set()

    async def _configure(self, connector: Connector) -> None:
        """Ask for the configurations of the tasks, and store them if they have changed."""
        most = min(self.context.settings["tasks.max"], _MOST_TASKS)
        configs = _checked(self._name, await self.calls.call(connector.task_configs, most), most)
        if self.should_stop:
            return
        await self.context.fence.wait_open()
        try:
            await self.context.stores.write_tasks(self._name, configs)
        except UnknownConnectorError:
            # It was deleted just now. The worker stops it when it has read that.
            log.info("connector %s was deleted; its tasks are not configured", self._name)


def _checked(name: str, configs: object, most: int) -> Sequence[Mapping[str, str]]:
    """Return what ``task_configs`` has returned, and raise ConfigError if it is no sequence of settings."""
    if not isinstance(configs, Sequence) or isinstance(configs, str | bytes):
        raise ConfigError(
            f"connector {name!r}: task_configs returned {type(configs).__name__}; expected a list of the settings of"
            " each task"
        )
    if len(configs) > most:
        raise ConfigError(f"connector {name!r}: task_configs returned {len(configs)} tasks; tasks.max is {most}")
    size = 0
    for config in configs:
        if not isinstance(config, Mapping) or not all(
            isinstance(key, str) and isinstance(value, str) for key, value in config.items()
        ):
            raise ConfigError(f"connector {name!r}: task_configs returned settings that are not texts by name")
        size += _LEAST_BYTES + sum(len(key) + len(value) for key, value in config.items())
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"connector {name!r}: the settings of its {len(configs):,} tasks take more than the {LARGEST_BYTES}"
                " bytes that fit into a znode: use fewer tasks, or shorter settings"
            )
    return configs
