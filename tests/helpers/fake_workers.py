"""Worker groups in memory, whose workers serve the real REST interface over HTTP on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kiel_groups.errors import ConfigError, ConnectorExistsError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.metrics import Metrics
from kiel_groups.rest.settings import RestSettings
from kiel_groups.secret_texts import HIDDEN, without_secrets
from kiel_groups.workers.execution.worker_requests import ConnectorInfo, ConnectorStatus
from kiel_groups.workers.plugins.plugin_registry import ConnectorPlugin
from kiel_groups.workers.rest.operations import WorkerServer
from kiel_groups.workers.values import ConnectorId, TaskId, Work

__all__ = ["FakeGroup", "FakeWorker", "serving", "serving_on_thread"]

#: The class that the fake workers have installed.
PLUGIN = "files.FileStreamSourceConnector"


@dataclass
class FakeGroup:
    """
    What the workers of a group share.

    Args:
        configs: The settings of each connector.
        states: The state of each connector and task. Connectors that are created have ``tasks.max`` running tasks.
        leader: The URL of the leader.
        owners: The URL of the owner of work; all other work is the leader's.
        done: What workers have done: the URL of the worker, and what.
        has_plugins: Whether a connector is installed.
        registered: The URLs of workers in ZooKeeper; None for all URLs.
    """

    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    states: dict[Work, WorkStatus] = field(default_factory=dict)
    leader: str | None = None
    owners: dict[Work, str | None] = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    has_plugins: bool = True
    registered: set[str] | None = None

    def add(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, or change its settings."""
        self.configs[name] = dict(config)
        works: list[Work] = [ConnectorId(name)]
        works += [TaskId(name, number) for number in range(int(config.get("tasks.max", "1")))]
        self.states = {work: status for work, status in self.states.items() if work.connector != name}
        self.states |= dict.fromkeys(works, WorkStatus(WorkState.RUNNING, "10.0.0.1:8083"))


