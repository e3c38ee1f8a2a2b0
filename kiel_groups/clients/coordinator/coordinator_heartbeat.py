"""
Send the heartbeats of one member, on a thread of its own: a busy event loop must not cost the membership.

The thread renews the gate itself, so that delivery continues at once when the loop is free again. What an answer means
for the membership is decided on the loop.

A coordinator that loads its log answers every heartbeat as if all were well, because it does not know its members yet.
While the lease runs, that is true: the former coordinator has not removed the member before its session was over. A
member whose lease is over may have been removed. So its thread asks for its assignment again, by a sync, which only a
stable group of the same generation grants; a sync also renews the session.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

from kiel_groups.clients.calls.eager_methods import home_loop
from kiel_groups.clients.coordinator.group_coordinator import BeatReport, BeatTarget
from kiel_groups.clients.coordinator.group_transport import BeatAnswer, GroupTransport
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.group.coordinated.coordinator_codes import CoordinatorCode
from kiel_groups.metrics import Metrics
from kiel_groups.wire.groups.heartbeat_v0 import HeartbeatRequest
from kiel_groups.wire.groups.leave_group_v0 import LeaveGroupRequest
from kiel_groups.wire.groups.sync_group_v0 import SyncGroupRequest

__all__ = ["CoordinatorHeartbeat"]

log = logging.getLogger(__name__)

#: How long the thread sleeps if there is nothing to do, in seconds. A change of the target wakes it.
_IDLE_S = 60.0

#: The share of the session timeout after which an unanswered heartbeat is given up. Another try fits into the lease.
_ANSWER_SHARE = 1 / 6


class CoordinatorHeartbeat:
    """
    Proves a membership to the coordinator at regular intervals, while there is a target.

    Args:
        group: The group's name.
        transport: Sends the heartbeats.
        interval_ms: The time between two heartbeats.
        session_timeout_ms: The session timeout that the member joins with.
        metrics: Observes ``heartbeat``, the time to an answer, and counts ``heartbeats`` by code.
        runtime: Clock and thread.
        answered: Called on the event loop with the target of a heartbeat and its answer.
    """

    def __init__(
        self,
        group: str,
        transport: GroupTransport,
        interval_ms: int,
        session_timeout_ms: int,
        metrics: Metrics,
        runtime: Runtime,
        answered: BeatReport,
    ) -> None:
        self._group = group
        self._transport = transport
        self._interval_s = interval_ms / 1000
        self._limit_s = session_timeout_ms / 1000 * _ANSWER_SHARE
        self._metrics = metrics
        self._runtime = runtime
        self._report = answered
        self._loop = home_loop()
        #: Written by the event loop and read by the thread, each by one plain assignment.
        self._target: BeatTarget | None = None
        self._due_s = float("inf")
        #: When the last heartbeat was sent.
        self._sent_s = float("-inf")
        self._is_waiting = False
        self._is_stopped = False
        #: The membership that the thread is to end by a leave request.
        self._to_leave: BeatTarget | None = None
        self._is_started = False
        self._ended = threading.Event()
        self._ticker = runtime.ticker(self._tick, "heartbeat")

    def follow(self, target: BeatTarget | None) -> None:
        """
        Beat for this membership from now on; None: do not beat.

        The join or the coordinator's discovery counts as the first beat, unless the lease is over already, as after a
        sync that waited for long. A coordinator that refuses connections is found again at once, and still beaten for
        an interval after the last heartbeat only.

        Later heartbeats are due at multiples of the interval after that, also if one was late. So the members of a
        generation, which got their assignments at the same time, learn of the next rebalance at the same time.
        """
        if target == self._target:
            return
        now_s = self._runtime.boot_time_s()
        self._target = target
        is_urgent = target is not None and not target.gate.is_open(now_s)
        self._due_s = max(now_s, self._sent_s + self._interval_s) if is_urgent else now_s + self._interval_s
        if target is not None and not self._is_started:
            self._is_started = True
            self._ticker.start()
        self._ticker.wake()

    def leave(self, target: BeatTarget) -> None:
        """Have the thread send a leave request, because the event loop may not run any more. Any thread may call it."""
        self._target, self._to_leave = None, target
        self._ticker.wake()

    def stop(self) -> None:
        """Have the thread end soon, without waiting for it."""
        self._target, self._is_stopped = None, True
        self._ticker.wake()

    def wait_ended(self, timeout_s: float) -> None:
        """Block until the thread has ended, after ``stop``, but at most ``timeout_s``."""
        if self._is_started:
            self._ended.wait(timeout_s)

    # ------------------------------------------------------------------ on the thread

    def _tick(self) -> float | None:
        try:
            return self._check()
        except Exception:
            # Without beats the lease ends, and with it delivery; the thread continues: the next beat may succeed.
            log.exception("group %s: the heartbeat failed", self._group)
            self._is_waiting = False
            return self._interval_s

    def _check(self) -> float | None:
        if self._loop.is_closed() and (target := self._target) is not None:
            # A client that was left without a close must not keep its partitions for as long as the process lives.
            log.error("group %s: the event loop was closed before its client; leaving the group", self._group)
            self._target, self._to_leave = None, target
        if (leaving := self._to_leave) is not None and not self._is_waiting:
            self._to_leave = None
            request = LeaveGroupRequest(self._group, leaving.gate.token.member_id)
            self._transport.beat(leaving.coordinator, request, self._limit_s, lambda _: None)
        if self._is_stopped or self._loop.is_closed():
            if not self._is_waiting:
                self._transport.close_beats()
            self._ended.set()
            return None
        target, now_s = self._target, self._runtime.boot_time_s()
        # The event loop shuts the gate of a membership before it tells the thread that the membership has ended.
        if target is None or target.gate.is_shut or self._is_waiting:
            return _IDLE_S
        if now_s >= (due_s := self._due_s):
            passed = (now_s - due_s) // self._interval_s + 1
            self._sent_s, self._due_s, self._is_waiting = now_s, due_s + passed * self._interval_s, True
            if target.gate.is_open(now_s):
                self._beat(target, now_s, renews=True)
            else:
                request_ = SyncGroupRequest(self._group, *target.gate.token, {})
                self._transport.beat(target.coordinator, request_, self._limit_s, partial(self._synced, target, now_s))
            now_s = self._runtime.boot_time_s()
        return max(0.001, self._due_s - now_s)

    def _beat(self, target: BeatTarget, sent_s: float, *, renews: bool) -> None:
        """Send a heartbeat; ``renews``: its success extends the lease."""
        request = HeartbeatRequest(self._group, *target.gate.token)
        answered = partial(self._answered, target, sent_s, renews)
        self._transport.beat(target.coordinator, request, self._limit_s, answered)

    def _synced(self, target: BeatTarget, sent_s: float, answer: BeatAnswer) -> None:
        """Have a granted sync open the gate again. Why it is not granted is a heartbeat's to find out."""
        if answer.code in (0, None):
            self._answered(target, sent_s, True, answer)
        elif self._target != target:
            # The member has left, or joins again: what the broker thinks of its former membership does not matter.
            self._is_waiting = False
            self._ticker.wake()
        else:
            self._beat(target, self._runtime.boot_time_s(), renews=False)

    def _answered(self, target: BeatTarget, sent_s: float, renews: bool, answer: BeatAnswer) -> None:
        self._is_waiting = False
        if answer.code == CoordinatorCode.NO_ERROR and renews:
            target.gate.renew(target.gate.token, sent_s)
        elif answer.code == CoordinatorCode.REBALANCE_IN_PROGRESS and renews:
            target.gate.renew_in_rebalance(target.gate.token, sent_s)
        if answer.code is not None:
            self._metrics.observe("heartbeat", self._runtime.boot_time_s() - sent_s)
        self._metrics.count("heartbeats", code=str(answer.code))
        self._ticker.wake()
        try:
            self._loop.call_soon_threadsafe(self._report, target, answer)
        except RuntimeError:
            log.debug("group %s: a heartbeat was answered after its event loop was closed", self._group)
