"""Serve routes over HTTP: check access, limit bodies, connections and times, and send answers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from errno import EADDRINUSE, EMFILE
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler, stream_request_body

from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.rest.calls import JSON, Answer, Operation, RestCall, RestError, Route, refusal_of, status_text
from kiel_groups.rest.settings import LARGEST_BODY, LARGEST_READ, RestSettings, is_address, is_loopback
from kiel_groups.secret_texts import error_texts

log = logging.getLogger(__name__)


# Decide which requests are accepted.
#
# A token, if there is one, must come with each request. Web pages of other sites must not use the interface: a browser
# on the same machine reaches loopback, too, and requests may run any code. So requests of such pages are refused by
# their header ``Origin``. The owner of a page may also let its host name resolve to loopback; such requests are refused
# by ``Host``. Both headers are checked even if the token is right: a browser adds the password that its user gave to
# the requests of every page.


class AccessRules:
    """
    Accepts or refuses requests by their method and headers.

    Args:
        settings: The server's hosts and token, and whether reads need the token.
    """

    def __init__(self, settings: RestSettings) -> None:
        self._token = settings.token.encode()
        self._open_reads = settings.open_reads
        self._is_local = is_loopback(settings.host)
        self._hosts = {settings.host.lower(), settings.host_to_advertise.lower()}
        if self._is_local:
            self._hosts.add("localhost")

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """
        Check the method and the headers of a request.

        Raises:
            RestError: The request is refused: its token is missing or wrong, a change is not allowed without a token,
                or the header ``Host`` or ``Origin`` belongs to another site.
        """
        authorization = headers.get("Authorization", "")
        is_open = self._open_reads and method in _READS
        if self._token and (authorization or not is_open):
            if not compare_digest(_given_token(authorization), self._token):
                raise RestError(
                    HTTPStatus.UNAUTHORIZED,
                    "the token is missing or wrong; expected it in the header 'Authorization: Bearer TOKEN'",
                    {"WWW-Authenticate": "Bearer"},
                )
        elif self._open_reads and not is_open:
            raise RestError(HTTPStatus.FORBIDDEN, "changes need a token, and this server was started without one")
        given = headers.get("Host", "")
        host = _host_of(f"//{given}")
        # Every browser sends this header; a health check by HTTP/1.0 may not. A server that other machines reach has
        # names that it does not know, and every request to it has the token.
        if given and self._is_local and not (host in self._hosts or is_address(host)):
            raise RestError(
                HTTPStatus.FORBIDDEN, f"the header 'Host' has {host!r:.100}; expected the address of this server"
            )
        site = headers.get("Origin")
        if site is not None:
            origin = _host_of(site)
            is_known = origin in self._hosts or (origin and origin == host) or (self._is_local and is_loopback(origin))
            if not is_known:
                raise _of_another_site(site)


def _of_another_site(origin: str) -> RestError:
    return RestError(HTTPStatus.FORBIDDEN, f"the header 'Origin' has {origin!r:.100}: pages of other sites are refused")


def _host_of(url: str) -> str:
    """Return the host in a URL, or "" if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _given_token(header: str) -> bytes:
    """
    Return the bearer token in the header ``Authorization``, or the password of basic credentials, else no bytes.

    Clients of Kafka Connect send basic credentials.
    """
    scheme, _, credentials = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


