"""Run a worker: its REST interface, its ZooKeeper sessions, its membership, and its assigned connectors and tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, Self

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.znodes.worker_contents import WorkerInfo
from kiel_groups.members.programs.generic_member import GenericMember
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.herder import Herder
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.execution.worker_requests import WorkerRequests
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.membership import WorkerContext
from kiel_groups.workers.plugins.plugin_registry import PluginRegistry
from kiel_groups.workers.rest.operations import WorkerServer
from kiel_groups.workers.runners.runner_interface import KafkaClients, check_members, probe_brokers
from kiel_groups.workers.session import WorkerSession
from kiel_groups.workers.values import Work
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import ProcessContext

log = logging.getLogger(__name__)


class Worker:
    """
    Runs a worker of a group, from ``start`` to ``close``, or during ``run``.

    Args:
        settings: The settings of the worker.
        plugins: Finds the classes of connectors; by default, the registry that the settings create.
        metrics: The metrics registry; by default, a new registry.
        on_stuck: Called when ``close`` waits only for plugins that do not stop, with the connectors and tasks of these
            plugins. To avoid the wait, a program can end its process here. Then the claims expire with the ZooKeeper
            session. By default, ``close`` waits.
        prepare: Called when the worker has a session, before it joins the group. So it can change connectors before
            their tasks start here.

    Raises:
        ConfigError: A setting is not legal, or the address of the REST interface is in use.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        plugins: PluginRegistry | None = None,
        metrics: Metrics | None = None,
        on_stuck: Callable[[Sequence[Work]], None] = lambda works: None,
        prepare: Callable[[WorkerRequests], Awaitable[None]] | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._on_stuck = on_stuck
        self._prepare = prepare
        self._settings = settings
        registry = plugins or settings.new_registry()
        self._server = WorkerServer(settings.rest)
        self._failed = asyncio.Event()
        self._failure: KielGroupsError | None = None
        self._has_joined = False
        self._closing: asyncio.Task[None] | None = None
        runtime = Runtime()
        process = _process(settings, self.metrics, runtime)
        context = WorkerContext(
            group=settings.group, url=self.url, metrics=self.metrics, runtime=runtime, refusals=process.refusals
        )
        self._plugins = WorkerPlugins(registry, runtime, references=settings.secrets)
        #: The tasks that warn of mistakes that do not prevent a start.
        self._checks: list[asyncio.Task[None]] = []
        clients = _clients(settings)
        self._herder = Herder(context, self._plugins, clients, settings.allocator)
        token_digest = settings.rest.token_digest(settings.group)
        self._session = WorkerSession(
            process,
            WorkerInfo(url=self.url, token_digest=token_digest, coordination=settings.coordination),
            self._herder.opened,
            self._herder.lost,
            self._fail,
        )
        self._member = GenericMember(
            self._herder.hooks,
            settings.group,
            settings.zookeeper if settings.coordination == "zookeeper" else None,
            brokers=settings.brokers if settings.coordination == "brokers" else None,
            coordination=settings.coordination,
            session_timeout_ms=settings.session_timeout_ms,
            debounce_quiet_ms=settings.debounce_quiet_ms,
            debounce_bound_ms=settings.debounce_bound_ms,
            debounce_initial_delay_ms=settings.debounce_initial_delay_ms,
            metrics=self.metrics,
            on_failure=self._fail,
        )
        self._member.refusals = process.refusals
        self._herder.hooks.member = self._member
        self._requests = WorkerRequests(self._herder, self._plugins, clients)

    @property
    def url(self) -> str:
        """The URL of the REST interface."""
        return self._server.url

    def kafka_metrics(self) -> dict[str, dict[str, float | None]]:
        """Return the metrics of the membership by the names of Kafka Connect; ``metrics`` has all counters."""
        return self._herder.hooks.kafka_metrics()

    async def start(self) -> None:
        """
        Begin to serve the REST interface, join the group, and wait for the first assignment.

        If the start fails or is cancelled, the worker is closed.

        Raises:
            NoZooKeeperError: No ZooKeeper server answered in time.
            NoBrokersError: Brokers coordinate the group, and no broker has named the coordinator in time.
            GroupConfigError: The group has members that are not workers.
            KielGroupsError: Another error that prevents the start.
        """
        try:
            log.info("group %s: joining by %s", self._settings.group, self._coordinators())
            if self._settings.coordination == "brokers":
                await check_members(self._settings.group, self._settings.brokers)
            await self._session.start()
            # Other workers may send requests to this one as soon as it is a member.
            self._server.start(self._requests, self.metrics)
            self._start_checks()
            if self._prepare is not None:
                await self._prepare(self._requests)
            await self._member.start()
        except BaseException:
            await self.close()
            raise
        self._has_joined = True
        log.info("the REST interface of this worker is at %s", self.url)

    def _start_checks(self) -> None:
        """Start background checks that log warnings about mistakes. The mistakes do not prevent a start."""
        loop, settings = asyncio.get_running_loop(), self._settings
        # The import of all installed connectors may take long.
        self._checks.append(loop.create_task(self._plugins.warn_of_problems()))
        if settings.coordination == "zookeeper":
            # The member itself asks brokers that coordinate the group, and cannot start without them.
            self._checks.append(loop.create_task(probe_brokers(settings.group, settings.brokers)))

    def _coordinators(self) -> str:
        """Return the servers that coordinate the group, in words, for a log line."""
        if self._settings.coordination == "zookeeper":
            return f"ZooKeeper at {self._settings.zookeeper}"
        return f"a coordinator among the brokers at {self._settings.brokers}"

    async def run(self) -> None:
        """
        Start the worker, and run it until the task is cancelled. Before it ends, this method closes the worker.

        Raises:
            KielGroupsError: The worker could not start, or has failed for good.
        """
        await self.start()
        try:
            await self.failed()
        finally:
            await self.close()

    async def failed(self) -> NoReturn:
        """Wait until the worker has failed for good, and raise the error."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _fail(self, error: KielGroupsError) -> None:
        self._failure = self._failure or error
        self._failed.set()

    async def close(self) -> None:
        """
        Leave the group, release all work, and close the session. Further calls wait for the first call.

        If work does not stop within its ``task.stop.timeout.ms``, the call continues to wait for the plugin, and logs a
        warning every ten seconds. The claim must not end while the plugin may still write to its system.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for check in self._checks:
            check.cancel()
        try:
            await self._herder.close(self._on_stuck)
        finally:
            await self._session.close()
            await self._server.close()
        if self._has_joined and self._failure is None:
            log.info("group %s: this worker has stopped its work in order", self._settings.group)


def _process(settings: WorkerSettings, metrics: Metrics, runtime: Runtime) -> ProcessContext:
    """Return the context of the worker's ZooKeeper sessions."""
    zookeeper = ZooKeeperConfig.parse(settings.zookeeper, session_timeout_ms=settings.session_timeout_ms)
    return ProcessContext(GroupConfig(group=settings.group), zookeeper, metrics, runtime)


def _clients(settings: WorkerSettings) -> KafkaClients:
    """
    Create the factory of the tasks' clients. The workers and the groups of sinks have the same coordination.

    Sinks have the worker's session timeout. So a killed worker's partitions are free as soon as its tasks are free. On
    ZooKeeper, the allocator is sticky, because a moving partition waits for the ``put`` of its present task, and then
    for the ``put`` of its next task.
    """
    consumer: dict[str, Any] = {"session_timeout_ms": settings.session_timeout_ms}
    if settings.coordination == "zookeeper":
        return KafkaClients(settings.brokers, settings.zookeeper, {**consumer, "partition_allocator": "sticky"})
    return KafkaClients(settings.brokers, None, {**consumer, "coordination": "brokers"})
