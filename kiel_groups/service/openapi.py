"""
Describe the service's JSON interface in OpenAPI 3.1, from its routes and the docstrings of its operations.

Each operation declares its query, its body and its answers by decorators. The schemas of the answers are here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from kiel_groups.rest.calls import JSON, Operation, Route

F = TypeVar("F", bound=Callable[..., object])

#: The names of the parts of a path, in order.
_PARTS = ("cluster", "group", "connector")

#: The regular expression of a variable part of a path in the patterns of routes.
_ANY = "([^/]+)"

Schema: TypeAlias = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list of such values."""
    return {"type": "array", "items": schema}


def mapped(schema: Schema) -> Schema:
    """Return the schema of an object with such values by any names."""
    return {"type": "object", "additionalProperties": schema}


def fields(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object that has the ``required`` fields, and may have the ``optional`` fields."""
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


_OBJECT: Schema = {"type": "object"}
_DECIMAL: Schema = {"type": "number"}
_TEXT, _NUMBER = maybe(TEXT), maybe(NUMBER)
_TEXTS = listed(TEXT)

_ERROR = fields(error_code=NUMBER, message=TEXT)

HEALTH = fields(status=TEXT)
READINESS = fields(status={"enum": ["ok", "partly ready", "not ready"]}, clusters=mapped(TEXT))
DESCRIPTION = fields(openapi=TEXT, info=_OBJECT, paths=_OBJECT, components=_OBJECT)

_CLUSTER = {
    "cluster": TEXT,
    "coordination": TEXT,
    "hosts": TEXT,
    "version": NUMBER,
    "loaded_at": _NUMBER,
    "error": _TEXT,
    "problems": _TEXTS,
    "brokers": NUMBER,
    "lag_problem": _TEXT,
}
CLUSTERS = fields(clusters=listed(fields(**_CLUSTER)))

_FINDING = fields(kind=TEXT, text=TEXT, remedy=TEXT, passing=FLAG, partitions=_TEXTS, members=_TEXTS)
FINDINGS = fields(group=TEXT, findings=listed(_FINDING))

#: Of the optional fields, groups that brokers coordinate have ``coordinator``. Groups in ZooKeeper have all others.
_OUTLINE = fields(
    {"foreign_members": NUMBER, "leader": _TEXT, "generation": _NUMBER, "closed": _TEXTS, "coordinator": TEXT},
    group=TEXT,
    type=TEXT,
    members=_NUMBER,
    state=TEXT,
    lag=_NUMBER,
    trend=TEXT,
    partitions=NUMBER,
    unowned=NUMBER,
    findings=listed(_FINDING),
)
GROUPS = fields(**_CLUSTER, groups=listed(_OUTLINE))

_LAG_OF_MANY = {"lag": _NUMBER, "partitions_of_unknown_lag": NUMBER}
_LAG_OF_PARTITION = {
    "topic": TEXT,
    "partition": NUMBER,
    "committed": _NUMBER,
    "log_end": _NUMBER,
    "lag": _NUMBER,
    "stores": maybe(mapped(NUMBER)),
}
LAG = fields(
    **{"group": TEXT, **_LAG_OF_MANY, "lag_problem": _TEXT, "trend": TEXT},
    partitions=listed(fields(**_LAG_OF_PARTITION, trend=_TEXT, trend_reason=_TEXT)),
    course=listed(fields(at=NUMBER, lag=NUMBER)),
)

_GENERATION = fields(
    generation=NUMBER,
    cause=TEXT,
    leader=TEXT,
    moved=NUMBER,
    members=NUMBER,
    partitions=NUMBER,
    took_ms=NUMBER,
    created_at=NUMBER,
)
HISTORY = fields(group=TEXT, history=listed(_GENERATION))

_PROCESS = {
    "id": TEXT,
    "leads": FLAG,
    "host": TEXT,
    "pid": _NUMBER,
    "client": TEXT,
    "started_at": _NUMBER,
    "session_timeout_ms": _NUMBER,
}
_CONSUMER = fields(
    **_PROCESS,
    instance_id=_TEXT,
    capacity=_DECIMAL,
    rack=_TEXT,
    subscription=_TEXTS,
    pattern=maybe(TEXT),
    target=_TEXTS,
    **{"owned": _TEXTS, **_LAG_OF_MANY},
)
_PROGRAM = fields(**_PROCESS, joined=_NUMBER, protocols=_TEXTS)
_COORDINATED_MEMBER = fields(
    id=TEXT,
    client=TEXT,
    host=TEXT,
    subscription=maybe(_TEXTS),
    owned=maybe(_TEXTS),
    lag=_NUMBER,
    partitions_of_unknown_lag=_NUMBER,
)
_PLANNED = {"generation": NUMBER, "state": TEXT, "leader": TEXT, "cause": TEXT, "created_at": NUMBER}
_OF_EVERY_GROUP = {
    "group": TEXT,
    "type": TEXT,
    "state": TEXT,
    **_LAG_OF_MANY,
    "lag_problem": _TEXT,
    "wrong": listed(_FINDING),
    "is_partial": {**FLAG, "description": "Whether owners, offsets and findings are older than the plan."},
    "trend": TEXT,
    "version": NUMBER,
}
_GROUP_IN_ZOOKEEPER = fields(
    **_OF_EVERY_GROUP,
    leader=_TEXT,
    candidates=_TEXTS,
    allocation=maybe(fields(**_PLANNED, allocator=TEXT, fallback=TEXT, unassigned=mapped(NUMBER))),
    round=maybe(fields(**_PLANNED, protocol=TEXT, refused=mapped(TEXT))),
    settings=maybe(fields(store=TEXT, mode=TEXT, auto_offset_reset=TEXT)),
    follows=maybe(
        fields(
            allocator=_TEXT,
            debounce=mapped(NUMBER),
            static_grace_ms=_NUMBER,
            broker_racks=mapped(TEXT),
            drained=_TEXTS,
            drained_strangers=_TEXTS,
        )
    ),
    weights=NUMBER,
    brokers=_NUMBER,
    closed=_TEXTS,
    members=listed({"anyOf": [_CONSUMER, _PROGRAM]}),
    foreign_members=listed(fields(name=TEXT, path=TEXT, topics=_TEXTS, unevaluated=_TEXT)),
    partitions=listed(fields(**_LAG_OF_PARTITION, committed_at=_NUMBER, owner=_TEXT, claimed_at=_NUMBER, target=_TEXT)),
    history=listed(_GENERATION),
)
_GROUP_OF_BROKERS = fields(
    **_OF_EVERY_GROUP,
    broker_state=TEXT,
    strategy=_TEXT,
    coordinator=TEXT,
    members=listed(_COORDINATED_MEMBER),
    partitions=listed(fields(**_LAG_OF_PARTITION, owner=_TEXT)),
)
GROUP = {"anyOf": [_GROUP_IN_ZOOKEEPER, _GROUP_OF_BROKERS]}

_MEMBER = fields(
    id=TEXT,
    instance_id=_TEXT,
    kind=_TEXT,
    client=_TEXT,
    protocol_version=_NUMBER,
    host=_TEXT,
    pid=_NUMBER,
    leads=FLAG,
    capacity=maybe(_DECIMAL),
    rack=_TEXT,
    partitions=_NUMBER,
    assigned=_NUMBER,
    session_timeout_ms=_NUMBER,
    started_at=_NUMBER,
    drained=FLAG,
)
MEMBERS = fields(group=TEXT, type=TEXT, state=TEXT, allocator=_TEXT, members=listed(_MEMBER))
ALLOCATION = fields(
    group=TEXT,
    state=TEXT,
    generation=_NUMBER,
    partitions=listed(fields(topic=TEXT, partition=NUMBER, owner=_TEXT, target=_TEXT)),
)
_COUNTED = {"partitions_before": NUMBER, "partitions_after": NUMBER, "load_before": _DECIMAL, "load_after": _DECIMAL}
PLAN = fields(
    group=TEXT,
    allocator=TEXT,
    fallback=_TEXT,
    notes=_TEXTS,
    members=listed(fields(id=TEXT, name=TEXT, gone=FLAG, **_COUNTED, after=_TEXTS)),
    moves=listed(fields(topic=TEXT, partition=NUMBER, before=_TEXT, after=_TEXT)),
    unassigned=mapped(TEXT),
)

OFFSETS = fields({"znodes": mapped(TEXT)}, version=NUMBER, group=TEXT, made=TEXT, offsets=mapped(NUMBER))
_RESTORE = {"restore": maybe(OFFSETS), "restore_file": _TEXT}
OFFSETS_CHANGE = fields(
    **{"dry_run": FLAG, "group": TEXT, "store": _TEXT, "by_members": FLAG, **_RESTORE},
    changes=listed(fields(topic=TEXT, partition=NUMBER, before=_NUMBER, after=_NUMBER, note=_TEXT)),
    left_out=_TEXTS,
    not_set=_TEXTS,
)
CONFIG_CHANGE = fields(
    dry_run=FLAG,
    group=TEXT,
    members=listed(fields(slot=TEXT, owned=NUMBER)),
    changes=listed(fields(setting=TEXT, before={}, after={})),
)
DELETION = fields(
    **{"dry_run": FLAG, "group": TEXT, "type": TEXT, "loses": _TEXTS, "notes": _TEXTS, **_RESTORE},
    offsets=mapped(NUMBER),
    znodes=_TEXTS,
    committed_at=_NUMBER,
)

_WORK = {"state": TEXT, "worker_id": TEXT}
_TRACE = {"trace": TEXT, "problem": TEXT, "metrics": listed(listed({}))}
CONNECTOR = fields(name=TEXT, config=mapped(TEXT), tasks=listed(fields(connector=TEXT, task=NUMBER)), type=TEXT)
CONNECTOR_STATUS = fields(
    name=TEXT, connector=fields(_TRACE, **_WORK), tasks=listed(fields(_TRACE, id=NUMBER, **_WORK)), type=TEXT
)
CONNECTORS = mapped(fields(status=CONNECTOR_STATUS, info=CONNECTOR))
_CONNECTOR_CHANGE = {"dry_run": FLAG, "group": TEXT, "connector": TEXT}
CONNECTOR_CHANGE = fields(**_CONNECTOR_CHANGE, changes=listed(fields(work=TEXT, before=TEXT, after=TEXT)))
CONNECTOR_SETTINGS_CHANGE = fields(
    **{**_CONNECTOR_CHANGE, "is_new": FLAG, "notes": _TEXTS},
    changes=listed(fields(setting=TEXT, before=_TEXT, after=_TEXT, note=TEXT)),
)
CONNECTOR_DELETION = fields(
    **{**_CONNECTOR_CHANGE, "config": mapped(TEXT), "notes": _TEXTS},
    changes=listed(fields(work=TEXT, before=TEXT, after=_TEXT)),
)


def asks(arguments: Mapping[str, str]) -> Callable[[F], F]:
    """Declare the query arguments of an operation, each with its meaning, for the description."""

    def decorate(operation: F) -> F:
        operation.query = arguments  # type: ignore[attr-defined]
        return operation

    return decorate


def answers(schema: Schema, others: Mapping[int, Schema] | None = None) -> Callable[[F], F]:
    """
    Declare the answers of an operation, for the description.

    Args:
        schema: The schema of an answer with status 200.
        others: The schemas of answers with other statuses that are no errors.
    """

    def decorate(operation: F) -> F:
        operation.answers = {200: schema, **(others or {})}  # type: ignore[attr-defined]
        return operation

    return decorate


def describe(routes: Iterable[Route], clusters: Iterable[str]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes. ``clusters`` are the names of the served clusters."""
    schemas = {"cluster": {**TEXT, "enum": sorted(clusters)}, "group": TEXT, "connector": TEXT}
    paths = {}
    for route in routes:
        path = route.pattern
        for name in _PARTS:
            path = path.replace(_ANY, f"{{{name}}}", 1)
        paths[path] = {
            method.lower(): _operation(method, path, each, schemas) for method, each in route.operations.items()
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kiel-groups",
            "version": "1",
            "description": "Consumer groups of Kafka: what there is, what is wrong, and what operators can do.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(method: str, path: str, operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    text = inspect.getdoc(operation) or ""
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": schemas[name]}
        for name in _PARTS
        if f"{{{name}}}" in path
    ]
    in_query = [
        {"name": name, "in": "query", "description": meaning, "schema": TEXT}
        for name, meaning in getattr(operation, "query", {}).items()
    ]
    kind = "text/plain" if path == "/metrics" else JSON
    answered = getattr(operation, "answers").items()  # noqa: B009 - a function has no such attribute by its type
    described: dict[str, Any] = {
        "operationId": operation.__name__,
        "summary": text.partition("\n\n")[0].replace("\n", " "),
        "parameters": [*in_path, *in_query],
        "responses": {
            **{str(status): _content("The answer.", kind, schema) for status, schema in answered},
            "default": _content("Why the request is refused.", JSON, {"$ref": "#/components/schemas/Error"}),
        },
    }
    if method != "GET":
        described["security"] = [{"token": []}]
    if (body := getattr(operation, "body", None)) is not None:
        described["requestBody"] = {"content": {JSON: {"schema": body}}, "required": bool(body["required"])}
    return described


def _content(description: str, content_type: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {content_type: {"schema": schema}}}
