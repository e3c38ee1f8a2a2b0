"""
Answer a worker's REST requests, or forward them to the leader or to the owner of a connector or task.

The routes are the same as in Kafka Connect. A worker that may not answer a request itself knows only the leader. The
leader knows all owners. So a request is forwarded at most twice. The query of a forwarded request has ``forward=true``
after the first forward, and ``forward=false`` after the second, as in Kafka Connect. A worker that gets
``forward=false`` and may not answer refuses the request, because its view of the group differs from the leader's.

A forwarded request contains the token. So the request goes only to a URL that a worker has registered in ZooKeeper, and
never to the target of a redirect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from importlib import metadata
from typing import Any, Final

from kiel_groups.errors import ConfigError, NoWorkerError, ProtocolError, RebalanceError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus, sample_documents
from kiel_groups.metrics import Metrics
from kiel_groups.rest.calls import RETRY_AFTER_S, Answer, RestCall, RestError, Route, parse_object
from kiel_groups.rest.metrics_text import metrics_route
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.wording import counted
from kiel_groups.workers.execution.worker_requests import ConnectorInfo, ConnectorStatus, WorkerRequests
from kiel_groups.workers.rest.client import HttpExchange, connector_path
from kiel_groups.workers.values import ConnectorId, TaskId, Work

log = logging.getLogger(__name__)


#: The longest name of a setting, in characters.
_LONGEST_NAME = 500


def _parse_config(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """
    Return settings as texts, or None for null. Booleans and numbers become texts, as in Kafka Connect.

    Raises:
        ConfigError: A setting is a list or an object, or its name is not legal.
    """
    for name in settings:
        # Names of settings are in log lines and in the history of the configuration.
        if not (name and name.isprintable() and len(name) <= _LONGEST_NAME):
            raise ConfigError(
                f"the name of a setting is {name!r:.100}; expected 1 to {_LONGEST_NAME} printable characters"
            )
    return {name: _text(name, value) for name, value in settings.items()}


def parse_new_connector(body: bytes) -> tuple[str, dict[str, str]]:
    """
    Return the name and the settings of a new connector from the body of a request.

    Raises:
        RestError: The body is not JSON, or not an object.
        ConfigError: The name or the settings are missing or not legal, or the body has other keys.
    """
    found = parse_object(body, numbers_as_texts=True)
    if unknown := sorted(found.keys() - {"name", "config"}):
        raise ConfigError(f"the body has {unknown[0]!r:.100}; expected 'name' and 'config' only")
    name, config = found.get("name"), found.get("config")
    if not isinstance(config, dict):
        raise ConfigError("the body has no object 'config'; expected the settings of the connector there")
    if name is None:
        name = config.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("the body has no text 'name'; expected the name of the connector there")
    return name.strip(), _named_config(name.strip(), config)


def _named_config(name: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the settings of a connector. Add the connector's name, and omit settings that are null.

    Raises:
        ConfigError: The settings have another name, the name of a setting is not legal, or a setting is a list or an
            object.
    """
    config = {key: text for key, text in _parse_config(settings).items() if text is not None}
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


_CONNECTOR: Final = "/connectors/([^/]+)"
_TASK: Final = f"{_CONNECTOR}/tasks/([0-9]{{1,9}})"

#: The connectors whose details are read at the same time.
_MOST_AT_ONCE = 50

#: What Kafka Connect answers for a connector or a task that it is about to restart.
_RESTARTING = "RESTARTING"

#: The value of ``forward`` in the query of a forwarded request, by its value in the request as it came.
_FORWARD: Mapping[str | None, str] = {None: "true", "true": "false"}


