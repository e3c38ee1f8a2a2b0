"""What simulated groups have in common, whether ZooKeeper or brokers coordinate them: topics, and the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.fakes import FakeEnsemble, Timeline
from tests.fakes.fake_ensemble import Entry
from tests.sim.application import Application

__all__ = ["GroupWorld"]


class GroupWorld:
    """
    A simulated group with its environment.

    ``topics`` has the number of partitions of each topic. ``checker.step()`` checks the invariants. ``began_s`` is the
    time at which the scenario starts.
    """

    timeline: Timeline
    ensemble: FakeEnsemble
    topics: dict[str, int]
    consumers: Sequence[Application]
    checker: Any
    began_s: float

    def some_topics(self, choice: float) -> list[str]:
        """Return all topics, or one. ``choice`` in [0, 1) selects."""
        names = sorted(self.topics)
        return names if choice < 0.6 else [names[int(choice * 1000) % len(names)]]

    def observe_writes(self, record: Callable[[str], None]) -> None:
        """Call ``record`` with a description of each later write of any process."""

        def committed(entry: Entry) -> None:
            changes = " ".join(f"{change.kind} {change.path} {change.znode}" for change in entry.changes)
            record(f"{entry.zxid} {entry.session_id} {entry.error!r} {changes}")

        # The observer has no reference to the world, so that the world can be collected at the end of the scenario.
        self.ensemble.observers.append(committed)

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
