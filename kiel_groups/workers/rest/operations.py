"""
Answer a worker's REST requests, or forward them to the leader or the owner; list the routes, which are Kafka Connect's.

A worker that may not answer a request itself knows only the leader; the leader knows all owners. So a request is
forwarded at most twice. Its query has ``forward=true`` after the first time, and ``forward=false`` after the second, as
in Kafka Connect. A worker that gets ``forward=false`` and may not answer refuses the request, because its view of the
group differs from the leader's.

A request that is forwarded has the token. So it goes only to a URL that a worker has registered in ZooKeeper, and never
to the target of a redirect.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from tornado.web import HTTPError

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    NoWorkerError,
    ProtocolError,
    RebalanceError,
    UnknownConnectorError,
)
from kiel_groups.group.znodes.worker_contents import WorkState, WorkStatus
from kiel_groups.wording import counted
from kiel_groups.workers.execution.worker_requests import ConnectorInfo, ConnectorStatus, WorkerRequests
from kiel_groups.workers.plugins.secret_texts import error_texts
from kiel_groups.workers.rest.client import Answer, HttpExchange, connector_path
from kiel_groups.workers.values import ConnectorId, TaskId, Work

log = logging.getLogger(__name__)


#: After how many seconds a client may repeat a request that was refused for a reason that passes.
RETRY_AFTER_S = 1


#: The longest text of an answer, in characters. Errors quote what users have given, which may be a megabyte.
_LONGEST_TEXT = 8_192


class RestError(KielGroupsError):
    """
    A request that the REST interface refuses by itself.

    ``status`` is the HTTP status, and ``headers`` are further headers of the answer. A long text is cut.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        rest = len(message) - _LONGEST_TEXT
        super().__init__(message if rest <= 0 else f"{message[:_LONGEST_TEXT]}… ({rest:,} characters more)")
        self.status = status
        self.headers = headers or {}


def refusal_of(error: BaseException) -> RestError:
    """Convert an error, which may be Tornado's, to one with the status and the text of the answer."""
    if isinstance(error, RestError):
        return error
    text = str(error) or type(error).__name__
    match error:
        case HTTPError():
            return RestError(error.status_code, status_text(error.status_code))
        case UnknownConnectorError():
            return RestError(HTTPStatus.NOT_FOUND, text)
        case ConnectorExistsError():
            return RestError(HTTPStatus.CONFLICT, text)
        case RebalanceError():
            # Existing connectors are a conflict, too: by this header, clients know that a later try may succeed.
            return RestError(HTTPStatus.CONFLICT, text, {"Retry-After": str(RETRY_AFTER_S)})
        case ConfigError():
            return RestError(HTTPStatus.BAD_REQUEST, text)
        case TimeoutError():
            return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the request timed out; a change may still follow")
        case KielGroupsError() if error.retriable:
            return RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)})
        case KielGroupsError():
            return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error_texts(error).summary}")


def status_text(status: int) -> str:
    """Return a status as Kafka Connect words it, such as ``HTTP 404 Not Found``."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


@dataclass(frozen=True, slots=True)
class RestCall:
    """
    A request.

    Args:
        method: The method.
        path: The path, percent-encoded.
        arguments: The decoded parts of the path that its route names, such as the connector.
        query: The values of each query argument.
        body: The body.
    """

    method: str
    path: str
    arguments: Sequence[str] = ()
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""

    @property
    def name(self) -> str:
        """The name of the connector in the path."""
        return self.arguments[0]

    @property
    def task(self) -> TaskId:
        """The task in the path."""
        return TaskId(self.arguments[0], int(self.arguments[1]))

    def is_set(self, name: str) -> bool:
        """Return whether a query argument is true."""
        return any(value.lower() == "true" for value in self.query.get(name, ()))


#: The longest name of a setting, in characters.
_LONGEST_NAME = 500


def _parse_object(body: bytes) -> dict[str, Any]:
    """
    Return the JSON object of a body. Numbers become texts, spelled as in the body, because settings are texts.

    Raises:
        RestError: The body is not JSON, or not an object.
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


