"""Send requests to the REST interfaces of workers, with limits for the time and the size of an answer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    NoWorkerError,
    ProtocolError,
    RebalanceError,
    TokenError,
    UnknownConnectorError,
)
from kiel_groups.rest.calls import RETRY_AFTER_S, Answer, RestError

#: The largest answer, in bytes. An answer with the traces of a thousand failed tasks has 8 MiB.
_LARGEST_ANSWER = 32 << 20

#: How long a connection may take, in seconds.
_CONNECT_TIMEOUT_S = 5.0

#: Tornado's status of a request that was not answered in time.
_NOT_ANSWERED = 599


def connector_path(name: str) -> str:
    """Return the URL path of a connector, percent-encoded."""
    return f"/connectors/{quote(name, safe='')}"


class HttpAnswer(NamedTuple):
    """An answer of a worker: status, JSON document or None, ``Location``, and whether the client may retry later."""

    status: int
    document: Any
    location: str
    is_temporary: bool

    @property
    def message(self) -> str:
        """The error text of the answer, or "" if the answer has no error text."""
        text = self.document.get("message") if isinstance(self.document, dict) else None
        return text if isinstance(text, str) else ""

    def passed_on(self, url: str, wrong_token: str) -> Answer:
        """
        Return the answer for the client whose request was forwarded to the worker at ``url``.

        Raises:
            RestError: The worker's answer is an error. The new error has the same text, status and ``Retry-After``,
                unless the worker has refused the token: its text is ``wrong_token`` then.
        """
        if self.status == HTTPStatus.UNAUTHORIZED:
            raise RestError(HTTPStatus.BAD_GATEWAY, wrong_token)
        if self.status >= HTTPStatus.BAD_REQUEST:
            headers = {"Retry-After": str(RETRY_AFTER_S)} if self.is_temporary else {}
            raise RestError(self.status, self.message or f"the worker at {url} gave no reason", headers)
        return Answer(self.document, self.status, self.location)


class HttpExchange:
    """
    Sends requests to workers on an event loop. A request is sent once, and redirects are not followed.

    Args:
        token: The token of the workers, or "".
        timeout_s: How long a request and its answer may take, in seconds.
        largest_answer: The most bytes of an answer. A larger answer counts as no answer.
    """

    def __init__(self, token: str, timeout_s: float, largest_answer: int = _LARGEST_ANSWER) -> None:
        self._token = token
        self._timeout_s = timeout_s
        self._client = AsyncHTTPClient(force_instance=True, max_clients=50, max_body_size=largest_answer)

    async def send(self, method: str, url: str, body: bytes = b"") -> HttpAnswer:
        """
        Send a request, and return the answer, even an answer with an error status.

        Args:
            method: The method, such as GET.
            url: The URL with path and query.
            body: A JSON document, or empty.

        Raises:
            NoWorkerError: No worker answers at this URL in time.
            ConfigError: ``url`` is not a URL.
            ProtocolError: The answer is a redirect, or not JSON, and so not the answer of a worker.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        headers |= {"Content-Type": "application/json"} if body else {}
        try:
            request = HTTPRequest(
                url,
                method,
                headers,
                body if method in {"POST", "PUT"} or body else None,
                connect_timeout=min(_CONNECT_TIMEOUT_S, self._timeout_s),
                request_timeout=self._timeout_s,
                # The token must not be sent to another URL.
                follow_redirects=False,
                user_agent="kiel-groups",
                allow_nonstandard_methods=True,
            )
            response = await self._client.fetch(request, raise_error=False)
        except (HTTPError, OSError) as error:
            raise NoWorkerError(f"no worker answers at {_address(url)}: {_reason(error)}") from error
        except ValueError as error:
            raise ConfigError(f"{url!r:.200} is not the URL of a worker: {error}") from error
        if response.code == _NOT_ANSWERED:
            raise NoWorkerError(f"no worker answers at {_address(url)}: {response.reason or 'no answer'}")
        if HTTPStatus.MULTIPLE_CHOICES <= response.code < HTTPStatus.BAD_REQUEST:
            raise ProtocolError(
                f"{_address(url)} is not the interface of a worker: it redirects to"
                f" {response.headers.get('Location', '')!r:.200}, where the request is not sent; expected the URL of a"
                " worker itself"
            )
        document = None
        if response.body:
            try:
                document = json.loads(response.body)
            except (ValueError, RecursionError) as error:
                raise ProtocolError(
                    f"{_address(url)} is not the interface of a worker: its answer {response.code} is not JSON"
                ) from error
        is_temporary = response.code >= HTTPStatus.BAD_REQUEST and "Retry-After" in response.headers
        return HttpAnswer(response.code, document, response.headers.get("Location", ""), is_temporary)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def is_unsent(error: KielGroupsError) -> bool:
    """Return whether an error of ``HttpExchange.send`` means that no part of the request was sent."""
    cause = error.__cause__
    if isinstance(cause, HTTPError):
        # Tornado tells by the text alone where the time has ended.
        return cause.message in ("Timeout while connecting", "Timeout in request queue")
    return isinstance(error, ConfigError) or isinstance(cause, (ConnectionRefusedError, socket.gaierror))


