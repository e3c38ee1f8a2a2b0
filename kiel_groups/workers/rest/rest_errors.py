"""Choose the HTTP status and the text with which the REST interface answers an error."""

from __future__ import annotations

from http import HTTPStatus

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    RebalanceError,
    UnknownConnectorError,
)
from kiel_groups.workers.plugins.secret_texts import error_texts

__all__ = ["RETRY_AFTER_S", "RestError", "refusal_of", "status_text"]

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
