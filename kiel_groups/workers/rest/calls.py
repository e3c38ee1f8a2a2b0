"""What the operations of the REST interface work with: requests, answers, errors, and workers to forward to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any, TypeAlias

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    NoWorkerError,
    ProtocolError,
    RebalanceError,
    UnknownConnectorError,
)
from kiel_groups.workers.plugins.secret_texts import error_texts
from kiel_groups.workers.rest.client import HttpExchange
from kiel_groups.workers.rest.worker_control import (
    ConnectorInfo,
    ConnectorStatus,
    InstalledPlugin,
    TaskInfo,
    WorkerControl,
)
from kiel_groups.workers.values import ConnectorId, TaskId, Work, WorkStatus

__all__ = [
    "RETRY_AFTER_S",
    "RestError",
    "refusal_of",
    "status_text",
    "Answer",
    "ConfigMask",
    "config_answer",
    "info_answer",
    "plugins_answer",
    "status_answer",
    "task_status_answer",
    "tasks_answer",
    "Hop",
    "RequestForwarding",
    "Routed",
    "Operation",
    "RestCall",
    "RestSite",
]

log = logging.getLogger(__name__)


#: After how many seconds a client may repeat a request that was refused for a reason that passes.
RETRY_AFTER_S = 1


#: The longest text of an answer, in characters. Errors quote what users have given, which may be a megabyte.
_LONGEST_TEXT = 8_192


class RestError(KielGroupsError):
    """
    A request that the REST interface refuses by itself.

    ``status`` is the HTTP status, and ``headers`` are what the answer has in addition. A long text is cut.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        rest = len(message) - _LONGEST_TEXT
        super().__init__(message if rest <= 0 else f"{message[:_LONGEST_TEXT]}… ({rest:,} characters more)")
        self.status = status
        self.headers = headers or {}


def refusal_of(error: BaseException) -> RestError:
    """Return an error as the REST interface answers it."""
    if isinstance(error, RestError):
        return error
    text = str(error) or type(error).__name__
    match error:
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


# Do what a request asks at the right worker: here, or at the leader or owner, to which the request is forwarded.
#
# A worker that is not the right one knows only the leader; the leader knows all owners. So a request is forwarded at
# most twice. Its query has ``forward=true`` after the first time, and ``forward=false`` after the second, as in Kafka
# Connect. A worker that gets the latter and is not the right one has another view of the group than its leader, and
# refuses.
#
# A request that is forwarded has the token. So it goes only to a URL that a worker has registered in ZooKeeper, and to
# no place to which an answer redirects.


Act = Callable[[], Awaitable[Answer]]


class Hop(Enum):
    """How often a request was forwarded; the value is that of ``forward`` in its query."""

    FIRST = None
    SECOND = "true"
    LAST = "false"

    @classmethod
    def of(cls, forward: str | None) -> Hop:
        """Return the hop of a request with this query argument."""
        if forward is None:
            return cls.FIRST
        return cls.SECOND if forward.lower() == "true" else cls.LAST


@dataclass(frozen=True, slots=True)
class Routed:
    """
    A request as it is forwarded.

    Args:
        method: The method.
        path: The path, percent-encoded.
        hop: How often it was forwarded until now.
        body: The JSON document, or nothing.
    """

    method: str
    path: str
    hop: Hop
    body: bytes = b""


class RequestForwarding:
    """
    The routes from one worker to the others.

    Args:
        control: The worker.
        url: The URL of its REST interface.
        exchange: Sends the requests.
    """

    def __init__(self, control: WorkerControl, url: str, exchange: HttpExchange) -> None:
        self._control = control
        self._url = url
        self._exchange = exchange

    async def at_leader(self, request: Routed, act: Act) -> Answer:
        """
        Call ``act`` if this worker leads, and otherwise forward the request to the leader.

        Raises:
            RebalanceError: The leader is not known.
            RestError: The leader does not answer.
        """
        self._check_stable()
        leader = self._control.leader_url()
        if leader is None:
            raise RebalanceError("the group of workers has no leader at the moment; try again later")
        return await (act() if self._is_own(leader) else self._forward(leader, request))

    async def at_owner(self, work: Work, request: Routed, act: Act) -> Answer:
        """
        Call ``act`` if this worker has the work, and otherwise forward the request to its owner or to the leader.

        Raises:
            RebalanceError: The owner is not known.
            RestError: The other worker does not answer.
        """
        self._check_stable()
        owner = self._control.owner_url(work)
        if self._is_own(owner):
            return await act()
        target = owner or self._control.leader_url()
        if target is None or self._is_own(target):
            raise RebalanceError(f"{work} is not assigned to any worker at the moment; try again later")
        return await self._forward(target, request)

    def _is_own(self, url: str | None) -> bool:
        """Return whether a URL is this worker's; other programs may write it with a slash at its end."""
        return url is not None and url.rstrip("/") == self._url.rstrip("/")

    def _check_stable(self) -> None:
        if self._control.is_rebalancing():
            raise RebalanceError("the group of workers is rebalancing; try again later")

    async def _forward(self, target: str, request: Routed) -> Answer:
        if request.hop is Hop.LAST:
            raise RebalanceError("the workers do not agree on the leader or the owner at the moment; try again later")
        if not await self._control.is_registered(target):
            text = (
                f"the request is not forwarded to {target:.200}, which the group names as the URL of a worker: no"
                " worker has registered it in ZooKeeper; a worker that has lost its ZooKeeper session registers again"
                " soon, any other member of the group is a stranger, which must not get requests and their token"
            )
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)})
        following = Hop.SECOND if request.hop is Hop.FIRST else Hop.LAST
        log.debug("forwarding %s %s to %s", request.method, request.path, target)
        url = f"{target.rstrip('/')}{request.path}?forward={following.value}"
        try:
            answer = await self._exchange.send(request.method, url, request.body)
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
        return Answer(answer.document, answer.status, answer.location)


@dataclass(frozen=True, slots=True)
class RestSite:
    """
    What all operations of one worker work with.

    Args:
        control: The worker.
        mask: Hides secrets.
        forwarding: The routes to the other workers.
        version: The version that the worker reports.
    """

    control: WorkerControl
    mask: ConfigMask
    forwarding: RequestForwarding
    version: str


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
    def hop(self) -> Hop:
        """How often the request was forwarded."""
        return Hop.of(next(iter(self.query.get("forward", ())), None))

    @property
    def routed(self) -> Routed:
        """The request as it is forwarded: without its query, because no operation that is forwarded has one."""
        return Routed(self.method, self.path, self.hop, self.body)

    def is_set(self, name: str) -> bool:
        """Return whether a query argument is true."""
        return any(value.lower() == "true" for value in self.query.get(name, ()))


Operation: TypeAlias = Callable[[RestSite, RestCall], Awaitable[Answer]]
