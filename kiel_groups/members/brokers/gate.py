"""
Decide whether a member of a generation may deliver records and commit offsets at this moment.

The gate is open while the lease runs: for half the session timeout, counted from the sending of the newest request that
the coordinator has answered for this generation and member. After the end of the lease, a later answer for the same
membership opens the gate again. Only ``shut`` is final, when the member leaves the generation.

A sync or a heartbeat that succeeds says that the group is stable. During a rebalance, the coordinator answers
heartbeats with a code that says so, and still accepts commits, until the end of the rebalance timeout. Then the
coordinator removes each member that has not joined again, even a member that sends heartbeats or commits. So these
answers extend the lease only up to nine tenths of that timeout, counted from the last moment when the group was stable.
In Kafka 0.9, these answers do not extend the lease, because the session timeout is also the rebalance timeout there.

The heartbeat's thread renews a gate while the event loop checks it. Each field is written by one plain assignment, so
no lock is needed.
"""

from __future__ import annotations

from kiel_groups.model import GenerationToken

#: The share of the session timeout that a lease lasts. The rest is for pauses, and for a coordinator that counts the
#: session from the arrival of a request, on a clock of its own.
LEASE_SHARE = 0.5

#: The share of the rebalance timeout that a member may use. The coordinator counts it from a later moment than the
#: member does, so the rest is only for clocks that run at different rates.
DRAIN_SHARE = 0.9


class GenerationGate:
    """
    Decides whether one member may deliver records and commit offsets in one generation.

    Args:
        token: The generation and the member id.
        session_timeout_ms: The session timeout that the member has joined with, in milliseconds.
        sent_s: The boot time at which the answered sync was sent, in seconds.
        rebalance_timeout_s: How long a rebalance waits for a member that sends heartbeats, in seconds, or 0 if
            heartbeats do not keep a member in a group that rebalances.
    """

    def __init__(
        self, token: GenerationToken, session_timeout_ms: int, sent_s: float, rebalance_timeout_s: float = 0.0
    ) -> None:
        self.token = token
        self._drain_s = rebalance_timeout_s * DRAIN_SHARE
        self._lease_s = session_timeout_ms / 1000 * LEASE_SHARE
        #: Whether the gate was shut for good.
        self.is_shut = False
        #: When the newest request was sent whose answer says that the group was stable, in seconds of boot time.
        self.confirmed_s = sent_s
        self._deadline_s = sent_s + self._lease_s

    @property
    def deadline_s(self) -> float:
        """The end of the lease, in seconds of boot time."""
        return self._deadline_s

    def renew(self, token: GenerationToken, sent_s: float) -> None:
        """
        Extend the lease: the answer to a heartbeat, sent at ``sent_s``, says that the group is stable.

        Do nothing if ``token`` is of another generation or member.
        """
        if token == self.token:
            self.confirmed_s = max(self.confirmed_s, sent_s)
            self._deadline_s = max(self._deadline_s, sent_s + self._lease_s)

    def renew_in_rebalance(self, token: GenerationToken, sent_s: float) -> None:
        """
        Extend the lease: the answer to a heartbeat, sent at ``sent_s``, says that the group rebalances.

        Callers also use this method after an accepted commit, because the coordinator also accepts commits during a
        rebalance. Do nothing if ``token`` is of another generation or member.
        """
        if token == self.token:
            removed_s = self.confirmed_s + self._drain_s
            self._deadline_s = max(self._deadline_s, min(sent_s + self._lease_s, removed_s))

    def shut(self) -> None:
        """Shut the gate for good: the member has left the generation, or was removed from it."""
        self.is_shut = True

    def is_open(self, now_s: float) -> bool:
        """Return whether records may be delivered and offsets committed at the boot time ``now_s``."""
        return now_s < self._deadline_s and not self.is_shut
