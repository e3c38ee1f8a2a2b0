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


def each(schema: Schema, names: str) -> Schema:
    """Return fields with one schema. ``names`` has their names, separated by blanks."""
    return dict.fromkeys(names.split(), schema)


_OBJECT: Schema = {"type": "object"}
_DECIMAL: Schema = {"type": "number"}
_TEXT, _NUMBER = maybe(TEXT), maybe(NUMBER)
_TEXTS = listed(TEXT)

_ERROR = fields(error_code=NUMBER, message=TEXT)

HEALTH = fields(status=TEXT)
READINESS = fields(status={"enum": ["ok", "partly ready", "not ready"]}, clusters=mapped(TEXT))
DESCRIPTION = fields(openapi=TEXT, **each(_OBJECT, "info paths components"))

_CLUSTER = {
    **each(TEXT, "cluster coordination hosts"),
    **each(NUMBER, "version brokers"),
    **each(_TEXT, "error lag_problem"),
    "loaded_at": _NUMBER,
    "problems": _TEXTS,
}
CLUSTERS = fields(clusters=listed(fields(**_CLUSTER)))

_FINDING = fields(**each(TEXT, "kind text remedy"), passing=FLAG, **each(_TEXTS, "partitions members"))
FINDINGS = fields(group=TEXT, findings=listed(_FINDING))

#: Of the optional fields, groups that brokers coordinate have ``coordinator``. Groups in ZooKeeper have all others.
_OUTLINE = fields(
    {"foreign_members": NUMBER, "leader": _TEXT, "generation": _NUMBER, "closed": _TEXTS, "coordinator": TEXT},
    **each(TEXT, "group type state trend"),
    **each(NUMBER, "partitions unowned"),
    **each(_NUMBER, "members lag"),
    findings=listed(_FINDING),
)
GROUPS = fields(**_CLUSTER, groups=listed(_OUTLINE))

_LAG_OF_MANY = {"lag": _NUMBER, "partitions_of_unknown_lag": NUMBER}
_LAG_OF_PARTITION = {
    "topic": TEXT,
    "partition": NUMBER,
    **each(_NUMBER, "committed log_end lag"),
    "stores": maybe(mapped(NUMBER)),
}
LAG = fields(
    **{"group": TEXT, **_LAG_OF_MANY, "lag_problem": _TEXT, "trend": TEXT},
    partitions=listed(fields(**_LAG_OF_PARTITION, **each(_TEXT, "trend trend_reason"))),
    course=listed(fields(at=NUMBER, lag=NUMBER)),
)

_GENERATION = fields(
    **each(TEXT, "cause leader"), **each(NUMBER, "generation moved members partitions took_ms created_at")
)
HISTORY = fields(group=TEXT, history=listed(_GENERATION))

