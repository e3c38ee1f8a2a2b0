"""Answer the requests about the worker itself, about tasks, and about the connectors that are installed."""

from __future__ import annotations

from kiel_groups.errors import ConfigError, UnknownConnectorError
from kiel_groups.wording import counted
from kiel_groups.workers.rest.connector_operations import restart_task_at_owner
from kiel_groups.workers.rest.request_bodies import parse_config, parse_object
from kiel_groups.workers.rest.rest_answers import Answer, plugins_answer, task_status_answer, tasks_answer
from kiel_groups.workers.rest.rest_calls import RestCall, RestSite
from kiel_groups.workers.values.work_ids import TaskId

__all__ = ["get_plugins", "get_task_status", "get_tasks", "get_worker", "restart_task", "validate_config"]


async def get_worker(site: RestSite, call: RestCall) -> Answer:
    """Answer with the version of the worker. Clients expect the other keys, too; Kafka 0.8 has no id of a cluster."""
    return Answer({"version": site.version, "commit": "unknown", "kafka_cluster_id": None})


async def get_tasks(site: RestSite, call: RestCall) -> Answer:
    """Answer with the settings of a connector's tasks."""
    name = call.arguments[0]
    config = await site.control.config(name)
    return Answer(await tasks_answer(await site.control.tasks(name), config.get("connector.class", ""), site.mask))


async def get_task_status(site: RestSite, call: RestCall) -> Answer:
    """Answer with what a task does."""
    task = _task(call)
    return Answer(task_status_answer(task.task, await site.control.task_status(*task)))


async def restart_task(site: RestSite, call: RestCall) -> Answer:
    """Restart a task."""
    task = _task(call)
    info = await site.control.connector_info(task.connector)
    if task.task >= info.tasks:
        tasks = counted(info.tasks, "task")
        raise UnknownConnectorError(f"connector {task.connector!r} has no task {task.task}; it has {tasks}")
    return await restart_task_at_owner(site, task, call)


async def get_plugins(site: RestSite, call: RestCall) -> Answer:
    """Answer with the connectors that are installed."""
    return Answer(plugins_answer(await site.control.plugins()))


async def validate_config(site: RestSite, call: RestCall) -> Answer:
    """Answer with what is wrong with the settings of a connector that does not have to exist."""
    plugin = call.arguments[0]
    config = parse_config(parse_object(call.body))
    given = config.get("connector.class") or plugin
    if _short_name(given) != _short_name(plugin):
        raise ConfigError(f"connector.class: {given!r:.100} given; expected {plugin!r:.100}, as the path has it")
    return Answer(dict(await site.control.validate(plugin, {**config, "connector.class": given})))


def _task(call: RestCall) -> TaskId:
    return TaskId(call.arguments[0], int(call.arguments[1]))


def _short_name(name: str) -> str:
    """Return the name of a class without its module and without ``Connector`` at its end."""
    return name.replace(":", ".").rpartition(".")[2].removesuffix("Connector")