#: How long a client may take to receive an answer, in seconds.
SEND_TIMEOUT_S = 30.0

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@stream_request_body
class GuardedHandler(RequestHandler):
    """
    The base class of handlers. It checks the access of each request, and answers errors with JSON documents.

    It drops the bodies of requests. Tornado creates a handler for each request.
    """

    def initialize(self, access: AccessRules) -> None:
        """Store the access rules. Tornado calls this method with the arguments of the handler."""
        self._access = access

    def set_default_headers(self) -> None:
        """Set the server's name without Tornado's version, and headers for the safety of caches and browsers."""
        self.set_header("Server", "kiel-groups")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Check the access of the request before its body is read. Raise RestError if it is refused."""
        self._access.check(self.request.method or "", self.request.headers)

    def data_received(self, chunk: bytes) -> None:
        """Drop a part of the body. Tornado would keep the whole body in memory, whatever its size."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error with a JSON document as Kafka Connect does."""
        refusal = _refusal(kwargs)
        for name, value in refusal.headers.items():
            self.set_header(name, value)
        self._write(Answer(_document(refusal), refusal.status))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """
        Log an error with a status of 500 or above.

        Log the traceback, too, unless the error is a timeout or of a class of this package.
        """
        if value is None:
            return
        refusal = refusal_of(value)
        if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            is_known = isinstance(value, RestError | TimeoutError) or type(value).__module__ == "kiel_groups.errors"
            trace = "" if is_known or typ is None else f"\n{error_texts(value).trace}"
            log.warning("%.20s %.300s failed: %s%s", self.request.method, self.request.path, refusal, trace)

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> asyncio.Future[None]:
        """
        Send the rest of the answer. Close the connection if the client does not receive the answer within 30 s.

        If access was refused, close the connection after the answer. Otherwise, occasional requests without access
        would keep it open.
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

    def _write(self, answer: Answer) -> None:
        self.set_status(answer.status)
        if answer.location:
            self.set_header("Location", answer.location)
        if answer.document is None:
            self.clear_header("Content-Type")
        else:
            self.set_header("Content-Type", answer.content_type)
            self.write(answer.text)


class RouteHandler(GuardedHandler):
    """Serves a request to a route: reads the body, calls the operation, and sends its answer."""

    def initialize(  # type: ignore[override]
        self, access: AccessRules, timeout_s: float, operations: Mapping[str, Operation]
    ) -> None:
        """
        Store the arguments of the route. Tornado calls this method.

        Args:
            access: The rules that accept or refuse requests.
            timeout_s: How long the operation may take after the body was read, in seconds.
            operations: The operation for each HTTP method. An empty mapping refuses each request with status 404.
        """
        super().initialize(access)
        self._timeout_s = timeout_s
        self._operations = operations
        self._body = bytearray()
        self._received = 0
        self._is_too_large = False
        #: Whether the answer is written already, before the end of the body.
        self._is_refused = False

    def prepare(self) -> None:
        """
        Check access, path, method, length and type of the request before its body is read.

        Raises:
            RestError: The request is refused. A body between 1 MiB and 1 GiB is refused only after it was read.
        """
        super().prepare()
        if not self._operations:
            raise RestError(HTTPStatus.NOT_FOUND, status_text(HTTPStatus.NOT_FOUND))
        if self._operation is None and self.request.method != "OPTIONS":
            raise RestError(HTTPStatus.METHOD_NOT_ALLOWED, status_text(HTTPStatus.METHOD_NOT_ALLOWED))
        length = self.request.headers.get("Content-Length", "0")
        # More digits than these are too many bytes, too.
        size = int(length[:16]) if length.isascii() and length.isdigit() else 0
        if size > LARGEST_READ:
            raise _too_large()
        # The body is read nevertheless: a client that is still sending might not get to read the answer.
        self._is_too_large = size > LARGEST_BODY
        self._check_type(has_body=length != "0" or "Transfer-Encoding" in self.request.headers)

    def _check_type(self, *, has_body: bool) -> None:
        """
        Raise RestError for a body that is not declared as JSON.

        A web page can make a browser send bodies of other types to any site.
        """
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if has_body and self.request.method in _WITH_BODY and kind != JSON:
            raise RestError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"the header 'Content-Type' has {kind!r:.100}; expected 'application/json'",
            )

    def data_received(self, chunk: bytes) -> None:
        """
        Keep a part of the body. Drop the body if it is larger than 1 MiB; then the request is refused at its end.

        If the body is larger than 1 GiB, send the refusal before the end of the body.
        """
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
        Send the answer that the body is too large now. The rest of the body is read until its end or time limit.

        If a connection is closed with unread data, it is reset. Then a client that still sends would lose the answer.
        """
        self._is_refused = True
        answer = Answer(_document(_too_large()), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self._write(answer)
        self.set_header("Content-Length", str(len(answer.text)))
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
            self.request.host,
            self.request.remote_ip or "",
        )
        async with asyncio.timeout(self._timeout_s):
            answer = await operation(call)
        self._write(answer)

    get = head = post = put = patch = delete = options = _serve

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error with a JSON document. If the method is not allowed, list the allowed methods."""
        if _refusal(kwargs).status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.set_header("Allow", self._allowed)
        super().write_error(status_code, **kwargs)

    @property
    def _operation(self) -> Operation | None:
        method = self.request.method or ""
        return self._operations.get("GET" if method == "HEAD" else method)

    @property
    def _allowed(self) -> str:
        return ", ".join(sorted({*self._operations, "OPTIONS", *({"HEAD"} if "GET" in self._operations else ())}))


def _refusal(given: Mapping[str, Any]) -> RestError:
    """Return the answer to the error that Tornado gives to ``write_error``. It gives none at a cancelled request."""
    if "exc_info" in given:
        return refusal_of(given["exc_info"][1])
    return RestError(HTTPStatus.SERVICE_UNAVAILABLE, "the server stops; a change may still follow")


def _too_large() -> RestError:
    text = f"the body is too large; expected at most {LARGEST_BODY:,} bytes"
    return RestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def _document(refusal: RestError) -> dict[str, object]:
    """Return the JSON document of an error, with the fields of Kafka Connect's errors."""
    return {"error_code": refusal.status, "message": str(refusal)}


