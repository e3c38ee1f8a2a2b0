"""Requests and answers of a REST interface: routes, JSON bodies, and errors with their HTTP status."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn, TypeAlias

from tornado.web import HTTPError

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    RebalanceError,
    UnknownConnectorError,
    UnknownGroupError,
)
from kiel_groups.secret_texts import error_texts

#: After how many seconds a client may repeat a request that was refused for a reason that passes.
RETRY_AFTER_S = 1


#: The type of JSON documents.
JSON = "application/json"

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
        case UnknownConnectorError() | UnknownGroupError():
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
        host: The host to which the client has sent the request, as the client names it.
        client: The address of the client.
    """

    method: str
    path: str
    arguments: Sequence[str] = ()
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""
    host: str = ""
    client: str = ""

    def is_set(self, name: str) -> bool:
        """Return whether a query argument is true."""
        return any(value.lower() == "true" for value in self.query.get(name, ()))


@dataclass(frozen=True, slots=True)
class Answer:
    """
    An answer to a request.

    Args:
        document: The JSON document, or None for an answer without a body. Of another type, it is the text.
        status: The HTTP status.
        location: The path of what the request has created, or "".
        content_type: The type of the body.
    """

    document: Any = None
    status: int = HTTPStatus.OK
    location: str = ""
    content_type: str = JSON

    @property
    def text(self) -> str:
        """The body."""
        return json.dumps(self.document) if self.content_type == JSON else str(self.document)


def parse_object(body: bytes, *, numbers_as_texts: bool = False) -> dict[str, Any]:
    """
    Return the JSON object of a body. With ``numbers_as_texts``, numbers become texts, spelled as in the body.

    Raises:
        RestError: The body is not JSON, or not an object.
    """
    try:
        # Settings are stored as UTF-8, which has no half of a surrogate pair.
        text = body.decode()
        number: dict[str, Any] = {"parse_int": str, "parse_float": str} if numbers_as_texts else {}
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique, **number)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}"[:500]) from error
    if not isinstance(found, dict):
        raise RestError(HTTPStatus.BAD_REQUEST, "the body is JSON, but no object; expected an object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


Operation: TypeAlias = Callable[[RestCall], Awaitable[Answer]]


class Route(NamedTuple):
    """A pattern of paths, and the operation of each method."""

    pattern: str
    operations: Mapping[str, Operation]
