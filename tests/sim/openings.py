"""Only a delay, and judged all the same: how long a claim may stay unopened although its leader answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.group.member.claims import Phase
from kiel_groups.model import TopicPartition

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer
    from tests.sim.world import World

__all__ = ["OPENED_S", "Openings"]

#: A claim is open so long after its leader is back, in seconds: the longest pause between two attempts is 5, a look-up
#: takes up to 2, and reads of a server that lags up to 2 each.
OPENED_S = 15.0
#: How often claims are looked at, in seconds.
LOOK_S = 0.5


class Openings:
    """Since when claims have been unopened, while nothing was in their way."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next_s = 0.0
        self._since_s: dict[tuple[Consumer, TopicPartition], float] = {}

    def look(self) -> str:
        """To be called after every step; returns which claim has waited for too long, "" where none has."""
        now_s = self._world.timeline.now_s
        if now_s < self._next_s:
            return ""
        self._next_s = now_s + LOOK_S
        unopened = {
            (consumer, partition)
            for consumer in self._world.consumers
            if consumer.lives and consumer.gate_is_open and now_s >= consumer.process.blocked_until_s
            for partition in consumer.in_phase(Phase.OPENING)
            if self._world.has_leader(partition)
        }
        self._since_s = {each: self._since_s.get(each, now_s) for each in unopened}
        for (consumer, partition), since_s in self._since_s.items():
            if now_s - since_s > OPENED_S:
                return f"{consumer.name} has claimed {partition}, and has not opened it for {now_s - since_s:.1f} s"
        return ""
