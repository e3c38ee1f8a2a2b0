"""Call the REST interface of a worker for a person or a program, and raise what it answers as an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from kiel_groups.errors import (
    ConfigError,
    ConnectorExistsError,
    KielGroupsError,
    RebalanceError,
    TokenError,
    UnknownConnectorError,
)
from kiel_groups.workers.rest_client.http_exchange import HttpAnswer, HttpExchange

__all__ = ["WorkerClient"]

#: The pause before a request is sent again, in seconds.
_PAUSE_S = 0.5

#: Statuses of refusals that may pass: a rebalance, and a ZooKeeper, a leader or an owner that does not answer.
_PASSING = frozenset({HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE})


class WorkerClient:
    """
    A client of one worker, to be used in ``async with``.

    Args:
        url: The URL of the worker's REST interface.
        token: The token of the workers, or "".
        timeout_s: How long a request may take, in seconds.
        patience_s: How long to repeat a request that was refused for a reason that passes, in seconds. The default is
            more than the default session timeout, after which the group replaces a leader that has died.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = 65.0, patience_s: float = 15.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r} is not the URL of a worker; expected one such as http://127.0.0.1:8083")
        self._url = url.rstrip("/")
        self._exchange = HttpExchange(token, timeout_s)
        self._patience_s = patience_s

    async def __aenter__(self) -> WorkerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.close()

    async def call(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        """
        Send a request, and return the document of the answer, or None if it has none.

        Args:
            method: The method, such as GET.
            path: The path, percent-encoded, such as ``connector_path`` returns it.
            document: The body.

        Raises:
            NoWorkerError: No worker answers.
            UnknownConnectorError: There is no such connector.
            ConnectorExistsError: A connector of this name exists.
            RebalanceError: The group was still rebalancing when the patience ended.
            TokenError: The token is missing or wrong.
            ConfigError: A setting or the URL is wrong.
            KielGroupsError: The worker failed.
        """
        body = b"" if document is None else json.dumps(document).encode()
        end_s = asyncio.get_running_loop().time() + self._patience_s
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
