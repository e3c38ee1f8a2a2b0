"""
The requests about the connectors of worker groups. The service forwards them to a worker of the group.

Workers register the URLs of their REST interfaces in ZooKeeper, whatever coordinates their group. A forwarded request
contains the token of the workers, and goes to no other URL: every client of the brokers can join a group that brokers
coordinate, and tell its other members any URL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from kiel_groups.errors import ConfigError, KielGroupsError, NoWorkerError, ProtocolError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import Sample, cause_of, parse_samples
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups
from kiel_groups.rest.calls import Answer, RestCall, RestError, parse_object
from kiel_groups.secret_texts import HIDDEN, may_be_secret, without_secrets
from kiel_groups.service import openapi
from kiel_groups.service.actions import Body, finish_change, takes
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.service.openapi import FLAG, answers
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import own_command
from kiel_groups.workers.plugins.secret_references import is_reference
from kiel_groups.workers.rest.client import connector_path, is_unsent

#: The most workers that a request asks, one after the other. The znode of a dead worker ends with its session.
_MOST_WORKERS = 3

#: The request for all connectors, with their statuses and settings.
_ALL = "/connectors?expand=status&expand=info"

#: The most characters of each text of a worker in the page.
_LONGEST_TEXT = 300

#: The characters at the end of a trace in which the page looks for the error. There may be a thousand traces of 8 KiB.
_END_OF_TRACE = 2_000


#: The JSON schema of the settings of a connector.
_CONFIG = {
    "type": "object",
    "properties": {"connector.class": openapi.TEXT},
    "required": ["connector.class"],
    "description": "Texts by the names of settings; [hidden] keeps a stored secret.",
}


class Work(NamedTuple):
    """
    A connector, or one of its tasks, as a worker shows it.

    ``task`` is None for the connector itself, and ``kind`` is ``source``, ``sink`` or ``task``. ``problem`` is the line
    of the trace that names the error, or the reason why the work makes no progress, or "". ``config`` has the settings
    of a connector without secrets; it is empty for a task. ``metrics`` has the metrics of a running task.
    """

    connector: str
    task: int | None
    kind: str
    state: str
    worker: str
    problem: str
    config: Mapping[str, str] = MappingProxyType({})
    metrics: tuple[Sample, ...] = ()

    @property
    def name(self) -> str:
        """The name of the connector, or ``connector-number`` for a task."""
        return self.connector if self.task is None else f"{self.connector}-{self.task}"


class Connectors:
    """
    The operations that show and change the connectors of a worker group.

    Args:
        find: Returns the cluster and the group that a call names, or raises RestError.
    """

    def __init__(self, find: Callable[[RestCall], tuple[ServedCluster, GroupStatus]]) -> None:
        self._find = find

    @answers(openapi.CONNECTORS)
    async def list_connectors(self, call: RestCall) -> Answer:
        """Answer with the status and the settings of each connector of a worker group, without secrets."""
        return await _ask(*self._find(call), "GET", _ALL)

    @answers(openapi.CONNECTOR)
    async def get_connector(self, call: RestCall) -> Answer:
        """Answer with the settings and the tasks of a connector, without secrets."""
        return await _ask(*self._find(call), "GET", connector_path(call.arguments[2]))

    @answers(openapi.CONNECTOR_SETTINGS_CHANGE)
    @takes("config", config=_CONFIG)
    async def put_connector(self, call: RestCall, body: Body) -> Answer:
        """Create a connector with the settings ``config``, or replace the settings of the connector if it exists."""
        began_s = time.monotonic()
        (cluster, status), connector = self._find(call), call.arguments[2]
        # A worker stores numbers as they are written, such as 1.10.
        config = parse_object(call.body, numbers_as_texts=True)["config"]
        plugin = config.get("connector.class") if isinstance(config, dict) else None
        if not plugin or not isinstance(plugin, str):
            raise ConfigError("config: expected an object with the connector's settings by name, and 'connector.class'")
        before = await _settings(cluster, status, connector)
        path = f"/connector-plugins/{quote(plugin, safe='')}/config/validate"
        report = (await _ask(cluster, status, "PUT", path, {"name": connector, **config})).document
        changes, notes = _setting_changes(connector, config, before, report)
        document = {
            "dry_run": body.dry_run,
            "group": status.view.group,
            "connector": connector,
            "is_new": before is None,
            "changes": changes,
            "notes": notes,
        }
        if not body.dry_run:
            await _make(call, (cluster, status), "PUT", "/config", document, began_s, config)
        return Answer(document)

    @answers(openapi.CONNECTOR_DELETION)
    @takes()
    async def delete_connector(self, call: RestCall, body: Body) -> Answer:
        """Delete a connector with its tasks, or only show these in a dry run. Its offsets stay."""
        cluster, status = self._find(call)
        config = await _settings(cluster, status, call.arguments[2])
        if config is None:
            raise UnknownConnectorError(f"connector {call.arguments[2]!r:.300} does not exist")
        notes = ["Its offsets stay: another connector of this name continues at them."]
        return await self._change(call, body, "DELETE", "", None, lambda work: True, config=config, notes=notes)

    @answers(openapi.CONNECTOR_STATUS)
    async def get_connector_status(self, call: RestCall) -> Answer:
        """Answer with the state, the worker and the error of a connector and of each of its tasks."""
        return await _ask(*self._find(call), "GET", f"{connector_path(call.arguments[2])}/status")

    @answers(openapi.CONNECTOR_CHANGE)
    @takes()
    async def pause_connector(self, call: RestCall, body: Body) -> Answer:
        """
        Pause a connector and its tasks. The paused connector and tasks keep their workers. The answer does not wait
        until they have paused.
        """
        return await self._change(call, body, "PUT", "/pause", "PAUSED", lambda work: work.state == "RUNNING")

    @answers(openapi.CONNECTOR_CHANGE)
    @takes()
    async def resume_connector(self, call: RestCall, body: Body) -> Answer:
        """Resume a paused connector and its tasks. The answer does not wait until they run."""
        return await self._change(call, body, "PUT", "/resume", "RUNNING", lambda work: work.state == "PAUSED")

    @answers(openapi.CONNECTOR_CHANGE)
    @takes(task={"type": ["integer", "null"], "minimum": 0}, include_tasks=FLAG, only_failed=FLAG)
    async def restart_connector(self, call: RestCall, body: Body) -> Answer:
        """Restart a connector, with ``include_tasks`` its tasks as well, or one ``task``; or only what has failed."""
        task, with_tasks, only_failed = body.number("task"), body.flag("include_tasks"), body.flag("only_failed")
        if task is None:
            query = f"includeTasks={str(with_tasks).lower()}&onlyFailed={str(only_failed).lower()}"
            return await self._change(
                call,
                body,
                "POST",
                f"/restart?{query}" if with_tasks or only_failed else "/restart",
                "RUNNING",
                lambda work: (with_tasks or work.task is None) and (not only_failed or work.state == "FAILED"),
            )
        if with_tasks or only_failed:
            raise ConfigError("task: does not go with 'include_tasks' and 'only_failed'")
        return await self._change(
            call, body, "POST", f"/tasks/{task}/restart", "RUNNING", lambda work: work.task == task, task
        )

    async def _change(
        self,
        call: RestCall,
        body: Body,
        method: str,
        path: str,
        after: str | None,
        is_changed: Callable[[Work], bool],
        task: int | None = None,
        **further: object,
    ) -> Answer:
        """
        Forward a change unless the call is a dry run, and answer with the states before and after the change.

        Args:
            call: The request.
            body: The body of the request.
            method: The method of the worker's request.
            path: The path of the worker's request below the connector, with the query.
            after: The state of the changed connector and tasks after the change, or None if they are deleted.
            is_changed: Returns whether the request changes this connector or task.
            task: The task that must exist, or None.
            further: Further fields of the answer.
        """
        began_s = time.monotonic()
        (cluster, status), connector = self._find(call), call.arguments[2]
        found = await _ask(cluster, status, "GET", f"{connector_path(connector)}/status")
        works = _works(found.document)
        if task is not None and task not in (work.task for work in works):
            raise UnknownConnectorError(f"connector {connector!r:.300} has no task {task}")
        document = {
            "dry_run": body.dry_run,
            "group": status.view.group,
            "connector": connector,
            "changes": [
                {"work": work.name, "before": work.state, "after": after} for work in works if is_changed(work)
            ],
            **further,
        }
        if not body.dry_run:
            await _make(call, (cluster, status), method, path, document, began_s)
        return Answer(document)


async def list_work(cluster: ServedCluster, status: GroupStatus) -> list[Work]:
    """
    Ask the workers of a group for all connectors, and return these with their tasks.

    Connectors with problems, or with tasks with problems, come first, then all others, in the order of their names.

    Raises:
        RestError: The group is not one of workers, no worker answers, or a worker answers with an error.
        ProtocolError: The answer is not that of a worker.
    """
    found = (await _ask(cluster, status, "GET", _ALL)).document
    if not isinstance(found, dict):
        raise _strange(found)
    connectors = []
    for each in found.values():
        if not isinstance(each, dict) or not isinstance(each.get("info"), dict):
            raise _strange(each)
        connector, *tasks = _works(each.get("status"))
        connectors.append([connector._replace(config=each["info"].get("config", {})), *tasks])
    connectors.sort(key=lambda works: (not any(work.problem for work in works), works[0].name))
    return list(chain.from_iterable(connectors))


async def _settings(cluster: ServedCluster, status: GroupStatus, connector: str) -> dict[str, str] | None:
    """Return the settings of a connector without secrets, or None if the connector does not exist."""
    try:
        found = (await _ask(cluster, status, "GET", f"{connector_path(connector)}/config")).document
    except RestError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    if not isinstance(found, dict):
        raise _strange(found)
    return found


def _shown(config: Mapping[str, str], is_secret: Callable[[str, str], bool]) -> dict[str, str]:
    """Return settings as workers show them, without secrets. A reference is no secret."""
    return {
        name: HIDDEN if not is_reference(text) and is_secret(name, text) else without_secrets(text)
        for name, text in config.items()
    }


def _setting_changes(
    connector: str, config: Mapping[str, Any], before: Mapping[str, str] | None, report: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """
    Return the settings that a change of a connector adds, replaces or removes, without secrets, and notes about them.

    Args:
        connector: The name of the connector.
        config: The new settings.
        before: The present settings as a worker shows them, or None if the connector does not exist.
        report: A worker's validation of the new settings. Its errors are notes if a setting is [hidden].

    Raises:
        ConfigError: The new settings have mistakes. The text has all of them.
        ProtocolError: The report is not that of a worker.
    """
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in config.items()}
    given = {"name": connector} | {name: text for name, text in given.items() if config[name] is not None}
    were = {"name": connector} | dict(before or {})
    # A text with [hidden] means the stored secret. Only the worker that stores the settings knows the secret.
    kept = {name for name, text in given.items() if HIDDEN in text}
    errors = [f"{name}: {HIDDEN} means the stored value, but none is stored" for name in sorted(kept - were.keys())]
    errors += [
        f"{name}: {HIDDEN} given within a changed text; give the text with its secrets, or {HIDDEN} alone to keep the"
        " stored one"
        for name in sorted(kept & were.keys())
        if given[name].strip() not in (HIDDEN, str(were[name]).strip())
    ]
    try:
        definitions = [each["definition"] for each in report["configs"] if each["definition"]]
        is_secret = {each["name"]: each["type"] == "PASSWORD" for each in definitions}
        values = [each["value"] for each in report["configs"] if each["value"]["name"] not in kept]
        found = [str(text) for value in values for text in value["errors"]]
        mistyped = {name: str(near) for name, near in report.get("mistyped", {}).items()}
        warnings = [str(text) for text in report.get("warnings", ())]
    except (AttributeError, KeyError, TypeError) as error:
        raise _strange(report) from error
    if kept:
        # The text [hidden] itself may be the mistake. With the change, the worker checks the stored texts.
        warnings += [f"checked without the stored values of {HIDDEN}: {text}" for text in found]
    else:
        errors += found
    if given["name"] != connector:
        errors.append(f"name: {given['name']!r:.100} given; expected {connector!r:.100} or none")
    if errors:
        # A setting is often missing because its name is misspelt, which the warnings say.
        raise ConfigError("\n".join([*errors, *warnings]))
    shown = _shown(given, lambda name, text: is_secret.get(mistyped.get(name, name), may_be_secret(name, text)))
    changes = [
        {
            "setting": name,
            "before": were.get(name),
            "after": shown.get(name),
            "note": "another value" if were.get(name) == shown.get(name) else "",
        }
        for name in sorted(were.keys() | given.keys())
        if were.get(name) != given.get(name)
    ]
    if before is not None:
        warnings.insert(0, f"These settings replace those of connector {connector}, which exists.")
    return changes, warnings


async def _make(
    call: RestCall,
    found: tuple[ServedCluster, GroupStatus],
    method: str,
    path: str,
    document: Mapping[str, Any],
    began_s: float,
    config: Mapping[str, Any] | None = None,
) -> None:
    """
    Send a change of a connector to a worker, and then log the change, even if the worker does not answer.

    Args:
        call: The request.
        found: The cluster and the group.
        method: The method of the worker's request.
        path: The path of the worker's request below the connector, with the query.
        document: The answer to the request.
        began_s: When the request began, in monotonic seconds.
        config: The body of the worker's request, or None.
    """
    cluster, status = found
    # What is logged if the worker refuses the change, or the time of the request ends before the worker's answer.
    outcome = {"problem": "no worker has confirmed the change", **document}
    try:
        await _ask(cluster, status, method, f"{connector_path(call.arguments[2])}{path}", config, is_change=True)
        del outcome["problem"]
    finally:
        finish_change(call, cluster, outcome, began_s)


async def _ask(
    cluster: ServedCluster,
    status: GroupStatus,
    method: str,
    path: str,
    document: Mapping[str, Any] | None = None,
    *,
    is_change: bool = False,
) -> Answer:
    """
    Send a request to a worker of a group, or to the next worker if it does not answer, and return the answer.

    A change is not sent again if a worker may have received it: that worker may make the change, and answer too late.

    Raises:
        RestError: The group has no workers whose addresses are known, none of three workers answers, or a worker
            answers with an error. The error then has the worker's text and status.
    """
    group = status.view.group
    if not status.view.are_workers:
        raise RestError(HTTPStatus.NOT_FOUND, f"group {group!r} has no connectors: its members are not workers")
    body = b"" if document is None else json.dumps(document).encode()
    problem = f"none is alive; {own_command('workers', 'run', '--group', group)} starts one"
    # Workers that do not answer take much of the time of a request: the next request does not begin with them.
    urls = sorted(await _worker_urls(cluster, status.view), key=lambda url: url != cluster.answering.get(group))
    for url in urls[:_MOST_WORKERS]:
        try:
            answer = await cluster.workers.send(method, f"{url.rstrip('/')}{path}", body)
        except (NoWorkerError, ProtocolError, ConfigError) as error:
            problem = str(error)
            if is_change and not is_unsent(error):
                text = f"the change was sent, but not confirmed, so it may still follow: {problem}"
                raise RestError(HTTPStatus.GATEWAY_TIMEOUT, text) from error
            continue
        cluster.answering[group] = url
        return answer.passed_on(
            url, f"the worker at {url} asks for another token; '--worker-token-file' names the file with the token"
        )
    raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, f"no worker of group {group!r} answers: {problem}")


async def _worker_urls(cluster: ServedCluster, view: GroupView) -> tuple[str, ...]:
    """
    Return the URLs that live workers of a group have registered in ZooKeeper.

    The newest state has them, unless the service observes the cluster by its brokers: then read them from ZooKeeper.

    Raises:
        RestError: The URLs are not known.
    """
    address, state = cluster.address, cluster.state
    if not address.is_of_brokers:
        if state.is_ready:
            return view.worker_urls
        # Another program may have the address of a worker that has ended since the last load.
        problem = state.error
    elif not address.worker_zookeeper:
        text = (
            f"the workers of group {view.group!r} are not known: they register their addresses in ZooKeeper, and the"
            " service observes this cluster by its brokers; '--worker-zookeeper' names their ZooKeeper"
        )
        raise RestError(HTTPStatus.CONFLICT, text)
    else:
        workers = ZooKeeperGroups(address.worker_zookeeper, timeout_s=address.timeout_s)
        try:
            found = (await cluster.run(partial(workers.look_up, view.group))).view
        except KielGroupsError as error:
            problem = str(error)
        else:
            return () if found is None else found.worker_urls
    text = f"the addresses of the workers are not known at the moment: {problem}"
    raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, text)


def _works(status: Any) -> list[Work]:
    """
    Return a connector and its tasks from the JSON document of their status.

    Raises:
        ProtocolError: The document is not that of a worker.
    """
    try:
        name, kind = str(status["name"]), str(status["type"])
        tasks = [_work(name, int(each["id"]), "task", each) for each in status["tasks"]]
        return [_work(name, None, kind, status["connector"]), *tasks]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _strange(status) from error


def _work(connector: str, task: int | None, kind: str, status: Mapping[str, Any]) -> Work:
    state, worker = (str(status[name])[:_LONGEST_TEXT] for name in ("state", "worker_id"))
    trace = str(status.get("trace") or "")[-_END_OF_TRACE:].strip()
    problem = cause_of(trace) if trace else str(status.get("problem") or "")
    metrics = parse_samples(status.get("metrics") or (), "the answer of the worker")
    return Work(connector, task, kind[:_LONGEST_TEXT], state, worker, problem[:_LONGEST_TEXT], metrics=metrics)


def _strange(document: object) -> ProtocolError:
    return ProtocolError(f"the answer of the worker is not that of a worker: {document!r:.200}")
