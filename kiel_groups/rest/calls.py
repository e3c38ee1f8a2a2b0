"""The routes, requests and answers of a REST interface, JSON bodies, and errors with their HTTP status."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple, NoReturn, TypeAlias

from tornado.web import HTTPError

from kiel_groups.errors import (
    AuthorizationError,
    ConfigError,
    ConflictError,
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
    An error that a REST interface answers with this HTTP status, and these additional headers.

    A text of more than 8,192 characters is cut.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        rest = len(message) - _LONGEST_TEXT
        super().__init__(message if rest <= 0 else f"{message[:_LONGEST_TEXT]}… ({rest:,} characters more)")
        self.status = status
        self.headers = headers or {}


def refusal_of(error: BaseException) -> RestError:
    """
    Convert an error of any class to a RestError with the status and the text of the answer.

    The text of an error of an unknown class is cut, and leaves out secrets.
    """
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
        case ConflictError() | RebalanceError():
            # Existing connectors are a conflict, too: by this header, clients know that a later try may succeed.
            return RestError(HTTPStatus.CONFLICT, text, {"Retry-After": str(RETRY_AFTER_S)})
        case ConfigError():
            return RestError(HTTPStatus.BAD_REQUEST, text)
        case AuthorizationError():  # Only the members themselves try again until they have the right.
            return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        case TimeoutError():
            return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, "the request timed out; a change may still follow")
        case KielGroupsError() if error.retriable:
            return RestError(HTTPStatus.SERVICE_UNAVAILABLE, text, {"Retry-After": str(RETRY_AFTER_S)})
        case KielGroupsError():
            return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    return RestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error_texts(error).summary}")


def status_text(status: int) -> str:
    """Return a status as Kafka Connect writes it, such as ``HTTP 404 Not Found``."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


@dataclass(frozen=True, slots=True)
class RestCall:
    """
    A request to a route.

    Args:
        method: The HTTP method, such as ``GET``.
        path: The path, percent-encoded.
        arguments: The decoded parts of the path that match the groups of the route's pattern, such as the connector.
        query: The values of each query argument.
        body: The bytes of the body.
        host: The host and port in the header ``Host`` of the request.
        client: The IP address of the client.
    """

    method: str
    path: str
    arguments: Sequence[str] = ()
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    body: bytes = b""
    host: str = ""
    client: str = ""

    def is_set(self, name: str) -> bool:
        """Return whether this query argument is ``true``, in upper or lower case. A missing argument is not."""
        return any(value.lower() == "true" for value in self.query.get(name, ()))


@dataclass(frozen=True, slots=True)
class Answer:
    """
    An answer to a request.

    Args:
        document: The JSON document of the body, or its text if ``content_type`` is another type. None means no body.
        status: The HTTP status.
        location: The path of the resource that the request has created, or "".
        content_type: The media type of the body.
    """

    document: Any = None
    status: int = HTTPStatus.OK
    location: str = ""
    content_type: str = JSON

    @property
    def text(self) -> str:
        """The text of the body: the document as JSON, or unchanged if the content type is another type."""
        return json.dumps(self.document) if self.content_type == JSON else str(self.document)


def parse_object(body: bytes, *, numbers_as_texts: bool = False) -> dict[str, Any]:
    """
    Return the JSON object in a body. With ``numbers_as_texts``, each number becomes a string, as written in the body.

    Raises:
        RestError: The body is not JSON in UTF-8, is not an object, or has an object with a duplicate name.
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
    """A pattern of paths, as a regular expression, and the operation for each HTTP method."""

    pattern: str
    operations: Mapping[str, Operation]
