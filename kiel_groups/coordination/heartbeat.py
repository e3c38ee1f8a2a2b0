"""
The heartbeat of one session, on a thread of its own: an event loop that is busy must not cost the lease.

Each beat is a transaction that only checks the member znode; it goes through the quorum, which pings and reads do not.
Requests count as pings for kazoo and so switch its detection of dead connections off: a beat that stays unanswered
makes this thread shut the socket, so that kazoo tries the next server while the session still lives.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kiel_groups.coordination.gate import Gate
from kiel_groups.coordination.machine import boot_time_s, ticker
from kiel_groups.group.lease import answer_limit_s, heartbeat_interval_s
from kiel_groups.metrics import Metrics

__all__ = ["Heartbeat"]

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews a gate's lease and says when it has run out; ``on_dead`` is called on this thread or on kazoo's."""

    def __init__(
        self, client: KazooClient, gate: Gate, member_path: str, metrics: Metrics, on_dead: Callable[[str], None]
    ) -> None:
        self._client = client
        self._gate = gate
        self._member_path = member_path
        self._metrics = metrics
        self._on_dead = on_dead
        self._stopped = False
        self._sent_s: float | None = None
        self._ticker = ticker(self._tick, "heartbeat")

    def start(self, session_timeout_ms: int) -> None:
        """Begin; ``session_timeout_ms`` is what the server granted."""
        self._interval_s = heartbeat_interval_s(session_timeout_ms)
        self._limit_s = answer_limit_s(session_timeout_ms)
        self._ticker.start()

    def stop(self) -> None:
        """End the thread soon; never blocks."""
        self._stopped = True
        self._ticker.wake()

    def beat_now(self) -> None:
        """Do not wait for the interval: the connection is back, and the lease may be short."""
        self._sent_s = None
        self._ticker.wake()

    def _tick(self) -> float | None:
        """Do what is due; returns the seconds until the next look, None when there is none."""
        try:
            return self._look()
        except Exception as error:
            # Without beats the lease ends unnoticed: better to end the session now, and loudly.
            log.exception("the heartbeat failed")
            self._gate.shut("heartbeat failed")
            self._on_dead(f"the heartbeat failed: {error!r}")
            return None

    def _look(self) -> float | None:
        if self._stopped:
            return None
        if self._gate.expired:
            self._gate.shut("lease over")
            self._on_dead("the lease ran out: ZooKeeper confirmed nothing for half the session timeout")
            return None
        if self._sent_s is None:
            self._beat()
        elif boot_time_s() - self._sent_s >= self._limit_s:
            self._drop_connection()
        return self._pause_s()

    def _pause_s(self) -> float:
        """Until the next thing to do: a beat, the limit of an unanswered one, or the end of the lease."""
        return max(0.001, min(self._interval_s, self._gate.deadline_s - boot_time_s()))

    def _beat(self) -> None:
        if self._gate.suspended:
            return
        sent_s = boot_time_s()
        self._sent_s = sent_s
        transaction = self._client.transaction()
        transaction.check(self._member_path, -1)
        transaction.commit_async().rawlink(lambda answer: self._answered(sent_s, answer))

    def _answered(self, sent_s: float, answer: Any) -> None:
        """On kazoo's thread."""
        self._sent_s = None
        if answer.exception is not None:
            return
        if any(isinstance(result, NoNodeError) for result in answer.value):
            self._gate.shut("member znode gone")
            if not self._stopped:
                self._on_dead("the member znode is gone")
        elif not any(isinstance(result, Exception) for result in answer.value):
            self._gate.renew(sent_s)
            self._metrics.observe("heartbeat", boot_time_s() - sent_s)

    def _drop_connection(self) -> None:
        self._sent_s = None
        self._metrics.count("zookeeper_connections_dropped")
        log.warning("ZooKeeper did not answer a heartbeat for %.1f s; trying another connection", self._limit_s)
        connection: socket.socket | None = self._client._connection._socket
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                log.debug("the socket was closed already", exc_info=True)
