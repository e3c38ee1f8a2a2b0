"""Observe how long a member's part in a rebalance takes: until its assignment arrives, and until it is taken over."""

from __future__ import annotations

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.metrics import Metrics

__all__ = ["RebalanceTimes"]

#: The longest time from a decision to the assignment that follows from it, in seconds. A later assignment has another
#: cause: a new subscription need not change the member's partitions.
_LONGEST_JOIN_S = 30.0


class RebalanceTimes:
    """
    The times of one member session, for the metrics ``join`` and ``sync``.

    Args:
        metrics: Observes ``join`` and ``sync``, and counts ``joins``.
        runtime: The clock.
        began_s: When the session was begun, in seconds of boot time.
    """

    def __init__(self, metrics: Metrics, runtime: Runtime, began_s: float) -> None:
        self._metrics = metrics
        self._runtime = runtime
        self._decided_s: float | None = began_s
        self._noticed_s: float | None = None
        self._generation: int | None = None
        self._has_ended = False
        #: When the assignment arrived that is not taken over completely yet.
        self._arrived_s: float | None = None

    def subscription_changed(self) -> None:
        """Note that the member registers another subscription, so that a plan will follow."""
        self._decided_s = self._runtime.boot_time_s()

    def change_noticed(self) -> None:
        """Note that a watch has reported a change of the assignment."""
        if self._noticed_s is None:
            self._noticed_s = self._runtime.boot_time_s()

    def arrived(self, generation: int) -> None:
        """Observe ``join`` if an assignment of another generation has been read."""
        noticed_s, self._noticed_s = self._noticed_s, None
        if generation == self._generation or self._has_ended:
            return
        is_first, self._generation = self._generation is None, generation
        now_s = self._runtime.boot_time_s()
        decided_s, self._decided_s = self._decided_s, None
        if decided_s is None or (not is_first and now_s - decided_s > _LONGEST_JOIN_S):
            decided_s = now_s if noticed_s is None else noticed_s
        self._metrics.observe("join", now_s - decided_s)
        self._metrics.count("joins")
        self._arrived_s = now_s

    def end(self) -> None:
        """Observe nothing any more: the member leaves, and further assignments only revoke its partitions."""
        self._has_ended, self._arrived_s = True, None

    def taken_over(self) -> None:
        """Observe ``sync``: the member owns its assignment, and all of its records can be delivered."""
        if self._arrived_s is not None:
            self._metrics.observe("sync", self._runtime.boot_time_s() - self._arrived_s)
            self._arrived_s = None
