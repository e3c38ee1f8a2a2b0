"""What kazoo runs its threads, callbacks and sockets with, at less cost than its own."""

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


class _AtOnce:
    """Stands where kazoo has a queue and a thread that empties it: what is put in is called, now."""

    def put(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            # The thread that reads from the server must go on.
            log.exception("a callback of kazoo's failed")


class ImmediateHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """
    Tells answers and watches on the thread that reads them, in the order in which the server sent them.

    Whoever is told must not block: here they wake an event loop or a thread. kazoo's own handler passes each answer
    through a queue to another thread, and makes an epoll object for each look at a socket, five or six times a request:
    half of what a request costs.

    Args:
        connect_limit_s: How long a host has for taking a connection, in seconds. kazoo would wait a whole session
            timeout for one that swallows packets, and the session would be lost although another server is well.
    """

    name = "prompt_handler"

    def __init__(self, connect_limit_s: float = math.inf) -> None:
        super().__init__()
        self._connect_limit_s = connect_limit_s
        self.callback_queue = self.completion_queue = _AtOnce()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> tuple[Wakeup, Wakeup]:
        """What kazoo's thread is woken by: where it reads, and where others write."""
        wakes = Wakeup()
        return wakes, wakes

    def create_connection(self, *args: Any, timeout: float = math.inf, **kwargs: Any) -> Any:
        # kazoo gives none where it asks a server, over a connection of its own, whether it may be written to.
        return super().create_connection(*args, timeout=min(timeout, self._connect_limit_s), **kwargs)

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], _other: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As ``select.select``, with descriptors however high; ``timeout`` in seconds, None waits for ever."""
        poller = select.poll()
        for sockets, events in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for socket in sockets:
                poller.register(socket, events)
        found = poller.poll(None if timeout is None else math.ceil(1000 * timeout))
        # What is broken or closed counts as ready: using it tells.
        ready = {descriptor for descriptor, _ in found}
        return [s for s in readable if s.fileno() in ready], [s for s in writable if s.fileno() in ready], []