class RestOperations:
    """
    The handlers of the REST requests to one worker. The answers contain no secrets.

    Args:
        control: Carries out the requests.
        url: The URL of the worker's REST interface.
        exchange: Sends requests to other workers.
        version: The version that the worker reports.
    """

    def __init__(self, control: WorkerRequests, url: str, exchange: HttpExchange, version: str) -> None:
        self._control = control
        self._url = url
        self._exchange = exchange
        self._version = version

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of a worker's REST interface, a part of Kafka Connect's, with their handlers."""
        return (
            Route("", {"GET": self.get_worker}),
            Route("/connectors", {"GET": self.list_connectors, "POST": self.create_connector}),
            Route(_CONNECTOR, {"GET": self.get_connector, "DELETE": self.delete_connector}),
            Route(
                f"{_CONNECTOR}/config",
                {"GET": self.get_config, "PUT": self.change_config, "PATCH": self.patch_config},
            ),
            Route(f"{_CONNECTOR}/status", {"GET": self.get_connector_status}),
            Route(f"{_CONNECTOR}/restart", {"POST": self.restart_connector}),
            Route(f"{_CONNECTOR}/pause", {"PUT": self.pause_connector}),
            Route(f"{_CONNECTOR}/resume", {"PUT": self.resume_connector}),
            Route(f"{_CONNECTOR}/tasks", {"GET": self.get_tasks}),
            Route(f"{_TASK}/status", {"GET": self.get_task_status}),
            Route(f"{_TASK}/restart", {"POST": self.restart_task}),
            Route("/connector-plugins", {"GET": self.get_plugins}),
            Route("/connector-plugins/([^/]+)/config/validate", {"PUT": self.validate_config}),
        )

    async def get_worker(self, call: RestCall) -> Answer:
        """
        Answer with the worker's version.

        Clients also expect ``commit`` and ``kafka_cluster_id``. The cluster id is null, because Kafka 0.8 has no
        cluster id.
        """
        return Answer({"version": self._version, "commit": "unknown", "kafka_cluster_id": None})

    # ------------------------------------------------------------------ connectors

    async def list_connectors(self, call: RestCall) -> Answer:
        """
        Answer with the names of all connectors.

        With ``expand``, answer with a status (``status``) or a configuration (``info``) for each name instead.
        """
        names = list(await self._control.connectors())
        expansions = [part for part in ("status", "info") if part in call.query.get("expand", ())]
        if not expansions:
            return Answer(names)
        found: dict[str, Any] = {}
        for start in range(0, len(names), _MOST_AT_ONCE):
            some = names[start : start + _MOST_AT_ONCE]
            details = await asyncio.gather(*(self._details(name, expansions) for name in some))
            found |= {name: detail for name, detail in zip(some, details, strict=True) if detail is not None}
        return Answer(found)

    async def _details(self, name: str, expansions: Collection[str]) -> dict[str, Any] | None:
        """Return the ``expand`` details of a connector, or None if the connector has been deleted meanwhile."""
        detail: dict[str, Any] = {}
        try:
            if "status" in expansions:
                detail["status"] = _status_answer(await self._control.status(name))
            if "info" in expansions:
                detail["info"] = await self._info_answer(await self._control.connector_info(name))
        except UnknownConnectorError:
            return None
        return detail

    async def create_connector(self, call: RestCall) -> Answer:
        """Create a connector. The leader carries out the request."""
        name, config = parse_new_connector(call.body)
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        info = await self._control.create(name, config)
        return Answer(await self._info_answer(info), HTTPStatus.CREATED, connector_path(name))

    async def get_connector(self, call: RestCall) -> Answer:
        """Answer with the configuration and the tasks of a connector."""
        return Answer(await self._info_answer(await self._control.connector_info(call.arguments[0])))

    async def delete_connector(self, call: RestCall) -> Answer:
        """Delete a connector. The leader carries out the request."""
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        await self._control.delete(call.arguments[0])
        return Answer(status=HTTPStatus.NO_CONTENT)

    async def get_config(self, call: RestCall) -> Answer:
        """Answer with the settings of a connector, without secrets."""
        return Answer(await self._shown(await self._control.config(call.arguments[0])))

    async def change_config(self, call: RestCall) -> Answer:
        """Replace the settings of a connector, or create the connector. The leader carries out the request."""
        config = _named_config(call.arguments[0], parse_object(call.body, numbers_as_texts=True))
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        info, is_new = await self._control.put_config(call.arguments[0], config)
        document = await self._info_answer(info)
        return Answer(document, HTTPStatus.CREATED, connector_path(call.arguments[0])) if is_new else Answer(document)

    async def patch_config(self, call: RestCall) -> Answer:
        """Change some settings of a connector; null removes a setting. The leader carries out the request."""
        changes = _parse_config(parse_object(call.body, numbers_as_texts=True))
        _named_config(call.arguments[0], changes)
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        return Answer(await self._info_answer(await self._control.patch_config(call.arguments[0], changes)))

    async def get_connector_status(self, call: RestCall) -> Answer:
        """Answer with the statuses of a connector and its tasks."""
        return Answer(_status_answer(await self._control.status(call.arguments[0])))

    async def pause_connector(self, call: RestCall) -> Answer:
        """Pause a connector and its tasks, without waiting until they have paused."""
        await self._control.pause(call.arguments[0])
        return Answer(status=HTTPStatus.ACCEPTED)

    async def resume_connector(self, call: RestCall) -> Answer:
        """Resume a connector and its tasks, without waiting until they run."""
        await self._control.resume(call.arguments[0])
        return Answer(status=HTTPStatus.ACCEPTED)

    async def restart_connector(self, call: RestCall) -> Answer:
        """
        Restart a connector, but not its tasks.

        With ``includeTasks``, the tasks restart as well. With ``onlyFailed``, only failed work restarts. With either of
        these arguments, the answer has the status of the connector and its tasks.
        """
        with_tasks, only_failed = call.is_set("includeTasks"), call.is_set("onlyFailed")
        if not (with_tasks or only_failed):
            await self._control.config(call.arguments[0])
            return await self._restart(ConnectorId(call.arguments[0]), call)
        status = await self._control.status(call.arguments[0])
        states: dict[Work, WorkState] = {ConnectorId(status.name): status.connector.state}
        if with_tasks:
            states |= {TaskId(status.name, number): task.state for number, task in enumerate(status.tasks)}
        works = [work for work, state in states.items() if not only_failed or state is WorkState.FAILED]
        for work in works:
            await self._restart(work, call)
        return Answer(_status_answer(status, works), HTTPStatus.ACCEPTED)

    # ------------------------------------------------------------------ tasks

    async def get_tasks(self, call: RestCall) -> Answer:
        """Answer with the settings of a connector's tasks, without secrets."""
        config = await self._control.config(call.arguments[0])
        tasks = await self._control.tasks(call.arguments[0])
        configs = await self._control.masked(config.get("connector.class", ""), tasks)
        return Answer(
            [{"id": _task_id(call.arguments[0], number), "config": dict(task)} for number, task in enumerate(configs)]
        )

    async def get_task_status(self, call: RestCall) -> Answer:
        """Answer with the status of a task."""
        status = await self._control.task_status(*_task(call))
        return Answer({"id": _task(call).task, **_status(status)})

    async def restart_task(self, call: RestCall) -> Answer:
        """Restart a task. The owner of the task carries out the request."""
        info, task = await self._control.connector_info(call.arguments[0]), _task(call)
        if task.task >= info.tasks:
            tasks = counted(info.tasks, "task")
            raise UnknownConnectorError(f"connector {task.connector!r} has no task {task.task}; it has {tasks}")
        return await self._restart(task, call)

    async def _restart(self, work: Work, call: RestCall) -> Answer:
        """Restart a connector or a task on this worker, or forward the request to the work's owner."""
        path = connector_path(work.connector)
        path = f"{path}/tasks/{work.task}/restart" if isinstance(work, TaskId) else f"{path}/restart"
        if (elsewhere := await self._at_owner(work, replace(call, method="POST", path=path, body=b""))) is not None:
            return elsewhere
        await self._control.restart(work)
        return Answer(status=HTTPStatus.NO_CONTENT)

    # ------------------------------------------------------------------ plugins

    async def get_plugins(self, call: RestCall) -> Answer:
        """Answer with the connectors that are installed on this worker."""
        plugins = await self._control.plugins()
        return Answer([{"class": each.name, "type": each.kind, "version": each.version} for each in plugins])

    async def validate_config(self, call: RestCall) -> Answer:
        """Check settings without creating a connector, and answer with the errors of each setting."""
        plugin = call.arguments[0]
        config = _parse_config(parse_object(call.body, numbers_as_texts=True))
        given = config.get("connector.class") or plugin
        if _short_name(given) != _short_name(plugin):
            raise ConfigError(f"connector.class: {given!r:.100} given; expected {plugin!r:.100}, as the path has it")
        return Answer(dict(await self._control.validate(plugin, {**config, "connector.class": given})))

    # ------------------------------------------------------------------ answers without secrets

    async def _shown(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of a connector, without secrets."""
        (shown,) = await self._control.masked(config.get("connector.class", ""), [config])
        return dict(shown)

    async def _info_answer(self, info: ConnectorInfo) -> dict[str, Any]:
        """Return the JSON object that describes a connector: name, settings without secrets, tasks and type."""
        return {
            "name": info.name,
            "config": await self._shown(info.config),
            "tasks": [_task_id(info.name, number) for number in range(info.tasks)],
            "type": info.kind,
        }

    # ------------------------------------------------------------------ other workers

    async def _at_leader(self, call: RestCall) -> Answer | None:
        """
        Return None if this worker leads. Otherwise, forward the request to the leader, and return the leader's answer.

        Raises:
            RebalanceError: The group is rebalancing, the leader is not known, or the request was forwarded twice.
            RestError: The leader has not registered its URL, does not answer, or answers with an error.
        """
        self._check_stable()
        leader = self._control.leader_url()
        if leader is None:
            raise RebalanceError("the group of workers has no leader at the moment; try again later")
        return None if self._is_own(leader) else await self._forward(leader, call)

    async def _at_owner(self, work: Work, call: RestCall) -> Answer | None:
        """
        Return None if this worker has the work. Otherwise, forward the request to the owner or the leader.

        Raises:
            RebalanceError: The group is rebalancing, the owner is not known, or the request was forwarded twice.
            RestError: The other worker has not registered its URL, does not answer, or answers with an error.
        """
        self._check_stable()
        owner = self._control.owner_url(work)
        if self._is_own(owner):
            return None
        target = owner or self._control.leader_url()
        if target is None or self._is_own(target):
            raise RebalanceError(f"{work} is not assigned to any worker at the moment; try again later")
        return await self._forward(target, call)

    def _is_own(self, url: str | None) -> bool:
        """Return whether a URL is this worker's URL, even if another program has written it with a slash at its end."""
        return url is not None and url.rstrip("/") == self._url.rstrip("/")

    def _check_stable(self) -> None:
        if self._control.is_rebalancing():
            raise RebalanceError("the group of workers is rebalancing; try again later")

    async def _forward(self, target: str, call: RestCall) -> Answer:
        forward = next(iter(call.query.get("forward", ())), None)
        following = _FORWARD.get(forward and forward.lower())
        if following is None:
            raise RebalanceError("the workers do not agree on the leader or the owner at the moment; try again later")
        if not await self._control.is_registered(target):
            text = (
                f"the request is not forwarded to {target:.200}, which the group names as the URL of a worker: no"
                " worker has registered it in ZooKeeper; a worker that has lost its ZooKeeper session registers again"
                " soon, any other member of the group is a stranger, which must not get requests and their token"
            )
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)})
        log.debug("forwarding %s %s to %s", call.method, call.path, target)
        url = f"{target.rstrip('/')}{call.path}?forward={following}"
        try:
            answer = await self._exchange.send(call.method, url, call.body)
        except NoWorkerError as error:
            # A worker that has died keeps its work, or leads, until its session has expired.
            text = f"the request cannot be forwarded: {error}; if that worker has died, others replace it soon"
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)}) from error
        except ProtocolError as error:
            raise RestError(HTTPStatus.BAD_GATEWAY, f"the request cannot be forwarded: {error}") from error
        return answer.passed_on(
            target,
            f"the request cannot be forwarded: the worker at {target} has another token than this one; give all"
            " workers of the group the same token",
        )