# Accept connections within limits.
#
# ZooKeeper and the brokers need file descriptors of the process, too. So a server uses a bounded number of connections,
# and leaves some file descriptors free. At the bound, a new connection replaces the one that has been idle for the
# longest time: idle connections must not delay the answers to health checks. If none is idle, further connections wait
# in the system's queue: a socket with a connection that cannot be accepted would wake the event loop again and again.


#: How long a client may take for the headers of a request, also of its next one, and for its body, in seconds.
_IDLE_TIMEOUT_S, _BODY_TIMEOUT_S = 10.0, 30.0

#: The most connections, of the file descriptors that the process may have, at most one in four. A request that is
#: forwarded takes a second descriptor.
_MOST_CONNECTIONS, _DESCRIPTORS_FOR_EACH = 1_000, 4

#: The descriptors that no connection takes, however many the rest of the process uses: one in eight, at most these.
_MOST_RESERVED, _DESCRIPTORS_FOR_EACH_RESERVED = 64, 8

#: How long a connection at least may be without the headers of a request before another one replaces it, in seconds.
_GRACE_S = 0.25

#: The pause after a connection for which no descriptor is left, in seconds.
_PAUSE_S = 1.0

#: The time between two warnings of such pauses, in seconds.
_WARNING_S = 60.0

#: The connections that are accepted before other work gets its turn.
_AT_ONCE = 16

#: More than any length that Tornado parses. Tornado would answer a larger body without a document; the handler, which
#: drops what it does not need, refuses it instead.
_UNBOUNDED = 1 << 16_384


class _Tracked(HTTPMessageDelegate):
    """Passes a request on, and calls ``began`` when its headers are complete."""

    def __init__(self, delegate: HTTPMessageDelegate, began: Callable[[], object]) -> None:
        self._began = began
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]
        self._headers_received = delegate.headers_received

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._began()
        return self._headers_received(start_line, headers)


