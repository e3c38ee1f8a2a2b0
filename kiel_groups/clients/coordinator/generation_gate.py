"""
Decide whether a member of a generation may deliver records and commit offsets at this moment.

The gate is open while the lease runs: for half the session timeout, counted from the sending of the newest request
that the coordinator has answered for this generation and member. The end of the lease is not the end of the gate: if
the coordinator still counts on the member later, the lease runs again. Only ``shut`` is final, when the member leaves
the generation.

An answered sync or heartbeat says that the group was stable. An accepted commit does not: coordinators accept commits
while the group rebalances, too, and then remove the member at the end of the rebalance timeout, whether or not it beats
or commits. So commits extend the lease by half that timeout at most, from the last moment when the group was stable.
Commits renew no session in 0.9, whose rebalance timeout is the session timeout: there, they do not extend the lease.

The heartbeat's thread renews a gate while the event loop checks it. Each field is written by one plain assignment, so
no lock is needed.
"""

from __future__ import annotations

from kiel_groups.model import GenerationToken

__all__ = ["GenerationGate"]

#: The share of the session timeout that a lease lasts. The rest is for pauses, and for a coordinator that counts the
#: session from the arrival of a request, on a clock of its own.
LEASE_SHARE = 0.5


class GenerationGate:
    """
    The gate of one member in one generation.

    Args:
        token: The generation and the member id.
        session_timeout_ms: The session timeout that the member has joined with.
        sent_s: The boot time at which the answered sync was sent.
    """

    def __init__(self, token: GenerationToken, session_timeout_ms: int, sent_s: float) -> None:
        self.token = token
        self._lease_s = session_timeout_ms / 1000 * LEASE_SHARE
        self._is_shut = False
        #: When the newest request was sent whose answer says that the group was stable, in seconds of boot time.
        self.confirmed_s = sent_s
        #: The end of the lease, in seconds of boot time.
        self.deadline_s = sent_s + self._lease_s

    def renew(self, token: GenerationToken, sent_s: float) -> None:
        """Extend the lease after a heartbeat of that time, whose answer says that the group is stable."""
        if token == self.token:
            self.confirmed_s = max(self.confirmed_s, sent_s)
            self.deadline_s = max(self.deadline_s, sent_s + self._lease_s)

    def renew_by_commit(self, token: GenerationToken, sent_s: float, rebalance_timeout_s: float) -> None:
        """Extend the lease after an accepted commit of that time, perhaps while the group rebalances."""
        if token == self.token:
            removed_s = self.confirmed_s + rebalance_timeout_s * LEASE_SHARE
            self.deadline_s = max(self.deadline_s, min(sent_s + self._lease_s, removed_s))

    def extend(self, deadline_s: float, now_s: float) -> None:
        """
        Extend a lease that runs at the boot time ``now_s``, for the commits of a drain.

        The coordinator waits for the members of a rebalance until its rebalance timeout is over, so their partitions
        are not assigned to other members before that. A lease that is over stays so: the session may have expired.
        """
        if self.is_open(now_s):
            self.deadline_s = max(self.deadline_s, deadline_s)

    def shut(self) -> None:
        """Shut the gate for good: the member has left the generation, or was removed from it."""
        self._is_shut = True

    @property
    def is_shut(self) -> bool:
        """Whether the gate was shut for good."""
        return self._is_shut

    def is_open(self, now_s: float) -> bool:
        """Return whether records may be delivered and offsets committed at the boot time ``now_s``."""
        return now_s < self.deadline_s and not self._is_shut
