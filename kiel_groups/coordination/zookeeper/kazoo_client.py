"""
kazoo's client, with what we need of it beyond kazoo's own.

How it connects is overheard: which session the server grants, with which timeout, and how long that may take. And a
connection that serves no purpose can be left for another one.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from itertools import accumulate, repeat
from operator import mul
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kazoo.protocol.serialization import CloseInstance, Connect
from kazoo.protocol.states import KeeperState

from kiel_groups.group.member.lease import answer_limit_s
from kiel_groups.metrics import Metrics

__all__ = ["Connection", "InterruptibleClient", "begin_stop", "connect_limit_s", "overhear_connect"]

log = logging.getLogger(__name__)

#: The least time that a server has for each step of a connection, in seconds: a busy one must not be taken for a dead
#: one.
LEAST_CONNECT_S = 0.5

_REFUSING = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)


def connect_limit_s(asked_timeout_ms: int) -> float:
    """
    How long a server has for taking a connection, and again for answering Connect, in seconds.

    kazoo waits a whole session timeout for either: on a host that swallows packets, and on a server that took the
    connection and went silent (a frozen one, or 3.9.5 in the first moments of its start). That is longer than a lease.
    When a dead connection is noticed a third of the timeout has gone; the lease leaves a sixth, for such a server and
    the next one.

    Args:
        asked_timeout_ms: The session timeout that is asked for, in milliseconds.
    """
    return max(LEAST_CONNECT_S, answer_limit_s(asked_timeout_ms) / 2)


class InterruptibleClient(KazooClient):  # type: ignore[misc]
    """
    A client that lets a Ctrl-C through.

    kazoo takes whatever is raised while it wakes its connection for the end of that connection: a Ctrl-C that hits the
    main thread in that moment is lost, and the session with it.
    """

    def _call(self, request: Any, answer: Any) -> bool | None:
        if self._state in _REFUSING:
            refused: bool | None = super()._call(request, answer)
            return refused
        wake = self._connection._write_sock
        try:
            self._queue.append((request, answer))
            if wake is None:  # closed by another thread meanwhile
                raise OSError
            wake.send(b"\0")
        except OSError:
            answer.set_exception(ConnectionClosedError("Connection has been closed"))
        except BaseException:
            # kazoo sends one request for each byte, and minds no byte too many: one too few would hold up the last
            # request for ever, which may be the close of the session.
            if wake is not None:
                wake.send(b"\0")
            raise
        return None


def begin_stop(client: KazooClient) -> None:
    """As kazoo's ``stop()``, without the wait: a client that is connected closes its session, then it ends."""
    wake = client._connection._write_sock
    if wake is None or client._stopped.is_set():
        return
    client._stopped.set()
    client._queue.append((CloseInstance, None))
    try:
        wake.send(b"\0")
    except OSError:
        log.debug("the client has ended already", exc_info=True)


class Connection:
    """
    A client's connection, for who wants to be rid of it; from any thread.

    Several may find the same one useless, one after the other: the next one is not to suffer for that.
    """

    def __init__(self, client: KazooClient, metrics: Metrics) -> None:
        self.client = client
        self._metrics = metrics
        self._left: socket.socket | None = None
        self._leaving = threading.Lock()

    @property
    def current(self) -> socket.socket | None:
        """To be asked before a request is sent: kazoo has another socket for each connection."""
        connection: socket.socket | None = self.client._connection._socket
        return connection

    def leave(self, used: socket.socket | None, why: str) -> None:
        """Shut what was ``current`` then, should it still be: kazoo tries the next server, on this session."""
        with self._leaving:
            # Whoever closes the session has his last request under way.
            if used is None or used is self._left or used is not self.current or self.client._stopped.is_set():
                return
            self._left = used
        self._metrics.count("zookeeper_connections_dropped")
        log.warning("ZooKeeper %s; trying another connection", why)
        try:
            used.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the socket was closed already", exc_info=True)


def overhear_connect(client: KazooClient, asked_timeout_ms: int, granted: Callable[[int, int], None]) -> None:
    """
    Have ``granted(session_id, timeout_ms)`` called, on kazoo's thread, with what a server answers to Connect.

    kazoo keeps the timeout that was asked for; the granted one stands only in that answer, 0 where the server does not
    know the session any more.

    Before the first session there is no lease to keep: each server asked has twice the time of the one before, up to
    kazoo's own, so that slow ones are joined, too.
    """
    connection = client._connection
    invoke = connection._invoke
    limit_s = connect_limit_s(asked_timeout_ms)
    first_limits_s = accumulate(repeat(2), mul, initial=limit_s)

    def reading(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        wait_s = limit_s if client._session_id else next(first_limits_s)
        answer = invoke(min(timeout, wait_s), request, xid)
        granted(answer[0].session_id, answer[0].time_out)
        return answer

    connection._invoke = reading
