"""
The changes that operators make through the service: the actions of the command line, as requests with JSON bodies.

With ``"dry_run": true`` in its body, a request changes nothing, and shows what would change. The answer has the values
before and after. If offsets or znodes are lost, its field ``restore`` is the document from which ``offsets/import`` or
'kiel-groups offsets import' restores them. Before the change, the document is written to a file as well, because the
client may be gone when the answer comes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial, wraps
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

from kiel_groups.config import STORES, is_whole
from kiel_groups.errors import ConfigError
from kiel_groups.ops.actions.group_config import (
    ConfigChange,
    plan_drain,
    plan_rebalance,
    plan_settings,
    plan_undrain,
)
from kiel_groups.ops.actions.groups import delete_at_brokers, delete_znodes, plan_deletion, plan_deletion_at_brokers
from kiel_groups.ops.actions.offsets import OffsetsPlan, plan_copy, plan_delete, plan_import, plan_reset
from kiel_groups.ops.actions.offsets_file import new_file, parse_offsets_file, restore_path, write_offsets_file
from kiel_groups.ops.views.config_view import change_document
from kiel_groups.ops.views.documents import deletion_document
from kiel_groups.ops.views.offset_changes import (
    Selection,
    Target,
    changes_document,
    duration_ms,
    parse_selection,
    parse_time,
    select,
)
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.ops.zookeeper_reader import check_group
from kiel_groups.rest.calls import Answer, RestCall, RestError, parse_object
from kiel_groups.service import openapi
from kiel_groups.service.openapi import FLAG, answers
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wording import some

log = logging.getLogger(__name__)

#: How long live members may take to set offsets, in seconds. What they have not set by then stays.
_ORDER_S = 30.0

#: The kinds of targets of a reset that have no value, and those that have one.
_PLACES = ("earliest", "latest", "current")
_VALUES = ("offset", "shift", "time", "ago")


#: The fields of bodies, as JSON schemas.
_TEXT = {"type": ["string", "null"]}
_TOPICS = {
    "type": ["array", "null"],
    "items": {"type": "string"},
    "minItems": 1,
    "description": "Topics and partitions, such as ['pv', 'orders:0,1']; null means all.",
}
_STORE = {**_TEXT, "enum": [*STORES, None], "description": "The store of the offsets, where a group has several."}
_TO = {
    "description": "A place, or an object with the offset, a shift, a time (ISO 8601), or how long ago.",
    "oneOf": [
        {"type": "string", "enum": list(_PLACES)},
        *(
            {
                "type": "object",
                "properties": {kind: {"type": "integer" if kind in ("offset", "shift") else "string"}},
                "required": [kind],
                "additionalProperties": False,
            }
            for kind in _VALUES
        ),
    ],
}
_FILE = {"type": "object", "description": "What the export or an earlier action answered."}
_SETTINGS = {"type": "object", "minProperties": 1, "description": "Values by the names of settings; null removes one."}
_DRY_RUN = {**FLAG, "default": False, "description": "Whether to only answer what would change."}

_Change: TypeAlias = Callable[[Any, RestCall, "Body"], Awaitable[Answer]]


def takes(*required: str, **fields: object) -> Callable[[_Change], Callable[[Any, RestCall], Awaitable[Answer]]]:
    """
    Declare the JSON body of a change. The operation refuses bodies with unknown fields, and is described to clients.

    Args:
        required: The names of required fields, for the description only: the operation itself must check them.
        fields: The JSON schemas of all fields except ``dry_run``. Every change has the field ``dry_run``.
    """

    def decorate(change: _Change) -> Callable[[Any, RestCall], Awaitable[Answer]]:
        @wraps(change)
        async def checked(self: Any, call: RestCall) -> Answer:
            return await change(self, call, Body(call, fields, required))

        properties = {**fields, "dry_run": _DRY_RUN}
        checked.body = {  # type: ignore[attr-defined]
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        }
        return checked

    return decorate


class Actions:
    """
    The operations that change groups. They read and write on threads of their own, because that blocks.

    Args:
        find: Returns the cluster that a call names, or raises RestError.
        restore_folder: Where restore files are written. None writes no files.
    """

    def __init__(self, find: Callable[[RestCall], ServedCluster], restore_folder: Path | None) -> None:
        self._find = find
        self._restore_folder = restore_folder

    # ------------------------------------------------------------------ offsets

    @answers(openapi.OFFSETS)
    async def get_offsets(self, call: RestCall) -> Answer:
        """Answer with the offsets of a group, as 'kiel-groups offsets export' writes them."""
        cluster, group = self._find(call), call.arguments[1]

        def read() -> dict[str, Any]:
            found = cluster.address.offsets().read(group, with_logs=False)
            offsets = {each: found.offsets[each] for each in select(found, None, stored=True) if each in found.offsets}
            return _document(new_file(group, offsets).encode())

        return Answer(await cluster.run(read))

    @answers(openapi.OFFSETS_CHANGE)
    @takes("topics", "to", topics=_TOPICS, to=_TO, store=_STORE)
    async def reset_offsets(self, call: RestCall, body: Body) -> Answer:
        """Set the offsets of ``topics`` to the target ``to``. Live members in ZooKeeper groups continue there."""
        selection, target = body.selection(), _target(body.fields.get("to"))
        return await self._set_offsets(
            call,
            body,
            lambda source, group: plan_reset(source, group, selection, target, store=body.text("store")),
        )

    @answers(openapi.OFFSETS_CHANGE)
    @takes("file", "topics", file=_FILE, topics=_TOPICS, store=_STORE)
    async def import_offsets(self, call: RestCall, body: Body) -> Answer:
        """Set the offsets of ``topics`` as in ``file``: an exported document, or ``restore`` of an earlier answer."""
        file = parse_offsets_file(json.dumps(body.fields.get("file")).encode(), "file", call.arguments[1])
        return await self._set_offsets(
            call,
            body,
            lambda source, group: plan_import(source, group, file, body.selection(), store=body.text("store")),
        )

    @answers(openapi.OFFSETS_CHANGE)
    @takes("to", to={"type": "string"}, overwrite=FLAG, store=_STORE)
    async def copy_offsets(self, call: RestCall, body: Body) -> Answer:
        """Copy the offsets of a group to the group ``to``. Without ``overwrite``, that group must have no offsets."""
        to = body.text("to")
        if to is None:
            raise ConfigError("to: missing; expected the name of the group that gets the offsets")
        overwrite = body.flag("overwrite")
        return await self._set_offsets(
            call,
            body,
            lambda source, group: plan_copy(source, group, to, overwrite=overwrite, store=body.text("store")),
        )

    @answers(openapi.OFFSETS_CHANGE)
    @takes("topics", topics=_TOPICS, store=_STORE)
    async def delete_offsets(self, call: RestCall, body: Body) -> Answer:
        """Delete the offsets of ``topics`` (null: all topics). Live members must not subscribe to these topics."""
        selection = body.selection()
        return await self._set_offsets(
            call, body, lambda source, group: plan_delete(source, group, selection, store=body.text("store"))
        )

    async def _set_offsets(self, call: RestCall, body: Body, plan: Callable[[Any, str], OffsetsPlan]) -> Answer:
        cluster, group, store = self._find(call), call.arguments[1], body.text("store")
        if store is not None and cluster.address.is_of_brokers:
            raise ConfigError("store: given; brokers coordinate the groups of this cluster, whose offsets are in Kafka")
        if store not in (None, *STORES):
            raise ConfigError(f"store: {store!r:.100} given; expected one of {some(STORES)}")

        def act() -> dict[str, Any]:
            source = cluster.address.offsets()
            found = plan(source, group)
            found.check()
            file = new_file(found.group, found.lost).encode() if found.lost else ""
            document = {
                "dry_run": body.dry_run,
                "group": found.group,
                "store": found.found.store,
                "by_members": found.is_order,
                "changes": changes_document(found.changes),
                "left_out": list(map(str, found.left_out)),
                "not_set": [],
                "restore": _document(file) if file else None,
                "restore_file": None,
            }
            if body.dry_run or not (found.changing or found.znodes):
                return document
            document["restore_file"] = self._keep(found.group, file)
            if found.is_order:
                return {**document, "not_set": cluster.address.ask(partial(_order, found), _no_order)}
            found.apply(source)
            return document

        return await self._changed(call, cluster, body, act)

    # ------------------------------------------------------------------ the leader's settings

    @answers(openapi.CONFIG_CHANGE)
    @takes(member=_TEXT, host=_TEXT, leave_unowned=FLAG)
    async def drain(self, call: RestCall, body: Body) -> Answer:
        """Assign the partitions of ``member``, or of all members of ``host``, to other members. The members stay."""
        member, host, leave = body.text("member"), body.text("host"), body.flag("leave_unowned")
        _check_one(member, host)
        return await self._configure(
            call, body, lambda client, group: plan_drain(client, group, member, host=host, leave_unowned=leave)
        )

    @answers(openapi.CONFIG_CHANGE)
    @takes(member=_TEXT, host=_TEXT)
    async def undrain(self, call: RestCall, body: Body) -> Answer:
        """Let the drained ``member``, or the drained members of ``host``, own partitions again."""
        member, host = body.text("member"), body.text("host")
        _check_one(member, host)
        return await self._configure(call, body, lambda client, group: plan_undrain(client, group, member, host=host))

    @answers(openapi.CONFIG_CHANGE)
    @takes(reason=_TEXT)
    async def rebalance(self, call: RestCall, body: Body) -> Answer:
        """Request a new plan from the leader now. The history shows ``reason`` as the cause of the plan."""
        reason = body.text("reason") or "rebalance"
        return await self._configure(call, body, lambda client, group: plan_rebalance(client, group, reason=reason))

    @answers(openapi.CONFIG_CHANGE)
    @takes("settings", settings=_SETTINGS)
    async def configure(self, call: RestCall, body: Body) -> Answer:
        """Change ``settings`` of the group by name. The value null removes a setting; then the leader's own applies."""
        settings = body.fields.get("settings")
        if not isinstance(settings, dict) or not settings:
            raise ConfigError("settings: expected an object with the values of settings by their names")
        put = {name: str(value) for name, value in settings.items() if value is not None}
        removed = [name for name, value in settings.items() if value is None]
        return await self._configure(call, body, lambda client, group: plan_settings(client, group, put, removed))

    async def _configure(self, call: RestCall, body: Body, plan: Callable[[Client, str], ConfigChange]) -> Answer:
        cluster, group = self._find(call), call.arguments[1]
        if cluster.address.is_of_brokers:
            text = "brokers coordinate the groups of this cluster; a member allocates, and follows no settings"
            raise RestError(HTTPStatus.CONFLICT, text)

        def change(client: Client) -> dict[str, Any]:
            check_group(client, group, cluster.address.hosts)
            found = plan(client, group)
            if not body.dry_run:
                found.apply(client)
            return {**change_document(group, found.changes, found.owned), "dry_run": body.dry_run}

        return await self._changed(call, cluster, body, lambda: cluster.address.ask(change, _no_order))

    # ------------------------------------------------------------------ groups

    @answers(openapi.DELETION)
    @takes()
    async def delete_group(self, call: RestCall, body: Body) -> Answer:
        """Delete a group that has no members, with its offsets and settings, or only show these in a dry run."""
        cluster, group = self._find(call), call.arguments[1]

        def act() -> dict[str, Any]:
            plan = cluster.address.ask(
                partial(plan_deletion, group=group), partial(plan_deletion_at_brokers, group=group)
            )
            file = new_file(group, plan.offsets, znodes=plan.znodes).encode() if plan.offsets or plan.znodes else ""
            path = None if body.dry_run else self._keep(group, file)
            if not body.dry_run:
                cluster.address.ask(partial(delete_znodes, deletion=plan), partial(delete_at_brokers, group=group))
            document = deletion_document(plan, path or "")
            return {"dry_run": body.dry_run, **document, "restore": _document(file) if file else None}

        return await self._changed(call, cluster, body, act)

    def _keep(self, group: str, file: str) -> str | None:
        """
        Write what a change loses to a new restore file. Return its path, or None if no file is written.

        Raises:
            RestError: The file cannot be written, so the change must not be made.
        """
        if not file or self._restore_folder is None:
            return None
        path = restore_path(group, folder=self._restore_folder)
        try:
            write_offsets_file(path, file, is_secret=True)
        except ConfigError as error:
            text = f"{error}; nothing has changed; the service's option --restore-folder names another folder"
            raise RestError(HTTPStatus.INTERNAL_SERVER_ERROR, text) from error
        return str(path)

    async def _changed(
        self, call: RestCall, cluster: ServedCluster, body: Body, act: Callable[[], dict[str, Any]]
    ) -> Answer:
        """
        Execute ``act`` on a thread, and return its document as the answer.

        If the call is not a dry run, load the cluster's groups again soon, and log the change.
        """
        began_s = time.monotonic()
        document = await cluster.run(act)
        if not body.dry_run:
            finish_change(call, cluster, document, began_s)
        return Answer(document)


