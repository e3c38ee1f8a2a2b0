"""
Decide whether this member may deliver records and commit offsets at this moment.

The gate is open while the lease runs, the connection is not suspended, and the gate was not shut. A gate that was shut
never opens again. A check after the end of the lease shuts the gate: a session whose lease ran out is closed, even if
ZooKeeper still has the session.

Times are boot times: seconds of a clock that also runs while the computer is suspended. Several threads renew, check
and shut a gate. Each field is written by one plain assignment, so no lock is needed.
"""

from __future__ import annotations

from kiel_groups.group.lease import lease_deadline

#: How long callers that wait for a gate to open pause between two checks, in seconds. No event announces the opening:
#: another thread may open the gate, and such waits are rare.
GATE_PAUSE_S = 0.02

_NEVER = float("-inf")


class DeliveryGate:
    """The gate of one session: it decides whether the session's member may deliver records and commit offsets."""

    def __init__(self) -> None:
        #: The lease's end in seconds of boot time; −inf before the first confirmation.
        self.deadline_s = _NEVER
        self.suspended = False
        self.shut_reason: str | None = None
        #: The session timeout from which leases are computed, in milliseconds; 0 before a server has granted one.
        self.timeout_ms = 0
        self._first_ms = 0

    def grant(self, session_timeout_ms: int, now_s: float) -> None:
        """
        Use the session timeout that a server granted, in milliseconds, for all leases from the boot time ``now_s`` on.

        After a reconnection another server may grant another timeout. A shorter timeout shortens the running lease. A
        longer timeout is cut to the first timeout: the member znode contains the first timeout, and a forced release
        waits that long.
        """
        self._first_ms = self._first_ms or session_timeout_ms
        self.timeout_ms = min(session_timeout_ms, self._first_ms)
        self.deadline_s = min(self.deadline_s, lease_deadline(now_s, self.timeout_ms))

    def renew(self, sent_s: float) -> None:
        """
        Extend the lease after ZooKeeper has answered a quorum write that was sent at the boot time ``sent_s``.

        A shut gate is not renewed: the heartbeat would otherwise keep a session alive that must not be used again.
        """
        if self.timeout_ms and self.shut_reason is None:
            self.deadline_s = max(self.deadline_s, lease_deadline(sent_s, self.timeout_ms))

    def shut(self, reason: str) -> None:
        """Shut the gate for good. If an earlier call has shut the gate, the first reason remains."""
        if self.shut_reason is None:
            self.shut_reason = reason

    def is_over(self, now_s: float) -> bool:
        """Return whether a granted lease has run out at the boot time ``now_s``. If it has, shut the gate."""
        over = _NEVER != self.deadline_s <= now_s
        if over:
            self.shut("lease over")
        return over

    def is_open(self, now_s: float) -> bool:
        """
        Return whether records may be delivered and offsets committed at the boot time ``now_s``.

        If the lease has run out, shut the gate.
        """
        if now_s < self.deadline_s:
            return not self.suspended and self.shut_reason is None
        self.is_over(now_s)
        return False
