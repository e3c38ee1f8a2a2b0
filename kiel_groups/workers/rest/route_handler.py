"""Serve the requests of one route: check access, read the body within its bound, and answer within the time-out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, cast

from tornado.http1connection import HTTP1Connection
from tornado.web import HTTPError, RequestHandler, stream_request_body

from kiel_groups.workers.plugins.secret_texts import error_texts
from kiel_groups.workers.rest.access_rules import AccessRules
from kiel_groups.workers.rest.rest_answers import Answer
from kiel_groups.workers.rest.rest_calls import Operation, RestCall, RestSite
from kiel_groups.workers.rest.rest_errors import RestError, refusal_of, status_text
from kiel_groups.workers.rest.rest_settings import LARGEST_BODY, LARGEST_READ

__all__ = ["RequestRules", "RouteHandler"]

log = logging.getLogger(__name__)

#: How long a client may take to receive an answer, in seconds.
SEND_TIMEOUT_S = 30.0

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class RequestRules:
    """
    The rules for all requests to a worker.

    Args:
        access: Which requests are accepted.
        timeout_s: How long a request may take once it is read, in seconds.
    """

    access: AccessRules
    timeout_s: float


@stream_request_body
class RouteHandler(RequestHandler):
    """Serves one request. Tornado creates a handler for each one."""

    def initialize(self, site: RestSite, rules: RequestRules, operations: Mapping[str, Operation]) -> None:
        """Receive the arguments of the route from Tornado."""
        self._site = site
        self._rules = rules
        self._operations = operations
        self._body = bytearray()
        self._received = 0
        self._is_too_large = False
        #: Whether the answer is written already, before the end of the body.
        self._is_refused = False

    def set_default_headers(self) -> None:
        """Name the program, but not Tornado's version, and forbid proxies to store the answer."""
        self.set_header("Server", "kiel-groups")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Refuse a request by its headers, before its body is read."""
        self._rules.access.check(self.request.headers)
        if not self._operations:
            raise RestError(HTTPStatus.NOT_FOUND, status_text(HTTPStatus.NOT_FOUND))
        if self._operation is None and self.request.method != "OPTIONS":
            raise RestError(
                HTTPStatus.METHOD_NOT_ALLOWED, status_text(HTTPStatus.METHOD_NOT_ALLOWED), {"Allow": self._allowed}
            )
        length = self.request.headers.get("Content-Length", "0")
        # More digits than these are too many bytes, too.
        size = int(length[:16]) if length.isascii() and length.isdigit() else 0
        if size > LARGEST_READ:
            raise _too_large()
        # The body is read nevertheless: a client that is still sending might not get to read the answer.
        self._is_too_large = size > LARGEST_BODY
        self._check_type(has_body=length != "0" or "Transfer-Encoding" in self.request.headers)

    def _check_type(self, *, has_body: bool) -> None:
        """Refuse a body that is not declared as JSON: browsers send other types from any page to any site."""
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if has_body and self.request.method in _WITH_BODY and kind != "application/json":
            raise RestError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"the header 'Content-Type' has {kind!r:.100}; expected 'application/json'",
            )

    def data_received(self, chunk: bytes) -> None:
        """Keep a part of the body, unless the body is too large; if it is far too large, answer before its end."""
        self._received += len(chunk)
        if self._is_too_large or len(self._body) + len(chunk) > LARGEST_BODY:
            self._is_too_large = True
            self._body.clear()
        else:
            self._body += chunk
        if self._received > LARGEST_READ and not self._is_refused:
            self._refuse_early()

    def _refuse_early(self) -> None:
        """
        Write the answer now, and continue to read until the end of the body, or the end of its time limit.

        A connection that is closed with unread data is reset, and a client that still sends would lose the answer.
        """
        self._is_refused = True
        document = _document(_too_large())
        self._write(Answer(document, HTTPStatus.REQUEST_ENTITY_TOO_LARGE))
        self.set_header("Content-Length", str(len(json.dumps(document))))
        self.flush()

    async def _serve(self, *arguments: str) -> None:
        if self._is_refused:
            return
        if self._is_too_large:
            raise _too_large()
        operation = self._operation
        if operation is None:
            self.set_header("Allow", self._allowed)
            self._write(Answer(status=HTTPStatus.NO_CONTENT))
            return
        call = RestCall(
            self.request.method or "",
            self.request.path,
            arguments,
            {name: self.get_query_arguments(name) for name in self.request.query_arguments},
            bytes(self._body),
        )
        async with asyncio.timeout(self._rules.timeout_s):
            answer = await operation(self._site, call)
        self._write(answer)

    get = head = post = put = patch = delete = options = _serve

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> asyncio.Future[None]:
        """
        End the answer, and close the connection if the client does not take it in time.

        A client without access loses its connection with the answer: it would keep one by a request now and then.
        """
        stream = cast(HTTP1Connection, self.request.connection).stream
        is_refused = self.get_status() in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        if is_refused:
            self.set_header("Connection", "close")
        timer = asyncio.get_running_loop().call_later(SEND_TIMEOUT_S, stream.close)

        def end(sent: asyncio.Future[None]) -> None:
            timer.cancel()
            if is_refused or sent.exception() is not None:
                stream.close()

        sending = super().finish(chunk)
        sending.add_done_callback(end)
        return sending

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error as Kafka Connect does."""
        refusal = _refusal(kwargs["exc_info"][1])
        for name, value in refusal.headers.items():
            self.set_header(name, value)
        self._write(Answer(_document(refusal), refusal.status))

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log an error with a status of 500 or above, with its traceback if this package has not raised it."""
        if value is None:
            return
        refusal = _refusal(value)
        if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            is_known = isinstance(value, RestError | TimeoutError) or type(value).__module__ == "kiel_groups.errors"
            trace = "" if is_known or typ is None else f"\n{error_texts(value).trace}"
            log.warning("%.20s %.300s failed: %s%s", self.request.method, self.request.path, refusal, trace)

    @property
    def _operation(self) -> Operation | None:
        method = self.request.method or ""
        return self._operations.get("GET" if method == "HEAD" else method)

    @property
    def _allowed(self) -> str:
        return ", ".join(sorted({*self._operations, "OPTIONS", *({"HEAD"} if "GET" in self._operations else ())}))

    def _write(self, answer: Answer) -> None:
        self.set_status(answer.status)
        if answer.location:
            self.set_header("Location", answer.location)
        if answer.document is None:
            self.clear_header("Content-Type")
        else:
            self.set_header("Content-Type", "application/json")
            self.write(json.dumps(answer.document))


def _too_large() -> RestError:
    text = f"the body is too large; expected at most {LARGEST_BODY:,} bytes"
    return RestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def _document(refusal: RestError) -> dict[str, object]:
    """Return the document of an error, as Kafka Connect has it."""
    return {"error_code": refusal.status, "message": str(refusal)}


def _refusal(error: BaseException) -> RestError:
    """Return an error, also one of Tornado, as it is answered."""
    if isinstance(error, HTTPError):
        return RestError(error.status_code, status_text(error.status_code))
    return refusal_of(error)