def finish_change(call: RestCall, cluster: ServedCluster, document: Mapping[str, Any], began_s: float) -> None:
    """
    Load the cluster's groups again soon, and log a change: the request, its client, and the values before and after.

    Args:
        call: The request.
        cluster: The cluster that has changed.
        document: The answer to the request.
        began_s: When the change began, in monotonic seconds.
    """
    cluster.refresh()
    what = {name: value for name, value in document.items() if name not in ("restore", "dry_run")}
    took_s = time.monotonic() - began_s
    log.info("%s %s by %s took %.1f s: %.2000s", call.method, call.path, call.client, took_s, json.dumps(what))


class Body:
    """
    The JSON body of a change, with methods that check its fields. An empty body is an empty object.

    The methods raise ConfigError if a field has a value of the wrong type.

    Raises:
        RestError: The body is not a JSON object.
        ConfigError: The body or the query has an unknown field, or ``dry_run`` is neither true nor false.
    """

    def __init__(self, call: RestCall, names: Collection[str], required: Collection[str]) -> None:
        self.fields: Mapping[str, Any] = parse_object(call.body) if call.body else {}
        if unknown := sorted(self.fields.keys() - names - {"dry_run"}):
            raise ConfigError(f"the body has {unknown[0]!r:.100}; expected {some(sorted({*names, 'dry_run'}), 10)}")
        if missing := [name for name in required if name not in self.fields]:
            raise ConfigError(f"{missing[0]}: missing in the body, which needs {some(required)}")
        if unknown := sorted(call.query.keys() - {"dry_run"}):
            raise ConfigError(f"the query has {unknown[0]!r:.100}; expected 'dry_run' or nothing")
        for value in call.query.get("dry_run", ()):
            if value.lower() not in ("true", "false"):
                raise ConfigError(f"dry_run: {value!r:.100} given in the query; expected true or false")
        #: Whether to only show what would change.
        self.dry_run = self.flag("dry_run") or call.is_set("dry_run")

    def flag(self, name: str) -> bool:
        """Return a field that is true or false. A missing field is false."""
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{name}: {value!r:.100} given; expected true or false")
        return value

    def text(self, name: str) -> str | None:
        """Return a field that is a string, or None if the field is missing or null."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name}: {value!r:.100} given; expected a text")
        return value

    def number(self, name: str) -> int | None:
        """Return a field that is a whole number of at least 0, or None if the field is missing or null."""
        value = self.fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**9):
            raise ConfigError(f"{name}: {value!r:.100} given; expected a whole number of at least 0")
        return value

    def selection(self) -> Selection | None:
        """Return the partitions that the required field ``topics`` selects, or None (all partitions) for null."""
        names = self.fields["topics"]
        if names is None:
            return None
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"topics: {names!r:.100} given; expected a list such as ['pv', 'orders:0,1'], or null")
        return parse_selection(names)


def _target(given: object) -> Target:
    if given in _PLACES:
        return Target(given)
    if isinstance(given, dict) and len(given) == 1 and given.keys() <= set(_VALUES):
        ((kind, value),) = given.items()
        if kind in ("offset", "shift") and is_whole(value):
            return Target(kind, value)
        if kind == "time" and isinstance(value, str):
            return Target("time", parse_time(value))
        if kind == "ago" and isinstance(value, str):
            return Target("time", time.time_ns() // 1_000_000 - duration_ms(value))
    raise ConfigError(
        f"to: {given!r:.100} given; expected one of {some(_PLACES)}, or an object with one of {some(_VALUES)}"
    )


def _order(plan: OffsetsPlan, client: Client) -> list[str]:
    """
    Order live members to set the offsets, and wait until they have done so, at most 30 s.

    Return the partitions whose offsets they have not set.
    """
    order = plan.order(client)
    return sorted(map(str, order.wait(client, timeout_s=_ORDER_S)))


async def _no_order(_session: object) -> Any:
    raise AssertionError("the groups of brokers take no orders and no settings")


def _check_one(member: str | None, host: str | None) -> None:
    if member is None and host is None:
        raise ConfigError("member: missing; expected a member or a host")
    if member is not None and host is not None:
        raise ConfigError("host: given beside a member; expected one of them")


def _document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found