def _status_answer(status: ConnectorStatus, restarting: Collection[Work] = ()) -> dict[str, Any]:
    """Return the JSON object with the statuses of a connector and its tasks. Show ``restarting`` as RESTARTING."""
    tasks = ((TaskId(status.name, number), task) for number, task in enumerate(status.tasks))
    return {
        "name": status.name,
        "connector": _status(status.connector, ConnectorId(status.name) in restarting),
        "tasks": [{"id": task_id.task, **_status(task, task_id in restarting)} for task_id, task in tasks],
        "type": status.kind,
    }


def _task_id(connector: str, number: int) -> dict[str, Any]:
    return {"connector": connector, "task": number}


def _status(status: WorkStatus, is_restarting: bool = False) -> dict[str, Any]:
    state = _RESTARTING if is_restarting else str(status.state)
    # Kafka Connect has neither metrics nor problems of work that has not failed; its clients ignore further fields.
    more = {"trace": status.trace, "problem": status.problem, "metrics": sample_documents(status.metrics)}
    return {"state": state, "worker_id": status.worker} | {name: value for name, value in more.items() if value}


def _short_name(name: str) -> str:
    """Return the name of a class without its module and without ``Connector`` at its end."""
    return name.replace(":", ".").rpartition(".")[2].removesuffix("Connector")


