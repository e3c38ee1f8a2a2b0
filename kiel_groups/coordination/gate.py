"""
The gate: whether this member may hand out and commit at this moment.

It is open while the lease runs, the connection is not suspended, and nobody shut it; shutting is final. The heartbeat's
thread renews and shuts it, the event loop asks; each field is written by one plain assignment, so no lock is needed.
"""

from __future__ import annotations

from kiel_groups.coordination.machine import boot_time_s
from kiel_groups.group.lease import lease_deadline

__all__ = ["Gate"]


class Gate:
    """One session's gate."""

    def __init__(self) -> None:
        self.deadline_s = float("-inf")
        self.suspended = False
        self.shut_reason: str | None = None
        self._timeout_ms = 0

    def grant(self, session_timeout_ms: int) -> None:
        """The server granted this session timeout, in milliseconds; leases count with it from now on."""
        self._timeout_ms = session_timeout_ms

    def renew(self, sent_s: float) -> None:
        """A quorum write that was sent at this boot time was answered."""
        if self._timeout_ms:
            self.deadline_s = max(self.deadline_s, lease_deadline(sent_s, self._timeout_ms))

    def shut(self, reason: str) -> None:
        """Never open again."""
        if self.shut_reason is None:
            self.shut_reason = reason

    @property
    def expired(self) -> bool:
        """Whether a lease was granted once and has run out."""
        return self.deadline_s != float("-inf") and boot_time_s() >= self.deadline_s

    def is_open(self, now_s: float) -> bool:
        """Whether records may be handed out and offsets committed at this boot time."""
        return now_s < self.deadline_s and not self.suspended and self.shut_reason is None
