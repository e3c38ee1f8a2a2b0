"""Answer the requests to the REST interface, and list its routes, which are Kafka Connect's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn

from kiel_groups.errors import ConfigError, UnknownConnectorError
from kiel_groups.wording import counted
from kiel_groups.workers.rest.calls import (
    Answer,
    Operation,
    RestCall,
    RestError,
    RestSite,
    Routed,
    config_answer,
    info_answer,
    plugins_answer,
    status_answer,
    task_status_answer,
    tasks_answer,
)
from kiel_groups.workers.rest.client import connector_path
from kiel_groups.workers.rest.worker_control import ConnectorStatus
from kiel_groups.workers.values import ConnectorId, TaskId, Work, WorkState

__all__ = [
    "NewConnector",
    "named_config",
    "parse_config",
    "parse_new_connector",
    "parse_object",
    "change_config",
    "create_connector",
    "delete_connector",
    "get_config",
    "get_connector",
    "get_connector_status",
    "list_connectors",
    "patch_config",
    "pause_connector",
    "restart_connector",
    "restart_task_at_owner",
    "resume_connector",
    "get_plugins",
    "get_task_status",
    "get_tasks",
    "get_worker",
    "restart_task",
    "validate_config",
    "ROUTES",
    "Route",
]


#: The longest name of a setting, in characters.
_LONGEST_NAME = 500


class NewConnector(NamedTuple):
    """What a user wants to create."""

    name: str
    config: dict[str, str]


def parse_object(body: bytes) -> dict[str, Any]:
    """
    Return the JSON object of a body. Numbers are texts, as they are written: settings are texts.

    Raises:
        RestError: The body is no JSON, or no object.
    """
    try:
        # Settings are stored as UTF-8, which has no half of a surrogate pair.
        text = body.decode()
        found = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse, object_pairs_hook=_unique)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}"[:500]) from error
    if not isinstance(found, dict):
        raise RestError(HTTPStatus.BAD_REQUEST, "the body is JSON, but no object; expected settings by name")
    return found


def parse_config(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """
    Return settings as texts. Booleans and numbers become texts, as in Kafka Connect.

    Raises:
        ConfigError: A setting is a list or an object, or its name is none.
    """
    for name in settings:
        # Names of settings are in log lines and in the history of the configuration.
        if not (name and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise ConfigError(
                f"the name of a setting is {name!r:.100}; expected 1 to {_LONGEST_NAME} printable characters"
            )
    return {name: _text(name, value) for name, value in settings.items()}


def parse_new_connector(body: bytes) -> NewConnector:
    """
    Return the name and the settings of a new connector.

    Raises:
        RestError: The body is no JSON, or no object.
        ConfigError: The name or the settings are missing or not legal, or there is something else.
    """
    found = parse_object(body)
    if unknown := sorted(found.keys() - {"name", "config"}):
        raise ConfigError(f"the body has {unknown[0]!r:.100}; expected 'name' and 'config' only")
    name, config = found.get("name"), found.get("config")
    if not isinstance(config, dict):
        raise ConfigError("the body has no object 'config'; expected the settings of the connector there")
    if name is None:
        name = config.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("the body has no text 'name'; expected the name of the connector there")
    return NewConnector(name.strip(), named_config(name.strip(), config))


def named_config(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the settings of a connector with its name among them, and without those that are null.

    Raises:
        ConfigError: The settings have another name, or one of them is a list or an object.
    """
    config = {key: text for key, text in parse_config(settings).items() if text is not None}
    given = config.get("name", name)
    if given.strip() != name:
        raise ConfigError(f"name: {given!r:.100} given for connector {name!r:.100}; expected the same name or none")
    return {**config, "name": name}


