"""
Start the client of one ZooKeeper session, and close the session, whether or not the client is connected at that moment.

A session that is not closed keeps its owner znodes for the whole session timeout, although its gate is shut and no
consumer uses them. kazoo closes a session over its connection. Without a connection, kazoo's client stops and leaves
the session open. This module then resumes the session with a new client, whose first request closes the session.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.coordination.zookeeper.kazoo_client import begin_stop, observe_connect
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.group.member.lease import answer_limit_s

__all__ = ["SessionClose"]

log = logging.getLogger(__name__)

#: The pause between two checks of a client, in seconds; a change of the session's state wakes the thread at once.
CLIENT_CHECK_S = 0.05
#: How long kazoo's thread may take to end when its client is closed, in seconds.
THREAD_S = 1.0


class SessionClose:
    """
    Starts and stops a session's client, and closes the session.

    A client that resumes the session connects with the session's id and password, sends one request, Close, and stops.
    If a server answers that the session is over, kazoo would open a new session. The client is stopped before that.

    Args:
        config: The servers, and the session timeout to request.
        client: The session's own client.
        stopped: Called on this object's thread when the session's own client has ended, with or without a close.
        ended: Called on this object's thread at the end: the session is closed, was never opened, or must have expired.
        runtime: Clock, threads, and the clients that resume the session.
    """

    def __init__(
        self,
        config: ZooKeeperConfig,
        client: KazooClient,
        stopped: Callable[[], None],
        ended: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        self._config = config
        self._client = client
        self._stopped = stopped
        self._ended = ended
        self._runtime = runtime
        self._is_own = True
        self._is_closing = False
        #: Held while the client starts, and by its stop: a client that is stopped before its start has ended runs on.
        self._start_lock = threading.Lock()
        #: Id and password; None before there was a session.
        self._session: tuple[int, bytes] | None = None
        self._timeout_ms = config.session_timeout_ms
        #: Whether a server has reported that the session is over.
        self._is_over = False
        self._connected = False
        #: When to give up, in seconds of boot time: by then the servers have expired the session themselves.
        self._give_up_s = float("inf")
        #: When the current client started to stop, in seconds of boot time; None before that.
        self._stopping_s: float | None = None
        self._ticker = runtime.ticker(self._step, "close")

    def start_client(self) -> None:
        """Start the session's own client, unless the close has begun. Any thread may call this method."""
        with self._start_lock:
            if not self._is_closing:
                self._client.start_async()

    def granted(self, session_id: int, timeout_ms: int) -> None:
        """Process a server's response to Connect. This is called on kazoo's thread."""
        if self._session is not None and (timeout_ms <= 0 or session_id != self._session[0]):
            self._is_over = True
            if not self._is_own:
                self._client._stopped.set()
        self._timeout_ms = max(self._timeout_ms, timeout_ms)

    def state_changed(self, state: str) -> None:
        """
        Process a change of the connection's state.

        This is called on kazoo's thread. The order in which kazoo calls its listeners is not fixed.
        """
        if state == KazooState.CONNECTED:
            self._connected = True
            self._session = self._session or self._client.client_id
        else:
            # Only the answer to Close ends a client that is connected.
            self._is_over |= state == KazooState.LOST and self._connected
            self._connected = False
        self._ticker.wake()

    def begin(self) -> None:
        """Start a thread that closes the session. Any thread may call this method, but only once."""
        self._give_up_s = self._runtime.boot_time_s() + self._timeout_ms / 1000
        # Without the lock, which would block the caller: a start that does not see this is waited for by the stop.
        self._is_closing = True
        self._ticker.start()

    def _step(self) -> float | None:
        """Perform the next step of the close. Return the seconds until the following step, or None at the end."""
        now_s, client = self._runtime.boot_time_s(), self._client
        if self._stopping_s is None:
            if self._is_own or client.connected or self._is_over or now_s >= self._give_up_s:
                self._stopping_s = now_s
                with self._start_lock:
                    begin_stop(client)
        elif client.client_state == KeeperState.CLOSED:
            self._end_client()
            if self._is_over or self._session is None or now_s >= self._give_up_s:
                self._ended()
                return None
            self._resume(self._session)
        elif now_s - self._stopping_s >= answer_limit_s(self._timeout_ms):
            # The server does not answer in time. Another server may.
            self._stopping_s = now_s
            self._drop_connection()
        return CLIENT_CHECK_S

    def _end_client(self) -> None:
        client = self._client
        try:
            client.handler.stop()
            client._connection.stop(THREAD_S)
            client.close()
        except Exception:
            log.debug("the ZooKeeper client of a closed session did not stop cleanly", exc_info=True)
        if self._is_own:
            self._stopped()
        elif self._is_over:
            log.info("closed a ZooKeeper session that was abandoned without a connection")

    def _resume(self, session: tuple[int, bytes]) -> None:
        self._is_own, self._stopping_s = False, None
        self._client = client = self._runtime.client(self._config, session)
        observe_connect(client, self._config.session_timeout_ms, self.granted)
        client.add_listener(self.state_changed)
        client.start_async()

    def _drop_connection(self) -> None:
        try:
            self._client._connection._socket.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            log.debug("the connection was closed already", exc_info=True)