def _parse_config(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """
    Return settings as texts. Booleans and numbers become texts, as in Kafka Connect.

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
    Return the name and the settings of a new connector.

    Raises:
        RestError: The body is not JSON, or not an object.
        ConfigError: The name or the settings are missing or not legal, or the body has other keys.
    """
    found = _parse_object(body)
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
    Return the settings of a connector with its name among them, and without those that are null.

    Raises:
        ConfigError: The settings have another name, or one of them is a list or an object.
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


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


#: The connectors whose details are read at the same time.
_MOST_AT_ONCE = 50

#: What Kafka Connect answers for a connector or a task that it is about to restart.
_RESTARTING = "RESTARTING"

#: The value of ``forward`` in the query of a forwarded request, by its value in the request as it came.
_FORWARD: Mapping[str | None, str] = {None: "true", "true": "false"}


class RestOperations:
    """
    The operations of the REST interface of one worker.

    Args:
        control: The worker.
        url: The URL of its REST interface.
        exchange: Sends requests to other workers.
        version: The version that the worker reports.
    """

    def __init__(self, control: WorkerRequests, url: str, exchange: HttpExchange, version: str) -> None:
        self._control = control
        self._url = url
        self._exchange = exchange
        self._version = version

    async def get_worker(self, call: RestCall) -> Answer:
        """
        Answer with the worker's version.

        Clients also expect ``commit`` and ``kafka_cluster_id``. The latter is null, because Kafka 0.8 has no cluster
        id.
        """
        return Answer({"version": self._version, "commit": "unknown", "kafka_cluster_id": None})

    # ------------------------------------------------------------------ connectors

    async def list_connectors(self, call: RestCall) -> Answer:
        """Answer with the names of all connectors; with ``expand``, with their statuses or configurations by name."""
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
        """Return the details of a connector, or None if it has been deleted meanwhile."""
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
        """Create a connector."""
        name, config = parse_new_connector(call.body)
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        info = await self._control.create(name, config)
        return Answer(await self._info_answer(info), HTTPStatus.CREATED, connector_path(name))

    async def get_connector(self, call: RestCall) -> Answer:
        """Answer with the configuration and the tasks of a connector."""
        return Answer(await self._info_answer(await self._control.connector_info(call.name)))

    async def delete_connector(self, call: RestCall) -> Answer:
        """Delete a connector."""
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        await self._control.delete(call.name)
        return Answer(status=HTTPStatus.NO_CONTENT)

    async def get_config(self, call: RestCall) -> Answer:
        """Answer with the settings of a connector, without secrets."""
        return Answer(await self._shown(await self._control.config(call.name)))

    async def change_config(self, call: RestCall) -> Answer:
        """Replace the settings of a connector, or create it."""
        config = _named_config(call.name, _parse_object(call.body))
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        info, is_new = await self._control.put_config(call.name, config)
        document = await self._info_answer(info)
        return Answer(document, HTTPStatus.CREATED, connector_path(call.name)) if is_new else Answer(document)

    async def patch_config(self, call: RestCall) -> Answer:
        """Change some settings of a connector. The others stay as they are, and null removes one."""
        changes = _parse_config(_parse_object(call.body))
        _named_config(call.name, changes)
        if (elsewhere := await self._at_leader(call)) is not None:
            return elsewhere
        return Answer(await self._info_answer(await self._control.patch_config(call.name, changes)))

    async def get_connector_status(self, call: RestCall) -> Answer:
        """Answer with the statuses of a connector and its tasks."""
        return Answer(_status_answer(await self._control.status(call.name)))

    async def pause_connector(self, call: RestCall) -> Answer:
        """Pause a connector and its tasks."""
        await self._control.pause(call.name)
        return Answer(status=HTTPStatus.ACCEPTED)

    async def resume_connector(self, call: RestCall) -> Answer:
        """Resume a connector and its tasks."""
        await self._control.resume(call.name)
        return Answer(status=HTTPStatus.ACCEPTED)

    async def restart_connector(self, call: RestCall) -> Answer:
        """
        Restart a connector, but not its tasks.

        With ``includeTasks``, the tasks restart as well. With ``onlyFailed``, only failed work restarts. With either
        one, the answer has the status of the connector and its tasks.
        """
        with_tasks, only_failed = call.is_set("includeTasks"), call.is_set("onlyFailed")
        if not (with_tasks or only_failed):
            await self._control.config(call.name)
            return await self._restart(ConnectorId(call.name), call)
        status = await self._control.status(call.name)
        states: dict[Work, WorkState] = {ConnectorId(status.name): status.connector.state}
        if with_tasks:
            states |= {TaskId(status.name, number): task.state for number, task in enumerate(status.tasks)}
        works = [work for work, state in states.items() if not only_failed or state is WorkState.FAILED]
        for work in works:
            await self._restart(work, call)
        return Answer(_status_answer(status, works), HTTPStatus.ACCEPTED)

    # ------------------------------------------------------------------ tasks

    async def get_tasks(self, call: RestCall) -> Answer:
        """Answer with the settings of a connector's tasks."""
        config = await self._control.config(call.name)
        tasks = await self._control.tasks(call.name)
        configs = await self._control.masked(config.get("connector.class", ""), tasks)
        return Answer(
            [{"id": _task_id(call.name, number), "config": dict(task)} for number, task in enumerate(configs)]
        )

    async def get_task_status(self, call: RestCall) -> Answer:
        """Answer with the status of a task."""
        status = await self._control.task_status(*call.task)
        return Answer({"id": call.task.task, **_status(status)})

    async def restart_task(self, call: RestCall) -> Answer:
        """Restart a task."""
        info, task = await self._control.connector_info(call.name), call.task
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
        """Answer with the connectors that are installed."""
        plugins = await self._control.plugins()
        return Answer([{"class": each.name, "type": each.kind, "version": each.version} for each in plugins])

    async def validate_config(self, call: RestCall) -> Answer:
        """Answer with the errors in the settings of a connector, which does not have to exist."""
        plugin = call.arguments[0]
        config = _parse_config(_parse_object(call.body))
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
        """Return the answer about a connector's configuration, without secrets."""
        return {
            "name": info.name,
            "config": await self._shown(info.config),
            "tasks": [_task_id(info.name, number) for number in range(info.tasks)],
            "type": info.kind,
        }

    # ------------------------------------------------------------------ other workers

    async def _at_leader(self, call: RestCall) -> Answer | None:
        """
        Return None if this worker leads. Otherwise, forward the request to the leader, and return its answer.

        Raises:
            RebalanceError: The leader is not known.
            RestError: The leader does not answer.
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
            RebalanceError: The owner is not known.
            RestError: The other worker does not answer.
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
        """Return whether a URL is this worker's; other programs may write it with a slash at its end."""
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
        if answer.status == HTTPStatus.UNAUTHORIZED:
            text = (
                f"the request cannot be forwarded: the worker at {target} has another token than this one; give all"
                " workers of the group the same token"
            )
            raise RestError(HTTPStatus.BAD_GATEWAY, text)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if answer.is_temporary else {}
            raise RestError(answer.status, answer.message or f"the worker at {target} gave no reason", headers)
        return answer


def _status_answer(status: ConnectorStatus, restarting: Collection[Work] = ()) -> dict[str, Any]:
    """Return the answer with the statuses of a connector and its tasks. Work in ``restarting`` is RESTARTING."""
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
    # Kafka Connect has no problems of work that has not failed; its clients ignore further fields.
    texts = {"trace": status.trace, "problem": status.problem}
    return {"state": state, "worker_id": status.worker} | {name: text for name, text in texts.items() if text}


def _short_name(name: str) -> str:
    """Return the name of a class without its module and without ``Connector`` at its end."""
    return name.replace(":", ".").rpartition(".")[2].removesuffix("Connector")


Operation: TypeAlias = Callable[[RestOperations, RestCall], Awaitable[Answer]]


class Route(NamedTuple):
    """A pattern of paths, and the operation of each method."""

    pattern: str
    operations: Mapping[str, Operation]


_CONNECTOR: Final = "/connectors/([^/]+)"
_TASK: Final = f"{_CONNECTOR}/tasks/([0-9]{{1,9}})"

#: All routes. Clients may add a slash to each path.
ROUTES: Final = (
    Route("", {"GET": RestOperations.get_worker}),
    Route("/connectors", {"GET": RestOperations.list_connectors, "POST": RestOperations.create_connector}),
    Route(_CONNECTOR, {"GET": RestOperations.get_connector, "DELETE": RestOperations.delete_connector}),
    Route(
        f"{_CONNECTOR}/config",
        {"GET": RestOperations.get_config, "PUT": RestOperations.change_config, "PATCH": RestOperations.patch_config},
    ),
    Route(f"{_CONNECTOR}/status", {"GET": RestOperations.get_connector_status}),
    Route(f"{_CONNECTOR}/restart", {"POST": RestOperations.restart_connector}),
    Route(f"{_CONNECTOR}/pause", {"PUT": RestOperations.pause_connector}),
    Route(f"{_CONNECTOR}/resume", {"PUT": RestOperations.resume_connector}),
    Route(f"{_CONNECTOR}/tasks", {"GET": RestOperations.get_tasks}),
    Route(f"{_TASK}/status", {"GET": RestOperations.get_task_status}),
    Route(f"{_TASK}/restart", {"POST": RestOperations.restart_task}),
    Route("/connector-plugins", {"GET": RestOperations.get_plugins}),
    Route("/connector-plugins/([^/]+)/config/validate", {"PUT": RestOperations.validate_config}),
)
