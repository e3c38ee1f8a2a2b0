"""
Serve the REST interface of a worker over HTTP.

The ZooKeeper session, the brokers and the tasks of a worker come before its REST interface. So the interface uses a
bounded number of connections, and leaves some file descriptors free. Meanwhile, further connections wait in the
system's queue: a socket with a connection that cannot be accepted would wake the event loop again and again.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterable
from errno import EADDRINUSE
from http import HTTPStatus
from importlib import metadata

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from kiel_groups.errors import ConfigError
from kiel_groups.workers.rest.access_rules import AccessRules
from kiel_groups.workers.rest.request_forwarding import RequestForwarding
from kiel_groups.workers.rest.rest_answers import ConfigMask
from kiel_groups.workers.rest.rest_calls import RestSite
from kiel_groups.workers.rest.rest_routes import ROUTES
from kiel_groups.workers.rest.rest_settings import RestSettings
from kiel_groups.workers.rest.route_handler import RequestRules, RouteHandler
from kiel_groups.workers.rest.worker_control import WorkerControl
from kiel_groups.workers.rest_client.http_exchange import HttpExchange

__all__ = ["BoundedServer", "RestListener", "RestServer"]

log = logging.getLogger(__name__)

#: How long a client may take for the headers of a request, also of its next one, and for its body, in seconds.
_IDLE_TIMEOUT_S, _BODY_TIMEOUT_S = 10.0, 30.0

#: The most connections, of the file descriptors that the process may have, at most one in four. A request that is
#: forwarded takes a second descriptor.
_MOST_CONNECTIONS, _DESCRIPTORS_FOR_EACH = 1_000, 4

#: The descriptors that no connection takes, however many the rest of the process uses: one in eight, at most these.
_MOST_RESERVED, _DESCRIPTORS_FOR_EACH_RESERVED = 64, 8

#: The pause after a connection for which no descriptor is left, in seconds.
_PAUSE_S = 1.0

#: The time between two warnings of such pauses, in seconds.
_WARNING_S = 60.0

#: The connections that are accepted before other work gets its turn.
_AT_ONCE = 16

#: More than any length that Tornado parses. Tornado would answer a larger body without a document; the handler, which
#: drops what it does not need, refuses it instead.
_UNBOUNDED = 1 << 16_384


class RestListener:
    """
    The sockets that a worker listens on. They are open before it joins its group, because it joins with the URL.

    Args:
        settings: Where to listen.

    Raises:
        ConfigError: The address is in use, or is not one of this machine.
    """

    def __init__(self, settings: RestSettings) -> None:
        self.settings = settings
        try:
            # "localhost" with a port of the system's choice would get one per address.
            family = socket.AF_INET if settings.host == "localhost" else socket.AF_UNSPEC
            self.sockets = bind_sockets(settings.port, settings.host, family)
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "; choose another port, or 0 for one of the system's choice" if error.errno == EADDRINUSE else ""
            raise ConfigError(
                f"the REST interface cannot listen on {settings.host}:{settings.port}: {reason}{hint}"
            ) from error
        #: The URL under which other workers reach this one.
        self.url = settings.url(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Close the sockets, unless a server has them."""
        for each in self.sockets:
            each.close()


