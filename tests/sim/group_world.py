"""What simulated groups have in common, whether ZooKeeper or brokers coordinate them: topics, and the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiel_groups.testing import Timeline
from tests.sim.application import Application

__all__ = ["GroupWorld"]


class GroupWorld:
    """
    A simulated group with its environment.

    ``topics`` has the number of partitions of each topic. ``checker.step()`` checks the invariants. ``began_s`` is the
    time at which the scenario starts.
    """

    timeline: Timeline
    topics: dict[str, int]
    consumers: Sequence[Application]
    checker: Any
    began_s: float

    def some_topics(self, choice: float) -> list[str]:
        """Return all topics, or one. ``choice`` in [0, 1) selects."""
        names = sorted(self.topics)
        return names if choice < 0.6 else [names[int(choice * 1000) % len(names)]]

    @property
    def elapsed_s(self) -> float:
        """The seconds since the scenario started."""
        return self.timeline.now_s - self.began_s

    def run_for(self, duration_s: float) -> None:
        """Advance the time by ``duration_s``, and check the invariants after every step."""
        timeline = self.timeline
        until_s = timeline.now_s + duration_s
        while timeline.step(until_s):
            if timeline.failures:
                raise timeline.failures[0]
            self.checker.step()
        timeline.now_s = until_s
