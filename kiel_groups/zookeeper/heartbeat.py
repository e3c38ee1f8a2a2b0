"""
Send the heartbeats of one session on a thread of its own, so that a busy event loop does not lose the lease.

Each heartbeat (a beat, for short) is a transaction that only checks the member znode. A transaction goes through the
quorum, unlike pings and reads. kazoo counts requests as pings, so beats disable kazoo's detection of dead connections.
Therefore this thread drops the connection if a beat stays unanswered. Then kazoo tries the next server while the
session is still alive.
"""

from __future__ import annotations

import logging
from socket import socket
from typing import Any

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.group.lease import answer_limit_s, heartbeat_interval_s
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.pending_requests import MOVED, reports_move
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session

log = logging.getLogger(__name__)


_NO_ANSWER = "ZooKeeper confirmed nothing for half the session timeout"


class Heartbeat:
    """
    Renews the lease of a session.

    The heartbeat abandons the session when the lease has run out, the member znode is gone, the event loop is closed,
    or the heartbeat itself fails.

    Args:
        session: The session. The heartbeat's thread or kazoo's thread abandons it.
        proof: The znode that every beat checks: the member znode, or the election folder for an allocator process.
        interval_ms: The time between beats, in milliseconds. None means a sixth of the granted session timeout.
        metrics: Observes ``heartbeat``, the seconds from the sending of a beat to the answer.
        runtime: Clock and thread.
    """

    def __init__(
        self, session: Session, proof: str, interval_ms: int | None, metrics: Metrics, runtime: Runtime
    ) -> None:
        self._session = session
        self._connection = session.connection
        self._gate = session.gate
        self._proof = proof
        self._interval_ms = interval_ms
        self._metrics = metrics
        self._runtime = runtime
        self._stopped = False
        #: When the unanswered beat was sent, and when the next beat is due, in seconds of boot time. The heartbeat's
        #: thread, kazoo's and the loop's write these fields without a lock: at worst one more beat is sent.
        self._sent_s: float | None = None
        self._sent_over: socket | None = None
        self._due_s = float("-inf")
        #: Why the lease is not renewed, for the log.
        self._problem = _NO_ANSWER
        self._ticker = runtime.ticker(self._tick, "heartbeat")

    def start(self) -> None:
        """Start the thread. The session must be open."""
        self._session.add_connect_listener(self.beat_now)
        self._ticker.start()

    def stop(self) -> None:
        """Tell the thread to end, and do not wait for its end."""
        self._stopped = True
        self._ticker.wake()

    def beat_now(self) -> None:
        """
        Tell the heartbeat's thread to send a beat at once. Any thread may call this method.

        The session calls this method, on kazoo's thread, when the connection is back, because the lease may end soon.
        """
        self._sent_s, self._due_s = None, float("-inf")
        self._ticker.wake()

    def _tick(self) -> float | None:
        """Run the due checks and beats, and return the seconds until the next tick, or None to end the thread."""
        try:
            return self._check()
        except Exception as error:
            # Without beats the lease would end unnoticed, so the session ends now, with an error in the log.
            log.exception("the heartbeat failed; ending the session")
            self._gate.shut("heartbeat failed")
            self._session.abandon(f"the heartbeat failed: {error!r}")
            return None

    def _check(self) -> float | None:
        if self._stopped:
            return None
        if self._session.is_orphaned:
            self._end_orphaned()
            return None
        now_s = self._runtime.boot_time_s()
        if self._gate.is_over(now_s):
            self._session.abandon(f"the lease ran out: {self._problem}")
            return None
        # The interval is computed each time: another server may have granted another timeout.
        interval_s = heartbeat_interval_s(self._gate.timeout_ms, self._interval_ms)
        limit_s = answer_limit_s(self._gate.timeout_ms)
        sent_s = self._sent_s
        if sent_s is not None and now_s - sent_s >= limit_s:
            self._sent_s = None
            self._connection.leave(self._sent_over, f"did not answer a heartbeat for {limit_s:.1f} s")
            self._due_s = now_s + interval_s
        elif sent_s is None and now_s >= self._due_s and not self._gate.suspended:
            self._due_s = now_s + interval_s
            self._beat(now_s)
        return self._pause_s(now_s, limit_s)

    def _end_orphaned(self) -> None:
        """
        End the session of a closed event loop. Further beats would keep the session's claims while the process lives.
        """
        if self._gate.shut_reason is None:
            log.error("the event loop of %s was closed before its client; closing its session", self._proof)
        self._session.abandon("its event loop is closed")

    def _pause_s(self, now_s: float, limit_s: float) -> float:
        """Return the seconds until the next event: a beat, the limit of an unanswered beat, or the lease's end."""
        sent_s, deadline_s = self._sent_s, self._gate.deadline_s
        if sent_s is not None:
            at_s = min(self._due_s, sent_s + limit_s) if self._due_s > now_s else sent_s + limit_s
        elif self._gate.suspended:
            # Nothing can be sent now; ``beat_now`` wakes this thread when the connection is back.
            at_s = now_s + limit_s
        else:
            at_s = self._due_s
        # If the lease has just run out, tick again at once; before the first lease there is no end to wait for.
        if deadline_s != float("-inf"):
            at_s = min(at_s, deadline_s)
        return max(0.001, at_s - now_s)

    def _beat(self, sent_s: float) -> None:
        self._sent_s = sent_s
        self._sent_over = used = self._connection.current
        transaction = self._connection.client.transaction()
        transaction.check(self._proof, -1)
        transaction.commit_async().rawlink(lambda answer: self._answered(sent_s, used, answer))

    def _answered(self, sent_s: float, used: socket | None, answer: Any) -> None:
        """
        Process a beat's answer.

        kazoo's thread calls this method. If the answer came before ``rawlink``, the heartbeat's thread calls it.
        """
        if self._sent_s == sent_s:
            self._sent_s = None
            if self._runtime.boot_time_s() >= self._due_s:
                self._ticker.wake()
        if answer.exception is not None:
            return
        if reports_move(answer.value):
            self._connection.leave(used, MOVED)
        elif any(isinstance(result, NoAuthError) for result in answer.value):
            self._problem = f"the ACL of {self._proof} no longer allows reading it"
        elif any(isinstance(result, NoNodeError) for result in answer.value):
            self._gate.shut("member znode gone")
            if not self._stopped:
                self._session.abandon("the member znode is gone")
        elif not any(isinstance(result, Exception) for result in answer.value):
            self._gate.renew(sent_s)
            self._problem = _NO_ANSWER
            self._metrics.observe("heartbeat", self._runtime.boot_time_s() - sent_s)
