"""The connectors and workers of a worker group for commands: how they are read and reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, urlencode

from kiel_groups.cli.parameters.options import WorkerAddress
from kiel_groups.errors import ConfigError, NoWorkerError, ProtocolError, TokenError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import WorkerInfo, workers_by_coordination, workers_by_token
from kiel_groups.wording import counted
from kiel_groups.workers.rest.client import WorkerClient, connector_path
from kiel_groups.workers.values import TaskId, Work, WorkState

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kiel_groups.workers.stores.worker_group_view import WorkerGroup

__all__ = [
    "ConfigDoubts",
    "WorkerSource",
    "cause_of",
    "worker_group_document",
    "worker_group_problems",
    "worker_group_report",
]


#: How long a command waits for an answer, in seconds. A worker gives up earlier.
_ANSWER_WAIT_S = 65.0


class ConfigDoubts(NamedTuple):
    """
    What a worker doubts in settings that it accepts.

    Args:
        warnings: Such as a setting that is not declared, or a topic that does not exist.
        mistyped: Settings that are probably misspelt, each with the declared one that is meant.
    """

    warnings: Sequence[str] = ()
    mistyped: Mapping[str, str] = {}


class WorkerSource:
    """
    A worker, asked in blocking calls. They raise the errors of ``WorkerClient.call``.

    Args:
        address: The worker.
    """

    def __init__(self, address: WorkerAddress) -> None:
        self._address = address

    def connectors(self) -> dict[str, Any]:
        """Return the status and the configuration of each connector, as REST answers them, by name."""
        found = self._ask("GET", "/connectors?expand=status&expand=info")
        if not isinstance(found, dict):
            raise ProtocolError(f"{self._address.url} is not the interface of a worker: it lists no connectors")
        return dict(sorted(found.items()))

    def create(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a connector, and return its configuration."""
        return self._object("POST", "/connectors", {"name": name, "config": config})

    def config(self, name: str) -> dict[str, Any]:
        """Return the settings of a connector, without secrets."""
        return self._object("GET", f"{connector_path(name)}/config")

    def put_config(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the settings of a connector that exists, and return its configuration."""
        return self._object("PUT", f"{connector_path(name)}/config", config)

    def patch_config(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change some settings of a connector that exists, of which None removes one; return its configuration."""
        return self._object("PATCH", f"{connector_path(name)}/config", changes)

    def doubts(self, config: Mapping[str, Any]) -> ConfigDoubts:
        """
        Return what a worker doubts in settings that it accepts.

        It is nothing if the settings cannot be checked, as those of a class that cannot be imported: the worker says
        why when they are stored.
        """
        path = f"/connector-plugins/{quote(str(config.get('connector.class', '')), safe='')}/config/validate"
        try:
            found = self._object("PUT", path, config)
        except (ConfigError, UnknownConnectorError):
            return ConfigDoubts()
        warnings, mistyped = found.get("warnings"), found.get("mistyped")
        return ConfigDoubts(
            list(map(str, warnings)) if isinstance(warnings, list) else [],
            mistyped if isinstance(mistyped, dict) else {},
        )

    def status(self, name: str) -> dict[str, Any]:
        """Return what a connector and its tasks do."""
        return self._object("GET", f"{connector_path(name)}/status")

    def delete(self, name: str) -> None:
        """Delete a connector."""
        self._ask("DELETE", connector_path(name))

    def pause(self, name: str) -> None:
        """Pause a connector and its tasks."""
        self._ask("PUT", f"{connector_path(name)}/pause")

    def resume(self, name: str) -> None:
        """Resume a connector and its tasks."""
        self._ask("PUT", f"{connector_path(name)}/resume")

    def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""
        self._ask("POST", f"{connector_path(name)}/tasks/{task}/restart")

    def restart(self, name: str, *, with_tasks: bool, only_failed: bool) -> None:
        """Restart a connector, and with ``with_tasks`` its tasks; with ``only_failed``, only what has failed."""
        query = urlencode({"includeTasks": str(with_tasks).lower(), "onlyFailed": str(only_failed).lower()})
        self._ask("POST", f"{connector_path(name)}/restart?{query}")

    def plugins(self) -> list[dict[str, Any]]:
        """Return the connectors that are installed at the worker."""
        return cast("list[dict[str, Any]]", self._ask("GET", "/connector-plugins"))

    def _object(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> dict[str, Any]:
        found = self._ask(method, path, document)
        if not isinstance(found, dict):
            raise ProtocolError(f"{self._address.url} is not the interface of a worker: it answers with no object")
        return found

    def _ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        async def ask() -> Any:
            async with WorkerClient(*self._address, timeout_s=_ANSWER_WAIT_S) as client:
                return await client.call(method, path, document)

        try:
            return asyncio.run(ask())
        except TokenError as error:
            raise TokenError(self._token_advice()) from error
        except NoWorkerError as error:
            hint = "'kiel-groups workers run' starts a worker, and '--url' names another one"
            raise NoWorkerError(f"{error}; {hint}") from error

    def _token_advice(self) -> str:
        if self._address.token:
            return f"the worker at {self._address.url} has another token than the file of '--token-file'"
        return (
            f"the worker at {self._address.url} asks for a token; give the file with it by '--token-file', or by"
            " KIEL_GROUPS_TOKEN_FILE in the environment"
        )


def cause_of(trace: str) -> str:
    """Return the line of a trace that names the error: the first one after the calls, or the only one."""
    lines = trace.rstrip().splitlines() or ["for an unknown reason"]
    calls = [number for number, line in enumerate(lines) if line.startswith(("  ", "Traceback"))]
    after_calls = 1 + max(calls, default=-1)
    return (lines[after_calls:] or lines[-1:])[0].removeprefix("kiel_groups.errors.")


def worker_group_problems(group: WorkerGroup) -> list[str]:
    """Return what needs an operator, one line each."""
    return list(_problems(group))


def worker_group_report(name: str, group: WorkerGroup) -> list[RenderableType]:
    """Return the problems and tables about a group."""
    configuration = group.configuration
    counts = (
        counted(group.workers, "worker"),
        counted(configuration.connectors, "connector"),
        counted(configuration.sorted_tasks(), "task"),
    )
    summary = f"group {name}: {', '.join(counts)}, configuration offset {configuration.offset:,}"
    report: list[RenderableType] = [summary, *(f"problem: {problem}" for problem in _problems(group))]
    if group.workers:
        report.append(_workers_table(group))
    elif not configuration.connectors:
        report.append(f"no worker is alive; 'kiel-groups workers run --group {name}' starts one")
    if configuration.connectors:
        report.append(_work_table(group))
    return report


def worker_group_document(name: str, group: WorkerGroup) -> dict[str, Any]:
    """Return a group as a JSON document, without the settings of connectors, which have secrets."""
    works = group.configuration.works()
    return {
        "group": name,
        "problems": worker_group_problems(group),
        "offset": group.configuration.offset,
        "workers": [{"worker": worker, "url": _info(data).url} for worker, data in sorted(group.workers.items())],
        "connectors": [
            {
                "name": connector,
                "target": str(entry.target),
                "problem": entry.problem,
                "tasks": None if entry.tasks is None else len(entry.tasks),
            }
            for connector, entry in sorted(group.configuration.connectors.items())
        ],
        "work": [
            {
                "connector": work.connector,
                "task": work.task if isinstance(work, TaskId) else None,
                "state": str(group.statuses[work].state),
                "owner": group.owners.get(work),
                "rest": group.statuses[work].worker,
                "generation": group.statuses[work].generation,
                "trace": group.statuses[work].trace,
                "problem": group.statuses[work].problem,
            }
            for work in works
        ],
        "history": [
            {
                "offset": change.offset,
                "what": change.what,
                "connector": change.connector,
                "worker": change.worker,
                "at_ms": change.at_ms,
                "settings": list(change.keys),
            }
            for change in group.history
        ],
    }


def _problems(group: WorkerGroup) -> Iterator[str]:
    if group.configuration.connectors and not group.workers:
        yield "no worker is alive, so no connector runs"
    if len(same_token := workers_by_token(map(_info, group.workers.values()))) > 1:
        sets = " / ".join(", ".join(addresses) for addresses in same_token)
        yield f"workers have different tokens, so requests that one forwards to another fail: {sets}"
    if len(found := workers_by_coordination(map(_info, group.workers.values()))) > 1:
        sets = " / ".join(f"{coordination} ({', '.join(addresses)})" for coordination, addresses in found.items())
        yield f"workers have different coordinations, so neither kind knows of the other's assignments: {sets}"
    for connector, entry in sorted(group.configuration.connectors.items()):
        if entry.problem:
            yield f"connector {connector}: {entry.problem}"
    for work in group.configuration.works():
        status, kind = group.statuses[work], "task" if isinstance(work, TaskId) else "connector"
        if status.state is WorkState.FAILED:
            yield f"{kind} {work} has failed: {cause_of(status.trace)}"
        elif status.state is WorkState.UNASSIGNED and (owner := group.owners.get(work)) is not None:
            address = _info(group.workers.get(owner, b"")).address or owner
            why = f": {status.problem}" if status.problem else "; see the log of that worker"
            yield f"{kind} {work} is not running yet on {address}{why}"
        elif status.state is WorkState.UNASSIGNED and group.workers:
            yield f"{kind} {work} does not run: it has no worker at the moment"
        elif status.problem:
            yield f"{kind} {work} makes no progress: {status.problem}"


def _workers_table(group: WorkerGroup) -> Table:
    from kiel_groups.cli.terminal.rendering import plain_table

    # The names of znodes are long, so they are last.
    table = plain_table("worker", "connectors", "tasks", "znode", right=("connectors", "tasks"))
    for worker, data in sorted(group.workers.items()):
        owned = [work for work, owner in group.owners.items() if owner == worker]
        tasks = sum(isinstance(work, TaskId) for work in owned)
        table.add_row(_info(data).address or "-", f"{len(owned) - tasks:,}", f"{tasks:,}", worker)
    return table


def _work_table(group: WorkerGroup) -> Table:
    from kiel_groups.cli.terminal.rendering import plain_table

    table = plain_table("connector or task", "state", "worker")
    addresses = {worker: _info(data).address for worker, data in group.workers.items()}
    for connector in group.configuration.sorted_connectors():
        works: list[Work] = [connector, *group.configuration.tasks_of(connector.connector)]
        for work in works:
            owner = group.owners.get(work, "-")
            table.add_row(str(work), str(group.statuses[work].state), addresses.get(owner) or owner)
    return table


def _info(data: bytes) -> WorkerInfo:
    """Return what a worker's znode has. The URL is "" if there is none."""
    with suppress(ProtocolError):
        return WorkerInfo.parse(data, "worker")
    return WorkerInfo(url="")