class FakeWorker:
    """
    One worker of a group.

    Args:
        group: The group.
        error: What every method raises, if it is not None.
    """

    def __init__(self, group: FakeGroup, error: Exception | None = None) -> None:
        self.group = group
        self.error = error
        self.url = ""
        self.rebalancing = False
        #: If it is not None, changes wait for it.
        self.gate: asyncio.Event | None = None
        #: The leader as this worker sees it, if that is another one than the group's.
        self.believed_leader: str | None = None

    def is_rebalancing(self) -> bool:
        return self.rebalancing

    def leader_url(self) -> str | None:
        return self.believed_leader or self.group.leader

    def owner_url(self, work: Work) -> str | None:
        owner = self.group.owners.get(work, self.group.leader)
        return owner if self.group.leader == self.url or owner == self.url else None

    async def is_registered(self, url: str) -> bool:
        self._fail()
        return self.group.registered is None or url in self.group.registered

    async def connectors(self) -> Sequence[str]:
        self._fail()
        return sorted(self.group.configs)

    async def connector_info(self, name: str) -> ConnectorInfo:
        self._check(name)
        tasks = sum(isinstance(work, TaskId) for work in self.group.states if work.connector == name)
        return ConnectorInfo(name, self.group.configs[name], tasks, "source")

    async def config(self, name: str) -> Mapping[str, str]:
        self._check(name)
        return self.group.configs[name]

    async def status(self, name: str) -> ConnectorStatus:
        self._check(name)
        tasks = [status for work, status in self.group.states.items() if isinstance(work, TaskId) and work[0] == name]
        return ConnectorStatus(name, self.group.states[ConnectorId(name)], tasks, "source")

    async def create(self, name: str, config: Mapping[str, str]) -> ConnectorInfo:
        self._fail()
        if name in self.group.configs:
            raise ConnectorExistsError(f"connector {name!r} already exists")
        return (await self.put_config(name, config))[0]

    async def put_config(self, name: str, config: Mapping[str, str]) -> tuple[ConnectorInfo, bool]:
        self._fail()
        if "connector.class" not in config:
            raise ConfigError("connector.class: required, but not given")
        if self.gate is not None:
            await self.gate.wait()
        is_new = name not in self.group.configs
        self.group.add(name, config)
        self._note(f"put {name}")
        return await self.connector_info(name), is_new

    async def patch_config(self, name: str, changes: Mapping[str, str | None]) -> ConnectorInfo:
        self._check(name)
        changed = {**self.group.configs[name], **changes}
        self.group.add(name, {key: text for key, text in changed.items() if text is not None})
        self._note(f"patch {name}")
        return await self.connector_info(name)

    async def delete(self, name: str) -> None:
        self._check(name)
        del self.group.configs[name]
        self._note(f"delete {name}")

    async def pause(self, name: str) -> None:
        self._check(name)
        self._note(f"pause {name}")

    async def resume(self, name: str) -> None:
        self._check(name)
        self._note(f"resume {name}")

    async def restart(self, work: Work) -> None:
        self._check(work.connector)
        self._note(f"restart {work}")

    async def tasks(self, name: str) -> Sequence[Mapping[str, str]]:
        info = await self.connector_info(name)
        return [{**info.config, "task": str(number)} for number in range(info.tasks)]

    async def task_status(self, name: str, task: int) -> WorkStatus:
        self._check(name)
        if TaskId(name, task) not in self.group.states:
            raise UnknownConnectorError(f"connector {name!r} has no task {task}")
        return self.group.states[TaskId(name, task)]

    async def plugins(self) -> Sequence[ConnectorPlugin]:
        self._fail()
        return [ConnectorPlugin(PLUGIN, "FileStreamSource", "source", "1.0")] if self.group.has_plugins else []

    async def masked(self, connector_class: str, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """Hide the settings that have ``password`` or ``token`` in their names, and secrets in all others."""
        return [
            {
                name: HIDDEN if "password" in name or "token" in name else without_secrets(text)
                for name, text in config.items()
            }
            for config in configs
        ]

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Any]:
        self._fail()
        if "FileStreamSource" not in plugin:
            raise ConfigError(f"there is no connector {plugin!r}")
        warnings = [f"{name}: there is no such setting" for name in config if name.startswith("extra")]
        mistyped = {"flie": "file"} if "flie" in config else {}
        warnings += [f"{name}: there is no such setting; did you mean {near!r}?" for name, near in mistyped.items()]
        configs = [
            {
                "definition": {"name": name, "type": "PASSWORD" if "password" in name else "STRING"},
                "value": {"name": name, "value": text, "errors": [f"{name}: '!' given"] if text == "!" else []},
            }
            for name, text in config.items()
            if not name.startswith("extra") and name not in mistyped
        ]
        report = {"name": plugin, "error_count": 0, "groups": [], "configs": configs}
        return {**report, "warnings": warnings, "mistyped": mistyped}

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def _check(self, name: str) -> None:
        self._fail()
        if name not in self.group.configs:
            raise UnknownConnectorError(f"connector {name!r} does not exist")

    def _note(self, what: str) -> None:
        self.group.done.append((self.url, what))


@asynccontextmanager
async def serving(*workers: FakeWorker, **settings: Any) -> AsyncIterator[None]:
    """Serve the REST interfaces of workers of one group, whose first one leads."""
    servers = []
    try:
        for worker in workers:
            servers.append(WorkerServer(RestSettings(**{"port": 0, **settings}), "1.2.3"))
            worker.url = servers[-1].url
            worker.group.leader = worker.group.leader or worker.url
            servers[-1].start(worker, Metrics())  # type: ignore[arg-type]
        yield
    finally:
        for server in servers:
            await server.close()


@contextmanager
def serving_on_thread(*workers: FakeWorker, **settings: Any) -> Iterator[None]:
    """Serve the REST interfaces on a loop of another thread, for clients that block."""
    started = threading.Event()
    end: list[Callable[[], object]] = []

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with serving(*workers, **settings):
            end.append(lambda: loop.call_soon_threadsafe(ended.set))
            started.set()
            await ended.wait()

    def run(main: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(main())  # type: ignore[arg-type]

    thread = threading.Thread(target=run, args=(serve,))
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        for each in end:
            each()
        thread.join()
