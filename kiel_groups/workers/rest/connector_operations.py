"""Answer the requests about connectors."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from kiel_groups.errors import UnknownConnectorError
from kiel_groups.workers.rest.request_bodies import named_config, parse_config, parse_new_connector, parse_object
from kiel_groups.workers.rest.request_forwarding import Routed
from kiel_groups.workers.rest.rest_answers import Answer, config_answer, info_answer, status_answer
from kiel_groups.workers.rest.rest_calls import RestCall, RestSite
from kiel_groups.workers.rest.worker_control import ConnectorStatus
from kiel_groups.workers.rest_client.http_exchange import connector_path
from kiel_groups.workers.values.work_ids import ConnectorId, TaskId, Work
from kiel_groups.workers.values.work_status import WorkState

__all__ = [
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
]

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
