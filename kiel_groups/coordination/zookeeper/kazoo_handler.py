"""Provide a handler for kazoo's threads, callbacks and sockets that costs less than kazoo's own."""

from __future__ import annotations

import logging
import math
import select
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from kiel_groups.coordination.zookeeper.wakeup import Wakeup

__all__ = ["ImmediateHandler"]

log = logging.getLogger(__name__)


class _ImmediateQueue:
    """Replaces kazoo's callback queue and the thread that empties it: ``put`` runs the callback at once."""

    def put(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            # The thread that reads from the server must not end.
            log.exception("a kazoo callback failed")


class ImmediateHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """
    Delivers responses and watch events on the thread that reads them, in the order in which the server sent them.

    The callbacks must not block; here they only wake an event loop or a thread. kazoo's own handler passes each
    response through a queue to another thread, and creates an epoll object for each poll of a socket, five or six times
    a request. Together that is half of the cost of a request.

    Args:
        connect_limit_s: How long a host has to accept a connection, in seconds. kazoo would wait a whole session
            timeout for a host that drops packets, and lose the session although another server is available.
    """

    name = "prompt_handler"

    def __init__(self, connect_limit_s: float = math.inf) -> None:
        super().__init__()
        self._connect_limit_s = connect_limit_s
        self.callback_queue = self.completion_queue = _ImmediateQueue()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> tuple[Wakeup, Wakeup]:
        """Return the pair that wakes kazoo's thread: the end that it reads, and the end that other threads write."""
        wakes = Wakeup()
        return wakes, wakes

    def create_connection(self, *args: Any, timeout: float = math.inf, **kwargs: Any) -> Any:
        # kazoo passes no timeout when it asks a server, over a separate connection, whether it accepts writes.
        return super().create_connection(*args, timeout=min(timeout, self._connect_limit_s), **kwargs)

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _other: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Work as ``select.select``, without its limit on descriptor numbers. A ``timeout`` of None is no limit."""
        poller = select.poll()
        for sockets, events in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for socket in sockets:
                poller.register(socket, events)
        found = poller.poll(None if timeout is None else math.ceil(1000 * timeout))
        # A broken or closed socket counts as ready: its next use raises the error.
        ready = {descriptor for descriptor, _ in found}
        return [s for s in readable if s.fileno() in ready], [s for s in writable if s.fileno() in ready], []