_PROCESS = {
    **each(TEXT, "id host client"),
    **each(_NUMBER, "pid started_at session_timeout_ms"),
    "leads": FLAG,
}
_CONSUMER = fields(
    **{**_PROCESS, **_LAG_OF_MANY},
    **each(_TEXT, "instance_id rack pattern"),
    **each(_TEXTS, "subscription target owned"),
    capacity=_DECIMAL,
)
_PROGRAM = fields(**_PROCESS, joined=_NUMBER, protocols=_TEXTS)
_COORDINATED_MEMBER = fields(
    **each(TEXT, "id client host"),
    **each(maybe(_TEXTS), "subscription owned"),
    **each(_NUMBER, "lag partitions_of_unknown_lag"),
)
_PLANNED = {**each(TEXT, "state leader cause"), **each(NUMBER, "generation created_at")}
_OF_EVERY_GROUP = {
    **each(TEXT, "group type state trend"),
    **_LAG_OF_MANY,
    "lag_problem": _TEXT,
    "wrong": listed(_FINDING),
    "is_partial": {**FLAG, "description": "Whether owners, offsets and findings are older than the plan."},
    "version": NUMBER,
}
_FOLLOWED = fields(
    debounce=mapped(NUMBER),
    **each(_TEXTS, "drained drained_strangers"),
    allocator=_TEXT,
    static_grace_ms=_NUMBER,
    broker_racks=mapped(TEXT),
)
_GROUP_IN_ZOOKEEPER = fields(
    **_OF_EVERY_GROUP,
    leader=_TEXT,
    **each(_TEXTS, "candidates closed"),
    allocation=maybe(fields(**_PLANNED, **each(TEXT, "allocator fallback"), unassigned=mapped(NUMBER))),
    round=maybe(fields(**_PLANNED, protocol=TEXT, refused=mapped(TEXT))),
    settings=maybe(fields(**each(TEXT, "store mode auto_offset_reset"))),
    follows=maybe(_FOLLOWED),
    weights=NUMBER,
    brokers=_NUMBER,
    members=listed({"anyOf": [_CONSUMER, _PROGRAM]}),
    foreign_members=listed(fields(**each(TEXT, "name path"), topics=_TEXTS, unevaluated=_TEXT)),
    partitions=listed(
        fields(**_LAG_OF_PARTITION, **each(_NUMBER, "committed_at claimed_at"), **each(_TEXT, "owner target"))
    ),
    history=listed(_GENERATION),
)
_GROUP_OF_BROKERS = fields(
    **_OF_EVERY_GROUP,
    **each(TEXT, "broker_state coordinator"),
    strategy=_TEXT,
    members=listed(_COORDINATED_MEMBER),
    partitions=listed(fields(**_LAG_OF_PARTITION, owner=_TEXT)),
)
GROUP = {"anyOf": [_GROUP_IN_ZOOKEEPER, _GROUP_OF_BROKERS]}

_MEMBER = fields(
    id=TEXT,
    **each(_TEXT, "instance_id kind client host rack"),
    **each(_NUMBER, "protocol_version pid partitions assigned session_timeout_ms started_at"),
    **each(FLAG, "leads drained"),
    capacity=maybe(_DECIMAL),
)
MEMBERS = fields(**each(TEXT, "group type state"), allocator=_TEXT, members=listed(_MEMBER))
ALLOCATION = fields(
    **each(TEXT, "group state"),
    generation=_NUMBER,
    partitions=listed(fields(topic=TEXT, partition=NUMBER, **each(_TEXT, "owner target"))),
)
_COUNTED = {**each(NUMBER, "partitions_before partitions_after"), **each(_DECIMAL, "load_before load_after")}
PLAN = fields(
    **each(TEXT, "group allocator"),
    fallback=_TEXT,
    notes=_TEXTS,
    members=listed(fields(**each(TEXT, "id name"), gone=FLAG, **_COUNTED, after=_TEXTS)),
    moves=listed(fields(topic=TEXT, partition=NUMBER, **each(_TEXT, "before after"))),
    unassigned=mapped(TEXT),
)

OFFSETS = fields({"znodes": mapped(TEXT)}, version=NUMBER, **each(TEXT, "group made"), offsets=mapped(NUMBER))
_RESTORE = {"restore": maybe(OFFSETS), "restore_file": _TEXT}
OFFSETS_CHANGE = fields(
    **{"group": TEXT, "store": _TEXT, **each(FLAG, "dry_run by_members"), **_RESTORE},
    changes=listed(fields(topic=TEXT, partition=NUMBER, **each(_NUMBER, "before after"), note=_TEXT)),
    **each(_TEXTS, "left_out not_set"),
)
CONFIG_CHANGE = fields(
    dry_run=FLAG,
    group=TEXT,
    members=listed(fields(slot=TEXT, owned=NUMBER)),
    changes=listed(fields(setting=TEXT, before={}, after={})),
)
DELETION = fields(
    **{"dry_run": FLAG, **each(TEXT, "group type"), **each(_TEXTS, "loses notes znodes"), **_RESTORE},
    offsets=mapped(NUMBER),
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
            method.lower(): _operation(method, path, operation, schemas)
            for method, operation in route.operations.items()
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
