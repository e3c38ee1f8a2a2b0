"""
Extend kazoo's client: interruptible requests, a stop that does not wait, connections that can be dropped.

The module also reports which session and timeout a server grants to the client, and limits the time that a server may
take to accept the client.
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

__all__ = ["Connection", "InterruptibleClient", "begin_stop", "connect_limit_s", "observe_connect"]

log = logging.getLogger(__name__)

#: The least time that a server has for each step of a connection, in seconds: a busy server must not count as dead.
LEAST_CONNECT_S = 0.5

_REFUSING = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)


def connect_limit_s(asked_timeout_ms: int) -> float:
    """
    Return how many seconds a server may take to accept a connection, and then to answer Connect.

    kazoo waits a whole session timeout for each of the two, which is longer than a lease. A host that drops packets
    never accepts. A frozen server, or one of 3.9.5 just after its start, accepts the connection and does not answer.
    When a dead connection is noticed, a third of the session timeout is over. The rest of the lease, a sixth, must
    suffice for one such server and the next server.

    Args:
        asked_timeout_ms: The session timeout that the client requests, in milliseconds.
    """
    return max(LEAST_CONNECT_S, answer_limit_s(asked_timeout_ms) / 2)


class InterruptibleClient(KazooClient):  # type: ignore[misc]
    """
    A kazoo client that does not swallow a KeyboardInterrupt.

    kazoo treats any exception that is raised while it wakes its connection thread as the end of the connection. A
    Ctrl-C that interrupts the main thread at that moment would be lost, and the session with it.
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
            # kazoo sends one request for each byte. An extra byte does no harm. If one were missing, the last request,
            # which may be the close of the session, would never be sent.
            if wake is not None:
                wake.send(b"\0")
            raise
        return None


def begin_stop(client: KazooClient) -> None:
    """Start to stop a client as kazoo's ``stop()`` does, without waiting. A connected client closes its session."""
    wake = client._connection._write_sock
    if wake is None or client._stopped.is_set():
        return
    client._stopped.set()
    client._queue.append((CloseInstance, None))
    try:
        wake.send(b"\0")
    except OSError:
        log.debug("the kazoo client has stopped already", exc_info=True)


class Connection:
    """
    The current connection of a client, which callers on any thread may drop.

    Several callers may find the same connection dead, one after the other. Only the first caller drops the connection,
    so that the client's next connection is not dropped as well.
    """

    def __init__(self, client: KazooClient, metrics: Metrics) -> None:
        self.client = client
        self._metrics = metrics
        self._dropped: socket.socket | None = None
        self._dropping = threading.Lock()

    @property
    def current(self) -> socket.socket | None:
        """
        The current connection's socket.

        Read this property before sending a request, to pass its value to ``leave``. kazoo uses one socket for each
        connection.
        """
        connection: socket.socket | None = self.client._connection._socket
        return connection

    def leave(self, used: socket.socket | None, why: str) -> None:
        """Shut down the socket ``used`` if it is current. kazoo then resumes the session on the next server."""
        with self._dropping:
            # A client that is stopping has sent its last request, the close of the session.
            if used is None or used is self._dropped or used is not self.current or self.client._stopped.is_set():
                return
            self._dropped = used
        self._metrics.count("zookeeper_connections_dropped")
        log.warning("ZooKeeper %s; dropping the connection and reconnecting", why)
        try:
            used.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("the socket was closed already", exc_info=True)


def observe_connect(client: KazooClient, asked_timeout_ms: int, granted: Callable[[int, int], None]) -> None:
    """
    Call ``granted(session_id, timeout_ms)`` on kazoo's thread with each server's response to Connect.

    kazoo itself does not keep the granted timeout, only the requested one. The granted timeout is 0 if the server does
    not know the session any more.

    Before the first session there is no lease to keep. So each attempt may take twice as long as the previous one, up
    to kazoo's own limit, and slow servers can be joined, too.
    """
    connection = client._connection
    invoke = connection._invoke
    limit_s = connect_limit_s(asked_timeout_ms)
    first_limits_s = accumulate(repeat(2), mul, initial=limit_s)

    def invoke_observed(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        wait_s = limit_s if client._session_id else next(first_limits_s)
        answer = invoke(min(timeout, wait_s), request, xid)
        granted(answer[0].session_id, answer[0].time_out)
        return answer

    connection._invoke = invoke_observed