def _text(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    kind = "a list" if isinstance(value, list) else "an object"
    raise ConfigError(f"{name:.100}: {kind} given; expected a text, a number, a boolean or null")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


#: The connectors whose details are read at the same time.
_MOST_AT_ONCE = 50


async def list_connectors(site: RestSite, call: RestCall) -> Answer:
    """Answer with the names of all connectors; with ``expand``, with their statuses or configurations by name."""
    names = list(await site.control.connectors())
    expansions = [part for part in ("status", "info") if part in call.query.get("expand", ())]
    if not expansions:
        return Answer(names)
    found: dict[str, Any] = {}
    for start in range(0, len(names), _MOST_AT_ONCE):
        some = names[start : start + _MOST_AT_ONCE]
        details = await asyncio.gather(*(_details(site, name, expansions) for name in some))
        found |= {name: detail for name, detail in zip(some, details, strict=True) if detail is not None}
    return Answer(found)


async def _details(site: RestSite, name: str, expansions: Collection[str]) -> dict[str, Any] | None:
    """Return the details of a connector, or None if it has been deleted meanwhile."""
    detail: dict[str, Any] = {}
    try:
        if "status" in expansions:
            detail["status"] = status_answer(await site.control.status(name))
        if "info" in expansions:
            detail["info"] = await info_answer(await site.control.connector_info(name), site.mask)
    except UnknownConnectorError:
        return None
    return detail


async def create_connector(site: RestSite, call: RestCall) -> Answer:
    """Create a connector."""
    given = parse_new_connector(call.body)

    async def act() -> Answer:
        info = await site.control.create(given.name, given.config)
        return Answer(await info_answer(info, site.mask), HTTPStatus.CREATED, connector_path(given.name))

    return await site.forwarding.at_leader(call.routed, act)


async def get_connector(site: RestSite, call: RestCall) -> Answer:
    """Answer with the configuration and the tasks of a connector."""
    return Answer(await info_answer(await site.control.connector_info(call.arguments[0]), site.mask))


async def delete_connector(site: RestSite, call: RestCall) -> Answer:
    """Delete a connector."""

    async def act() -> Answer:
        await site.control.delete(call.arguments[0])
        return Answer(status=HTTPStatus.NO_CONTENT)

    return await site.forwarding.at_leader(call.routed, act)


async def get_config(site: RestSite, call: RestCall) -> Answer:
    """Answer with the settings of a connector."""
    config = await site.control.config(call.arguments[0])
    return Answer(await config_answer(config, site.mask))


async def change_config(site: RestSite, call: RestCall) -> Answer:
    """Replace the settings of a connector, or create it."""
    name = call.arguments[0]
    config = named_config(name, parse_object(call.body))

    async def act() -> Answer:
        info, is_new = await site.control.put_config(name, config)
        document = await info_answer(info, site.mask)
        return Answer(document, HTTPStatus.CREATED, connector_path(name)) if is_new else Answer(document)

    return await site.forwarding.at_leader(call.routed, act)


async def patch_config(site: RestSite, call: RestCall) -> Answer:
    """Change some settings of a connector. The others stay as they are, and null removes one."""
    name = call.arguments[0]
    changes = parse_config(parse_object(call.body))
    named_config(name, changes)

    async def act() -> Answer:
        return Answer(await info_answer(await site.control.patch_config(name, changes), site.mask))

    return await site.forwarding.at_leader(call.routed, act)


async def get_connector_status(site: RestSite, call: RestCall) -> Answer:
    """Answer with what a connector and its tasks do."""
    return Answer(status_answer(await site.control.status(call.arguments[0])))


async def pause_connector(site: RestSite, call: RestCall) -> Answer:
    """Pause a connector and its tasks."""
    await site.control.pause(call.arguments[0])
    return Answer(status=HTTPStatus.ACCEPTED)


async def resume_connector(site: RestSite, call: RestCall) -> Answer:
    """Resume a connector and its tasks."""
    await site.control.resume(call.arguments[0])
    return Answer(status=HTTPStatus.ACCEPTED)


async def restart_connector(site: RestSite, call: RestCall) -> Answer:
    """
    Restart a connector, but not its tasks.

    With ``includeTasks``, the tasks restart, too. With ``onlyFailed``, only what has failed restarts. With either one,
    the answer has the status of all.
    """
    name = call.arguments[0]
    with_tasks, only_failed = call.is_set("includeTasks"), call.is_set("onlyFailed")
    if not (with_tasks or only_failed):
        await site.control.config(name)
        return await _restart_connector_at_owner(site, name, call)
    status = await site.control.status(name)
    works = _works_to_restart(status, with_tasks=with_tasks, only_failed=only_failed)
    for work in works:
        if isinstance(work, TaskId):
            await restart_task_at_owner(site, work, call)
        else:
            await _restart_connector_at_owner(site, name, call)
    return Answer(status_answer(status, works), HTTPStatus.ACCEPTED)


async def restart_task_at_owner(site: RestSite, work: TaskId, call: RestCall) -> Answer:
    """Restart a task that exists, here or at its owner."""

    async def act() -> Answer:
        await site.control.restart_task(*work)
        return Answer(status=HTTPStatus.NO_CONTENT)

    path = f"{connector_path(work.connector)}/tasks/{work.task}/restart"
    return await site.forwarding.at_owner(work, Routed("POST", path, call.hop), act)


async def _restart_connector_at_owner(site: RestSite, name: str, call: RestCall) -> Answer:
    async def act() -> Answer:
        await site.control.restart_connector(name)
        return Answer(status=HTTPStatus.NO_CONTENT)

    request = Routed("POST", f"{connector_path(name)}/restart", call.hop)
    return await site.forwarding.at_owner(ConnectorId(name), request, act)


def _works_to_restart(status: ConnectorStatus, *, with_tasks: bool, only_failed: bool) -> list[Work]:
    """Return the connector and those of its tasks that a request wants to restart."""
    states: dict[Work, WorkState] = {ConnectorId(status.name): status.connector.state}
    if with_tasks:
        states |= {TaskId(status.name, number): task.state for number, task in enumerate(status.tasks)}
    return [work for work, state in states.items() if not only_failed or state is WorkState.FAILED]


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


class Route(NamedTuple):
    """A pattern of paths, and the operation of each method."""

    pattern: str
    operations: Mapping[str, Operation]


_CONNECTOR: Final = "/connectors/([^/]+)"
_TASK: Final = f"{_CONNECTOR}/tasks/([0-9]{{1,9}})"

#: All routes. Clients may add a slash to each path.
ROUTES: Final = (
    Route("", {"GET": get_worker}),
    Route("/connectors", {"GET": list_connectors, "POST": create_connector}),
    Route(_CONNECTOR, {"GET": get_connector, "DELETE": delete_connector}),
    Route(
        f"{_CONNECTOR}/config",
        {"GET": get_config, "PUT": change_config, "PATCH": patch_config},
    ),
    Route(f"{_CONNECTOR}/status", {"GET": get_connector_status}),
    Route(f"{_CONNECTOR}/restart", {"POST": restart_connector}),
    Route(f"{_CONNECTOR}/pause", {"PUT": pause_connector}),
    Route(f"{_CONNECTOR}/resume", {"PUT": resume_connector}),
    Route(f"{_CONNECTOR}/tasks", {"GET": get_tasks}),
    Route(f"{_TASK}/status", {"GET": get_task_status}),
    Route(f"{_TASK}/restart", {"POST": restart_task}),
    Route("/connector-plugins", {"GET": get_plugins}),
    Route("/connector-plugins/([^/]+)/config/validate", {"PUT": validate_config}),
)