class BoundedServer(HTTPServer):
    """
    An HTTP server that stops accepting connections while too many are open, or few file descriptors are free.

    If too many are open, a new connection replaces the one that has been idle for the longest time. Tornado's server
    accepts every connection. Without a free descriptor, it would retry forever without a pause.
    """

    _listening: tuple[socket.socket, ...] = ()
    _open = 0
    _is_accepting = False
    _retry: asyncio.TimerHandle | None = None
    _next_warning_s = float("-inf")

    def initialize(self, *arguments: Any, **settings: Any) -> None:
        """Create the server. Tornado calls this method with the arguments of the constructor."""
        super().initialize(*arguments, **settings)
        #: The idle connections, and since when they wait for the headers of a request; the oldest is first.
        self._idle: dict[HTTP1ServerConnection, float] = {}

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Return the delegate of the next request of a connection. Until its headers arrive, the connection is idle."""
        connection = cast(HTTP1ServerConnection, server_conn)
        self._idle[connection] = self._loop.time()
        if self._retry is None:
            self._resume()
        delegate = super().start_request(server_conn, request_conn)
        return _Tracked(delegate, lambda: self._idle.pop(connection, None))

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Start to accept connections on these sockets, within the current limits of the process."""
        self._loop = asyncio.get_running_loop()
        self._listening = tuple(sockets)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 31
        self._most = max(1, min(_MOST_CONNECTIONS, limit // _DESCRIPTORS_FOR_EACH))
        self._most_descriptors = limit - min(_MOST_RESERVED, limit // _DESCRIPTORS_FOR_EACH_RESERVED)
        self._resume()

    def _resume(self) -> None:
        self._retry = None
        if not self._is_accepting and (self._open < self._most or self._idle):
            self._is_accepting = True
            for listening in self._listening:
                self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            oldest = next(iter(self._idle), None)
            if self._open >= self._most and (oldest is None or self._loop.time() < self._idle[oldest] + _GRACE_S):
                self._pause(
                    f"{self._open} are open, one for each {_DESCRIPTORS_FOR_EACH} file descriptors that the process may"
                    f" have, and at most {_MOST_CONNECTIONS}"
                )
                # Without an idle connection, the end of a request resumes.
                if oldest is not None:
                    self._retry = self._loop.call_later(_GRACE_S, self._resume)
                return
            try:
                self._check_descriptors(listening)
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # The socket stays ready: without a pause, the loop would try again at once.
                self._pause(f"{error.strerror or error}")
                self._retry = self._loop.call_later(_PAUSE_S, self._resume)
                return
            stream = IOStream(connection)
            self._open += 1
            self.handle_stream(stream, address)
            if self._open > self._most and oldest is not None:
                del self._idle[oldest]
                oldest.stream.close()

    def _check_descriptors(self, listening: socket.socket) -> None:
        """Raise OSError if the next connection would use a file descriptor that is reserved for other purposes."""
        # A new descriptor has the smallest number that is free.
        number = os.dup(listening.fileno())
        os.close(number)
        if number >= self._most_descriptors:
            raise OSError(EMFILE, f"the process uses {number} file descriptors, which are nearly all")

    def _pause(self, why: str) -> None:
        self._stop_accepting()
        now_s = self._loop.time()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_S
            log.warning("the REST interface accepts no connection at the moment: %s; further ones wait", why)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listening in self._listening:
                self._loop.remove_reader(listening)

    def on_close(self, server_conn: object) -> None:
        super().on_close(server_conn)
        self._idle.pop(cast(HTTP1ServerConnection, server_conn), None)
        self._open -= 1
        if self._retry is None:
            self._resume()

    def stop(self) -> None:
        """Stop accepting connections. Open connections stay; the caller closes the listening sockets."""
        if self._retry is not None:
            self._retry.cancel()
        self._stop_accepting()
        self._listening = ()
        super().stop()


class RestServer:
    """
    Serves routes over HTTP, on the event loop of its caller.

    The constructor opens the listening sockets, so the URL is known before ``start``.

    Args:
        settings: The address to listen on, and the access rules.

    Raises:
        ConfigError: The address is in use, or is not one of this machine.
    """

    def __init__(self, settings: RestSettings) -> None:
        self._settings = settings
        #: The HTTP server, or None before ``start``.
        self._server: BoundedServer | None = None
        try:
            # With a port of the system's choice, "localhost" would get another port for each of its addresses.
            family = socket.AF_INET if settings.host == "localhost" else socket.AF_UNSPEC
            self._sockets = bind_sockets(settings.port, settings.host, family)
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "; choose another port, or 0 for one of the system's choice" if error.errno == EADDRINUSE else ""
            raise ConfigError(
                f"the REST interface cannot listen on {settings.host}:{settings.port}: {reason}{hint}"
            ) from error
        #: The URL under which other machines reach the server.
        self.url = settings.url(self._sockets[0].getsockname()[1])

    def start(
        self,
        routes: Iterable[Route],
        handlers: Iterable[tuple[str, type[RequestHandler], Mapping[str, object]]] = (),
        metrics: Metrics | None = None,
    ) -> None:
        """
        Start to answer requests.

        Args:
            routes: The routes, each with its operations. Clients may add a slash to the path of each route.
            handlers: Other paths: the pattern, the class of the handler, and the arguments of its ``initialize``. The
                argument ``access``, with the access rules, is added.
            metrics: The registry that counts the requests. None counts none.
        """
        access = AccessRules(self._settings)
        shared = {"access": access, "timeout_s": self._settings.timeout_s}
        application = Application(
            [
                *((f"{route.pattern}/?", RouteHandler, {**shared, "operations": route.operations}) for route in routes),
                *((pattern, handler, {**given, "access": access}) for pattern, handler, given in handlers),
            ],
            default_handler_class=RouteHandler,
            default_handler_args={**shared, "operations": {}},
            log_function=partial(_log_request, metrics or Metrics()),
        )
        self._server = BoundedServer(
            application,
            max_body_size=_UNBOUNDED,
            idle_connection_timeout=_IDLE_TIMEOUT_S,
            body_timeout=_BODY_TIMEOUT_S,
        )
        self._server.add_sockets(self._sockets)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.stop()
        for each in self._sockets:
            each.close()
        if self._server is not None:
            await self._server.close_all_connections()


def _log_request(metrics: Metrics, handler: RequestHandler) -> None:
    """
    Count a request, and log it, but not its query and body, because these may contain secrets.

    The level is WARNING if access was refused, DEBUG for reads, and INFO for other requests.
    """
    request = handler.request
    level = logging.DEBUG if request.method in {"GET", "HEAD", "OPTIONS"} else logging.INFO
    status = handler.get_status()
    # A client may send any word as the method.
    method = request.method if request.method in handler.SUPPORTED_METHODS else "other"
    metrics.count("rest_requests", method=str(method), status=str(status))
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        level = logging.WARNING
    log.log(level, "%.20s %.300s by %s: %d", request.method, request.path, request.remote_ip, status)
