"""
The gate: whether this member may hand out and commit at this moment.

It is open while the lease runs, the connection is not suspended, and nobody shut it. Shutting is final, and whoever
asks after the lease's end shuts it: a session whose lease ran out is closed, although it may be found alive later.
Several threads renew, ask and shut; each field is written by one plain assignment, so no lock is needed.
"""

from __future__ import annotations

from kiel_groups.coordination.zookeeper.runtime import boot_time_s
from kiel_groups.group.member.lease import lease_deadline

__all__ = ["Gate"]

_NEVER = float("-inf")


class Gate:
    """One session's gate."""

    def __init__(self) -> None:
        #: The lease's end in seconds of boot time; −inf before anything was confirmed.
        self.deadline_s = _NEVER
        self.suspended = False
        self.shut_reason: str | None = None
        #: The session timeout that leases count with, in milliseconds; 0 before a server granted one.
        self.timeout_ms = 0
        self._first_ms = 0

    def grant(self, session_timeout_ms: int) -> None:
        """
        The server granted this session timeout, in milliseconds; leases count with it from now on.

        After a reconnection another server may grant a shorter one: that shortens the lease that runs. A longer one
        than the first lengthens none: that is what the group was told, and who releases by force waits for.
        """
        self._first_ms = self._first_ms or session_timeout_ms
        self.timeout_ms = min(session_timeout_ms, self._first_ms)
        self.deadline_s = min(self.deadline_s, lease_deadline(boot_time_s(), self.timeout_ms))

    def renew(self, sent_s: float) -> None:
        """
        A quorum write that was sent at this boot time was answered.

        A gate that is shut is not renewed: the heartbeat would keep alive a session that may never be used again.
        """
        if self.timeout_ms and self.shut_reason is None:
            self.deadline_s = max(self.deadline_s, lease_deadline(sent_s, self.timeout_ms))

    def shut(self, reason: str) -> None:
        """Never open again."""
        if self.shut_reason is None:
            self.shut_reason = reason

    def is_over(self, now_s: float) -> bool:
        """Whether a lease was granted once and has run out at this boot time; if so, the gate is shut from now on."""
        over = _NEVER != self.deadline_s <= now_s
        if over:
            self.shut("lease over")
        return over

    def is_open(self, now_s: float) -> bool:
        """Whether records may be handed out and offsets committed at this boot time."""
        if now_s < self.deadline_s:
            return not self.suspended and self.shut_reason is None
        self.is_over(now_s)
        return False
