"""
Carry out users' requests to the REST interface of a worker: create, change, pause, restart, delete or describe.

All methods run on the worker's event loop, and raise errors of ``kiel_groups.errors``. The REST interface answers with
the statuses of Kafka Connect. Every method may raise these errors:

- ``UnknownConnectorError`` (404): there is no such connector, or the connector has no such task.
- ``RebalanceError`` (409): the worker cannot carry out the request before the rebalance is over, or another worker has
  to carry out the request.
- another retriable error, such as ``SessionLostError`` or ``NoZooKeeperError`` (503).
- any other error (500).

Returned configurations contain secrets. The REST interface hides the secrets by ``masked``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypeAlias

from kiel_groups.errors import ConfigError, KielGroupsError, RebalanceError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import TargetState, WorkStatus
from kiel_groups.wording import counted
from kiel_groups.workers.execution.herder import Herder
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins, class_name
from kiel_groups.workers.plugins.connector_checks import with_secrets
from kiel_groups.workers.plugins.interfaces import SinkConnector
from kiel_groups.workers.plugins.plugin_registry import ConnectorPlugin
from kiel_groups.workers.runners.runner_interface import KafkaClients, unknown_topics
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry, ConnectorId, TaskId, Work

log = logging.getLogger(__name__)

#: The most characters of a log line about a request, which may have ten thousand settings.
_LONGEST_LINE = 1_000


#: ``unknown`` if the connector's class cannot be imported or used.
ConnectorKind: TypeAlias = Literal["source", "sink", "unknown"]


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """
    A connector and its configuration.

    Args:
        name: The name of the connector.
        config: The settings of the connector, with ``name``.
        tasks: The number of tasks; 0 if the connector has not configured its tasks yet.
        kind: Whether the connector is a source or a sink.
    """

    name: str
    config: Mapping[str, str]
    tasks: int = 0
    kind: ConnectorKind = "unknown"


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """
    The statuses of a connector and its tasks.

    Args:
        name: The name of the connector.
        connector: The status of the connector itself.
        tasks: The status of each task, by its number.
        kind: Whether the connector is a source or a sink.
    """

    name: str
    connector: WorkStatus
    tasks: Sequence[WorkStatus] = ()
    kind: ConnectorKind = "unknown"


class _SettingsChangedError(Exception):
    """The stored settings were changed during the check of new settings, such that the new settings differ now."""


class WorkerRequests:
    """
    Carries out the requests to one worker's REST interface.

    The REST interface calls ``create``, ``put_config``, ``patch_config`` and ``delete`` on the leader only, as in Kafka
    Connect, and ``restart`` on the owner only. The REST interface finds the leader by ``leader_url`` and the owner by
    ``owner_url``, and forwards requests to these workers. Other callers may call all methods but ``restart`` on any
    worker, because each change is one transaction that requires the state that it is based on.

    Args:
        herder: Runs the work of the worker.
        plugins: Finds the classes of connectors, and checks settings.
        clients: Knows the topics of the brokers.
    """

    def __init__(self, herder: Herder, plugins: WorkerPlugins, clients: KafkaClients) -> None:
        self._clients = clients
        self._herder = herder
        self._plugins = plugins
        #: The offset of the last change that this object has written. Later reads contain its own changes.
        self._changed_offset = 0

    # ------------------------------------------------------------------ the group

    def is_rebalancing(self) -> bool:
        """Return whether this worker has no valid assignment, or has to join again."""
        return self._herder.hooks.is_rebalancing

    def leader_url(self) -> str | None:
        """Return the URL of the leader's REST interface, even if this worker leads, or None if it is unknown."""
        assignment = self._herder.hooks.assignment
        return None if assignment is None or self.is_rebalancing() else assignment.leader_url

    def owner_url(self, work: Work) -> str | None:
        """
        Return the REST URL of the worker that has a connector or a task, or None if the URL is unknown.

        If this worker has the work, return its own URL. URLs of other owners are known only if this worker leads.
        """
        if self._herder.running(work) is not None:
            return self._herder.context.url
        return self._herder.hooks.owner_url(work)

    async def is_registered(self, url: str) -> bool:
        """
        Return whether a worker of the group has registered this URL in ZooKeeper.

        Requests contain the token, so they must go only to workers. Members of the group supply ``leader_url`` and
        ``owner_url``. If brokers coordinate the group, every client of the brokers can become a member.
        """
        return any(info.url.rstrip("/") == url.rstrip("/") for info in await self._herder.role.workers())

    # ------------------------------------------------------------------ reads

    async def connectors(self) -> Sequence[str]:
        """Return the names of all connectors, sorted."""
        return sorted((await self._config()).connectors)

    async def connector_info(self, name: str) -> ConnectorInfo:
        """Return a connector and its configuration."""
        return await self._info(name, await self._entry(name))

    async def config(self, name: str) -> Mapping[str, str]:
        """Return the settings of a connector, with secrets."""
        entry = await self._entry(name)
        # The class declares which settings are secrets.
        await self._kind(entry.config)
        return dict(entry.config)

    async def status(self, name: str) -> ConnectorStatus:
        """Return the statuses of a connector and its tasks."""
        entry = await self._entry(name)
        works: list[Work] = [ConnectorId(name), *(TaskId(name, number) for number in range(len(entry.tasks or ())))]
        found = await self._herder.role.statuses.read(works)
        statuses = [found[work] for work in works]
        return ConnectorStatus(name, statuses[0], statuses[1:], await self._kind(entry.config))

    async def tasks(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the settings of a connector's tasks, by number."""
        return (await self._entry(name)).tasks or ()

    async def task_status(self, name: str, task: int) -> WorkStatus:
        """Return the status of a task; raise UnknownConnectorError if the connector or the task does not exist."""
        entry = await self._entry(name)
        if task not in range(len(entry.tasks or ())):
            tasks = counted(len(entry.tasks or ()), "task")
            raise UnknownConnectorError(f"connector {name!r} has no task {task}; it has {tasks}")
        work = TaskId(name, task)
        return (await self._herder.role.statuses.read([work]))[work]

    async def plugins(self) -> Sequence[ConnectorPlugin]:
        """Return the installed connectors that this worker can import, sorted by name."""
        return await self._plugins.installed()

    async def masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """
        Return settings with ``[hidden]`` in place of secrets.

        Args:
            connector_class: The name of the connector's class, or "".
            configs: The settings of the connector, or of its tasks.
        """
        return await self._plugins.masked(connector_class, configs)

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Any]:
        """
        Check settings without creating a connector.

        Args:
            plugin: The full or short name of the connector's class.
            config: The settings, even if some are missing or None.

        Returns:
            The answer in the form of Kafka Connect: ``name``, ``error_count``, ``groups``, ``configs``.

        Raises:
            ConfigError: There is no such class, the class is not allowed, or the check takes too long (400).
        """
        report, topics = await self._plugins.report(plugin, config)
        warnings = [*report.get("warnings", ()), *await self._topic_warnings(topics)]
        return {**report, "warnings": warnings} if warnings else report

    async def _topic_warnings(self, topics: Mapping[str, Sequence[str]]) -> list[str]:
        """
        Return a warning for each setting with topics that no broker knows: a task waits until such topics exist.

        If no broker answers, return a warning that says so.
        """
        if not topics:
            return []
        try:
            # Settings may name a hundred thousand topics.
            missing = set(await self._clients.missing_topics({topic for named in topics.values() for topic in named}))
        except KielGroupsError as error:
            return [f"whether the topics exist is unknown: {error}"]
        texts = {name: unknown_topics([each for each in named if each in missing]) for name, named in topics.items()}
        return [f"{name}: {text}" for name, text in texts.items() if text]

    # ------------------------------------------------------------------ changes

    async def create(self, name: str, config: Mapping[str, str]) -> ConnectorInfo:
        """
        Create a connector.

        Args:
            name: The name of the connector.
            config: The settings of the connector. The setting ``name`` is replaced by the argument.

        Raises:
            ConnectorExistsError: A connector of this name exists (409).
            ConfigError: A setting or the name is not legal (400). The text has all errors.
        """
        whole = with_secrets({**config, "name": name}, {})
        await self._check(name, whole)
        await self._written(await self._herder.role.config.put_connector(name, whole, is_new=True))
        return await self._info(name, ConnectorEntry(whole))

    async def put_config(self, name: str, config: Mapping[str, str]) -> tuple[ConnectorInfo, bool]:
        """
        Create a connector, or replace its settings.

        A setting keeps its stored text if its new text is ``[hidden]``, or equals what answers show in place of the
        stored text. So users may write back the settings that they have read.

        Returns:
            The connector, and whether it was created.

        Raises:
            ConfigError: As ``create``.
        """
        given = {**config, "name": name}
        return await self._configure(name, lambda stored: with_secrets(given, stored or {}))

    async def patch_config(self, name: str, changes: Mapping[str, str | None]) -> ConnectorInfo:
        """
        Change some settings of a connector, and keep changes of other settings that users make at the same time.

        Args:
            name: The name of the connector.
            changes: The new texts. None removes a setting, and ``[hidden]`` keeps its text, as in ``put_config``.

        Raises:
            ConfigError: As ``create``.
        """
        removed = {key for key, text in changes.items() if text is None}
        given = {key: text for key, text in changes.items() if text is not None}

        def patched(stored: Mapping[str, str] | None) -> dict[str, str]:
            if stored is None:
                raise UnknownConnectorError(f"connector {name!r} does not exist")
            kept = {key: text for key, text in stored.items() if key not in removed}
            return {**kept, **with_secrets(given, stored), "name": name}

        info, _ = await self._configure(name, patched)
        return info

    async def _configure(
        self, name: str, settings_of: Callable[[Mapping[str, str] | None], dict[str, str]]
    ) -> tuple[ConnectorInfo, bool]:
        """
        Check and store new settings. Return the connector, and whether the connector was created.

        Args:
            name: The connector.
            settings_of: Called with the stored settings, or None for a new connector. The function returns the new
                settings, and is called again if the stored settings change before the write.
        """
        is_new = False

        def check_stored(stored: Mapping[str, str] | None) -> None:
            nonlocal is_new
            is_new = stored is None
            if stored != (former.config if former else None) and settings_of(stored) != whole:
                raise _SettingsChangedError

        while True:
            former = (await self._herder.snapshot(current=True)).connectors.get(name)
            stored = None if former is None else former.config
            # A megabyte of settings takes half a second to be searched for hidden secrets.
            whole = await self._herder.context.runtime.in_thread(partial(settings_of, stored), "settings")
            await self._check(name, whole)
            # The check may take half a minute. It must not undo what another client has stored meanwhile.
            with suppress(_SettingsChangedError):
                await self._written(await self._herder.role.config.put_connector(name, whole, check=check_stored))
                break
        entry = (await self._config()).connectors.get(name)
        # Another client may have changed or deleted the connector since: the answer describes what was written.
        return await self._info(name, ConnectorEntry(whole, tasks=entry.tasks if entry else None)), is_new

    async def delete(self, name: str) -> None:
        """Delete a connector, its tasks and their statuses. Source offsets stay."""
        await self._made(name, self._herder.role.config.delete_connector(name))

    async def pause(self, name: str) -> None:
        """Pause a connector and its tasks, without waiting until they have paused."""
        await self._made(name, self._herder.role.config.set_target_state(name, TargetState.PAUSED))

    async def resume(self, name: str) -> None:
        """Resume a paused connector and its tasks, without waiting until they run."""
        await self._made(name, self._herder.role.config.set_target_state(name, TargetState.STARTED))

    async def restart(self, work: Work) -> None:
        """
        Restart a task, or a connector without its tasks.

        Raises:
            RebalanceError: The work does not run on this worker (409).
        """
        supervisor = self._herder.running(work)
        if supervisor is None:
            raise RebalanceError(f"{work} does not run on this worker; it may have moved: try again")
        supervisor.restart()

    # ------------------------------------------------------------------ helpers

    async def _made(self, name: str, change: Awaitable[int]) -> None:
        """Wait for the change of a connector, and record it as ``_written`` does."""
        try:
            offset = await change
        except UnknownConnectorError:
            await self._entry(name)  # Its error names the nearest connector.
            raise
        await self._written(offset)

    async def _written(self, offset: int) -> None:
        """
        Record the configuration offset of a change that this worker has written, and read the configuration at once.

        So the herder applies the change sooner, and later requests to this worker see the change.
        """
        self._changed_offset = max(self._changed_offset, offset)
        await self._config()

    async def _config(self) -> ConfigSnapshot:
        """Return a configuration that contains all changes that this worker has confirmed to users."""
        known = self._herder.config
        if known is not None and known.offset >= self._changed_offset:
            # The role raises an error if there is no session at the moment.
            _ = self._herder.role
            return known
        return await self._herder.snapshot(current=True)

    async def _entry(self, name: str) -> ConnectorEntry:
        entry = (await self._config()).connectors.get(name)
        if entry is None:
            # Another worker may have created it a moment ago, for a client that now asks this one.
            known = (await self._herder.snapshot(current=True)).connectors
            entry = known.get(name)
        if entry is None:
            near = get_close_matches(name[:100], known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownConnectorError(f"connector {name!r} does not exist{hint}")
        return entry

    async def _check(self, name: str, config: Mapping[str, str]) -> None:
        """Raise ConfigError with all errors of a configuration, and log its warnings."""
        checked = await self._plugins.checked(config)
        _ = checked.settings
        if checked.warnings:
            log.warning("connector %s: %s", name, "; ".join(checked.warnings)[:_LONGEST_LINE])

    async def _info(self, name: str, entry: ConnectorEntry) -> ConnectorInfo:
        kind = await self._kind(entry.config)
        return ConnectorInfo(name, {**entry.config, "name": name}, len(entry.tasks or ()), kind)

    async def _kind(self, config: Mapping[str, str]) -> ConnectorKind:
        try:
            found = await self._plugins.resolve(class_name(config))
        except ConfigError:
            return "unknown"
        return "sink" if issubclass(found, SinkConnector) else "source"
