"""Write the answers of the REST interface, in the form of Kafka Connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

from kiel_groups.workers.rest.worker_control import ConnectorInfo, ConnectorStatus, InstalledPlugin, TaskInfo
from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work
from kiel_groups.workers.values.work_status import WorkStatus

__all__ = [
    "Answer",
    "ConfigMask",
    "config_answer",
    "info_answer",
    "plugins_answer",
    "status_answer",
    "task_status_answer",
    "tasks_answer",
]

#: Returns the settings of a connector, or of its tasks, with their secrets hidden. The first argument is the name of
#: the connector's class, or "".
ConfigMask: TypeAlias = Callable[[str, Sequence[Mapping[str, str]]], Awaitable[Sequence[Mapping[str, str]]]]

#: What Kafka Connect answers for a connector or a task that it is about to restart.
_RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class Answer:
    """
    An answer to a request.

    Args:
        document: The JSON document, or None for an answer without a body.
        status: The HTTP status.
        location: The path of what the request has created, or "".
    """

    document: Any = None
    status: int = HTTPStatus.OK
    location: str = ""


async def config_answer(config: Mapping[str, str], mask: ConfigMask) -> dict[str, str]:
    """Return the settings of a connector, without secrets."""
    (shown,) = await mask(config.get("connector.class", ""), [config])
    return dict(shown)


async def info_answer(info: ConnectorInfo, mask: ConfigMask) -> dict[str, Any]:
    """Return the answer about a connector's configuration, without secrets."""
    return {
        "name": info.name,
        "config": await config_answer(info.config, mask),
        "tasks": [_task_id(TaskId(info.name, number)) for number in range(info.tasks)],
        "type": info.kind,
    }


def status_answer(status: ConnectorStatus, restarting: Collection[Work] = ()) -> dict[str, Any]:
    """Return the answer about what a connector and its tasks do; ``restarting`` are those that are about to restart."""
    tasks = ((TaskId(status.name, number), task) for number, task in enumerate(status.tasks))
    return {
        "name": status.name,
        "connector": _status(status.connector, ConnectorId(status.name) in restarting),
        "tasks": [{"id": task_id.task, **_status(task, task_id in restarting)} for task_id, task in tasks],
        "type": status.kind,
    }


def task_status_answer(number: int, status: WorkStatus) -> dict[str, Any]:
    """Return the answer about what a task does."""
    return {"id": number, **_status(status)}


async def tasks_answer(tasks: Sequence[TaskInfo], connector_class: str, mask: ConfigMask) -> list[dict[str, Any]]:
    """Return the answer about the tasks of a connector, without secrets."""
    configs = await mask(connector_class, [info.config for info in tasks])
    return [{"id": _task_id(info.task), "config": dict(config)} for info, config in zip(tasks, configs, strict=True)]


def plugins_answer(plugins: Sequence[InstalledPlugin]) -> list[dict[str, Any]]:
    """Return the answer about the installed connectors."""
    return [{"class": plugin.name, "type": plugin.kind, "version": plugin.version} for plugin in plugins]


def _task_id(task: TaskId) -> dict[str, Any]:
    return {"connector": task.connector, "task": task.task}


def _status(status: WorkStatus, is_restarting: bool = False) -> dict[str, Any]:
    state = _RESTARTING if is_restarting else str(status.state)
    # Kafka Connect has no problems of work that has not failed; its clients ignore further fields.
    texts = {"trace": status.trace, "problem": status.problem}
    return {"state": state, "worker_id": status.worker} | {name: text for name, text in texts.items() if text}