class BoundedServer(HTTPServer):
    """
    A server that stops to accept connections while there are too many, or while file descriptors are short.

    Tornado's own would accept all, and after the last descriptor try again for ever without a pause.
    """

    _listening: tuple[socket.socket, ...] = ()
    _open = 0
    _is_accepting = False
    _next_warning_s = float("-inf")
    _retry: asyncio.TimerHandle | None = None

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept connections from now on, within the limits that the process has now."""
        self._loop = asyncio.get_running_loop()
        self._listening = tuple(sockets)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = _MOST_CONNECTIONS * _DESCRIPTORS_FOR_EACH if limit == resource.RLIM_INFINITY else limit
        self._most = max(1, min(_MOST_CONNECTIONS, descriptors // _DESCRIPTORS_FOR_EACH))
        reserved = min(_MOST_RESERVED, descriptors // _DESCRIPTORS_FOR_EACH_RESERVED)
        #: Descriptors are numbered from 0; a new one has the smallest number that is free.
        self._end_of_descriptors = limit - reserved if limit != resource.RLIM_INFINITY else 1 << 32
        self._resume()

    def _resume(self) -> None:
        self._retry = None
        if not self._is_accepting and self._open < self._most:
            self._is_accepting = True
            for listening in self._listening:
                self._loop.add_reader(listening, self._accept, listening)

    def _pause(self, why: str, for_s: float | None = None) -> None:
        """Accept nothing until a connection has ended, or for some time."""
        self._is_accepting = False
        for listening in self._listening:
            self._loop.remove_reader(listening)
        if for_s is not None:
            self._retry = self._loop.call_later(for_s, self._resume)
        now_s = self._loop.time()
        if now_s >= self._next_warning_s:
            self._next_warning_s = now_s + _WARNING_S
            log.warning(
                "the REST interface accepts no connection at the moment: %s; further ones wait; those that are idle are"
                " closed after %g s",
                why,
                _IDLE_TIMEOUT_S,
            )

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                # The socket stays ready, so a call without a pause would follow at once.
                self._pause(f"{error.strerror or error}", _PAUSE_S)
                return
            if (number := connection.fileno()) >= self._end_of_descriptors:
                connection.close()
                self._pause(f"the process uses {number} file descriptors, which are nearly all", _PAUSE_S)
                return
            self._open += 1
            self.handle_stream(IOStream(connection), address)
            if self._open >= self._most:
                self._pause(
                    f"{self._open} are open, one for each {_DESCRIPTORS_FOR_EACH} file descriptors that the process may"
                    f" have, and at most {_MOST_CONNECTIONS}"
                )
                return

    def on_close(self, server_conn: object) -> None:
        super().on_close(server_conn)
        self._open -= 1
        if self._retry is None:
            self._resume()

    def stop(self) -> None:
        """Accept nothing more. The caller closes the sockets."""
        if self._retry is not None:
            self._retry.cancel()
        if self._is_accepting:
            self._is_accepting = False
            for listening in self._listening:
                self._loop.remove_reader(listening)
        self._listening = ()
        super().stop()


class RestServer:
    """
    The server of one worker, on its event loop.

    Args:
        listener: The sockets, which the server closes.
        control: The worker.
        mask: Hides the secrets of settings.
        version: The version that the worker reports; by default, that of this package.
    """

    def __init__(self, listener: RestListener, control: WorkerControl, mask: ConfigMask, version: str = "") -> None:
        settings = listener.settings
        self._listener = listener
        self._exchange = HttpExchange(settings.token, settings.timeout_s)
        site = RestSite(control, mask, RequestForwarding(control, listener.url, self._exchange), version or _version())
        shared = {"site": site, "rules": RequestRules(AccessRules(settings), settings.timeout_s)}
        application = Application(
            [(f"{route.pattern}/?", RouteHandler, {**shared, "operations": route.operations}) for route in ROUTES],
            default_handler_class=RouteHandler,
            default_handler_args={**shared, "operations": {}},
            log_function=_log_request,
        )
        self._server = BoundedServer(
            application,
            max_body_size=_UNBOUNDED,
            idle_connection_timeout=_IDLE_TIMEOUT_S,
            body_timeout=_BODY_TIMEOUT_S,
        )

    def start(self) -> None:
        """Begin to answer requests."""
        self._server.add_sockets(self._listener.sockets)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._server.stop()
        self._listener.close()
        await self._server.close_all_connections()
        self._exchange.close()


def _version() -> str:
    """Return the version of this package, or "unknown" if it runs without having been installed."""
    try:
        return metadata.version("kiel-groups")
    except metadata.PackageNotFoundError:
        return "unknown"


def _log_request(handler: RequestHandler) -> None:
    """Log what a request has changed. The query and the body may have secrets."""
    request = handler.request
    level = logging.DEBUG if request.method in {"GET", "HEAD", "OPTIONS"} else logging.INFO
    status = handler.get_status()
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        level = logging.WARNING
    log.log(level, "%s %s by %s: %d", request.method, request.path, request.remote_ip, status)