def _task(call: RestCall) -> TaskId:
    """Return the id of the task in the path of a request."""
    return TaskId(call.arguments[0], int(call.arguments[1]))


class WorkerServer:
    """
    Serves the REST interface of one worker, on its event loop.

    Args:
        settings: The address to listen on, and the token.
        version: The version that the worker reports; by default, the version of this package.

    Raises:
        ConfigError: The address is in use, or is not an address of this machine.
    """

    def __init__(self, settings: RestSettings, version: str = "") -> None:
        self._version = version or _version()
        self._exchange = HttpExchange(settings.token, settings.timeout_s)
        self._server = RestServer(settings)
        #: The URL under which other workers reach this one. It is known before ``start``: the worker joins with it.
        self.url = self._server.url

    def start(self, control: WorkerRequests, metrics: Metrics) -> None:
        """
        Begin to answer requests. ``control`` carries out the requests, and ``metrics`` is the worker's metrics
        registry.
        """
        routes = RestOperations(control, self.url, self._exchange, self._version).routes()
        self._server.start((*routes, metrics_route(metrics)), metrics=metrics)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        await self._server.close()
        self._exchange.close()


def _version() -> str:
    """Return the version of this package, or "unknown" if the package is not installed."""
    try:
        return metadata.version("kiel-groups")
    except metadata.PackageNotFoundError:
        return "unknown"
