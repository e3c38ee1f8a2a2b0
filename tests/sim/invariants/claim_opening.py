"""The time limit for opening a claim while the partition's leader answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.group.claims import Phase
from kiel_groups.model import TopicPartition
from tests.sim.history.history import History
from tests.sim.invariants.invariant import Invariant

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["OPENED_S", "ClaimsOpenedInTime"]

#: The time limit, in seconds, for opening a claim once nothing prevents it. The longest pause between two attempts is
#: 5 s, a look-up takes up to 2 s, and each read from a lagging server up to 2 s.
OPENED_S = 15.0
#: The interval of the checks, in seconds.
CHECK_S = 0.5


class ClaimsOpenedInTime(Invariant):
    """No claim stays unopened for longer than 15 seconds while nothing prevents its owner from opening it."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._next_s = 0.0
        #: By claim: since when, in seconds, it has been unopened although nothing prevents its opening.
        self._since_s: dict[tuple[Consumer, TopicPartition], float] = {}

    def on_step(self) -> None:
        now_s = self.world.timeline.now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + CHECK_S
        unopened = {
            (consumer, partition)
            for consumer in self.world.consumers
            if not self._is_prevented(consumer)
            for partition in consumer.in_phase(Phase.OPENING)
            if self.world.has_leader(partition)
        }
        self._since_s = {each: self._since_s.get(each, now_s) for each in unopened}
        for (consumer, partition), since_s in self._since_s.items():
            if now_s - since_s > OPENED_S:
                raise self.violation(
                    f"{consumer.name} has claimed {partition}, and has not opened it for {now_s - since_s:.1f} s"
                )

    def _is_prevented(self, consumer: Consumer) -> bool:
        """Return whether the consumer does not run, its gate is shut, or its event loop is blocked."""
        is_blocked = self.world.timeline.now_s < consumer.process.blocked_until_s
        return not consumer.is_running or not consumer.gate_is_open or is_blocked
