"""Serve the REST interface of a worker over HTTP."""

from __future__ import annotations

import logging
import socket
from errno import EADDRINUSE
from http import HTTPStatus
from importlib import metadata

from tornado.httpserver import HTTPServer
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

__all__ = ["RestListener", "RestServer"]

log = logging.getLogger(__name__)

#: How long a client may take for the headers of a request, also of its next one, and for its body, in seconds.
_IDLE_TIMEOUT_S, _BODY_TIMEOUT_S = 60.0, 30.0

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
        self._server = HTTPServer(
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
