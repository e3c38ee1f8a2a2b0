"""Describe the service's JSON interface in OpenAPI 3.1, from its routes and the docstrings of its operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kiel_groups.rest.calls import JSON, Operation, Route

F = TypeVar("F", bound=Callable[..., object])

#: The names of the parts of a path, in order.
_PARTS = ("cluster", "group", "connector")

#: The regular expression of a variable part of a path in the patterns of routes.
_ANY = "([^/]+)"

_ERROR = {
    "type": "object",
    "properties": {"error_code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["error_code", "message"],
}


def asks(arguments: Mapping[str, str]) -> Callable[[F], F]:
    """Declare the query arguments of an operation, each with its meaning, for the description."""

    def decorate(operation: F) -> F:
        operation.query = arguments  # type: ignore[attr-defined]
        return operation

    return decorate


def describe(routes: Iterable[Route], clusters: Iterable[str]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes. ``clusters`` are the names of the served clusters."""
    text = {"type": "string"}
    schemas = {"cluster": {**text, "enum": sorted(clusters)}, "group": text, "connector": text}
    paths = {}
    for route in routes:
        path = route.pattern
        for name in _PARTS:
            path = path.replace(_ANY, f"{{{name}}}", 1)
        paths[path] = {method.lower(): _operation(path, each, schemas) for method, each in route.operations.items()}
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


def _operation(path: str, operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    text = inspect.getdoc(operation) or ""
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": schemas[name]}
        for name in _PARTS
        if f"{{{name}}}" in path
    ]
    in_query = [
        {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
        for name, meaning in getattr(operation, "query", {}).items()
    ]
    kind, schema = ("text/plain", "string") if path == "/metrics" else (JSON, "object")
    described: dict[str, Any] = {
        "operationId": operation.__name__,
        "summary": text.partition("\n\n")[0].replace("\n", " "),
        "parameters": [*in_path, *in_query],
        "responses": {
            "200": _content("The answer.", kind, {"type": schema}),
            "default": _content("Why the request is refused.", JSON, {"$ref": "#/components/schemas/Error"}),
        },
    }
    if (body := getattr(operation, "body", None)) is not None:
        described["requestBody"] = {"content": {JSON: {"schema": body}}, "required": bool(body["required"])}
    return described


def _content(description: str, content_type: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {content_type: {"schema": schema}}}
