"""Return the problems, the tables and the JSON document of a worker group, for commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from kiel_groups.cli.terminal.rendering import plain_table
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.worker_contents import (
    WorkerInfo,
    WorkState,
    cause_of,
    workers_by_coordination,
    workers_by_token,
)
from kiel_groups.wording import counted, own_command
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import TaskId, Work


def worker_group_report(name: str, group: WorkerGroup) -> list[RenderableType]:
    """Return the report about a worker group: a summary, the problems, and tables of workers and of their work."""
    configuration = group.configuration
    counts = (
        counted(group.workers, "worker"),
        counted(configuration.connectors, "connector"),
        counted(configuration.sorted_tasks(), "task"),
    )
    summary = f"group {name}: {', '.join(counts)}, configuration offset {configuration.offset:,}"
    report: list[RenderableType] = [summary, *(f"problem: {problem}" for problem in worker_group_problems(group))]
    if group.workers:
        report.append(_workers_table(group))
    elif not configuration.connectors:
        report.append(f"no worker is alive; {own_command('workers', 'run', '--group', name)} starts one")
    if configuration.connectors:
        report.append(work_table(group))
    return report


def worker_group_document(name: str, group: WorkerGroup) -> dict[str, Any]:
    """Return a worker group as a JSON document. It omits the settings of connectors, because they may be secret."""
    works = group.configuration.works()
    return {
        "group": name,
        "problems": list(worker_group_problems(group)),
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


def worker_group_problems(group: WorkerGroup) -> Iterator[str]:
    """Yield a line for each problem of a worker group that an operator must solve."""
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
            # The rest of the work may continue.
            yield f"{kind} {work} reports: {status.problem}"


def _workers_table(group: WorkerGroup) -> Table:
    # The names of znodes are long, so they are last.
    rows = []
    for worker, data in sorted(group.workers.items()):
        owned = [work for work, owner in group.owners.items() if owner == worker]
        tasks = sum(isinstance(work, TaskId) for work in owned)
        rows.append((_info(data).address or "-", f"{len(owned) - tasks:,}", f"{tasks:,}", worker))
    return plain_table(("worker", "connectors", "tasks", "znode"), rows, right=("connectors", "tasks"))


def work_table(group: WorkerGroup, *, with_hosts: bool = False) -> Table:
    """
    Return a table of the connectors and tasks of a group, with their states and workers.

    With ``with_hosts``, workers that serve at 127.0.0.1, as others do on other machines, have the names of their hosts.
    """
    rows = []
    infos = {worker: _info(data) for worker, data in group.workers.items()}
    addresses = {worker: info.address for worker, info in infos.items()}
    if with_hosts:
        local = {worker: info for worker, info in infos.items() if info.host and info.address.startswith("127.")}
        addresses |= {worker: f"{info.host} ({info.address})" for worker, info in local.items()}
    for connector in group.configuration.sorted_connectors():
        works: list[Work] = [connector, *group.configuration.tasks_of(connector.connector)]
        for work in works:
            owner = group.owners.get(work, "-")
            rows.append((str(work), str(group.statuses[work].state), addresses.get(owner) or owner))
    return plain_table(("connector or task", "state", "worker"), rows)


def _info(data: bytes) -> WorkerInfo:
    """Decode the data of a worker's znode. For data that cannot be decoded, return a WorkerInfo with the URL ""."""
    with suppress(ProtocolError):
        return WorkerInfo.parse(data, "worker")
    return WorkerInfo(url="")