def _address(url: str) -> str:
    """Return a URL without the path. In an error, the path would distract from a wrong host or port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return error.message
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).lower() if isinstance(error, ConnectionError) else str(text)


#: How long a request that a worker refuses for the moment is repeated, and the pause before each repetition, in
#: seconds. The default session timeout, after which the group replaces a leader that has died, is shorter.
_PATIENCE_S, _PAUSE_S = 15.0, 0.5

#: Statuses of refusals that may pass: a rebalance, and a ZooKeeper, a leader or an owner that does not answer.
_PASSING = frozenset({HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE})


class WorkerClient:
    """
    A client of one worker. Use it in ``async with``, which closes its connections at the end.

    Args:
        url: The URL of the worker's REST interface.
        token: The token of the workers, or "".
        timeout_s: How long one attempt of a request may take, in seconds.

    Raises:
        ConfigError: The URL does not start with ``http://`` or ``https://``.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = 65.0) -> None:  # nosec B107 # "" means no token
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not the URL of a worker; expected one such as http://127.0.0.1:8083")
        self._url = url.rstrip("/")
        self._exchange = HttpExchange(token, timeout_s)

    async def __aenter__(self) -> WorkerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._exchange.close()

    async def call(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        """
        Send a request, and return the document of the answer, or None if the answer has no document.

        While the worker refuses the request only for the moment, the request is sent again, for up to 15 seconds.

        Args:
            method: The method, such as GET.
            path: The path, percent-encoded, as ``connector_path`` returns it.
            document: The body; None sends no body.

        Raises:
            NoWorkerError: No worker answers.
            UnknownConnectorError: The connector, or its task, does not exist.
            ConnectorExistsError: A connector of this name exists.
            RebalanceError: The group was still rebalancing at the last attempt.
            TokenError: The token is missing or wrong.
            ConfigError: A setting or the URL is wrong.
            ProtocolError: The answer is not the answer of a worker.
            KielGroupsError: The worker failed.
        """
        body = b"" if document is None else json.dumps(document).encode()
        end_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            answer = await self._exchange.send(method, f"{self._url}{path}", body)
            if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                return answer.document
            is_late = asyncio.get_running_loop().time() + _PAUSE_S > end_s
            if is_late or not (answer.status in _PASSING and answer.is_temporary):
                raise self._error(answer)
            await asyncio.sleep(_PAUSE_S)

    def _error(self, answer: HttpAnswer) -> KielGroupsError:
        text = answer.message or f"the worker at {self._url} answered with status {answer.status}"
        match answer.status:
            case HTTPStatus.NOT_FOUND if answer.message:
                return UnknownConnectorError(text)
            case HTTPStatus.UNAUTHORIZED:
                return TokenError(text)
            case HTTPStatus.CONFLICT:
                return RebalanceError(text) if answer.is_temporary else ConnectorExistsError(text)
            case status if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return ConfigError(text)
        return KielGroupsError(text)
