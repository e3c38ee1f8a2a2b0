"""Play a scenario and return its outcome, whatever coordinates its group."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tests.sim.garbage_collection import deferred_collection
from tests.sim.group_world import GroupWorld
from tests.sim.scenario import Eventful

__all__ = ["Outcome", "Player", "Report", "Totals"]

ScenarioT = TypeVar("ScenarioT", bound=Eventful)
WorldT = TypeVar("WorldT", bound=GroupWorld)

#: Called for each event, with its time in seconds and a description.
Report = Callable[[float, str], None]


class Totals(NamedTuple):
    """How many records were delivered, commits stored, and generations planned, in a run."""

    deliveries: int
    commits: int
    generations: int


@dataclass(frozen=True)
class Outcome:
    """
    The outcome of a scenario.

    ``error`` is the text of the error that was found, with its ``traceback``; both are "" if there was none.
    """

    scenario: Eventful
    steps: int
    seconds: float
    cpu_s: float
    deliveries: int
    commits: int
    generations: int
    error: str
    traceback: str


class Player(Generic[ScenarioT, WorldT]):
    """
    Plays scenarios of one kind of groups. Call it with a scenario.

    Args:
        make_world: Creates the group of a scenario, before its first event.
        drive: Plays all events of a scenario, and reports each; what it raises is the error of the outcome.
        count: Counts what the group has done, after the run.
    """

    def __init__(
        self,
        make_world: Callable[[ScenarioT], WorldT],
        drive: Callable[[WorldT, ScenarioT, Report], None],
        count: Callable[[WorldT], Totals],
    ) -> None:
        self._make_world = make_world
        self._drive = drive
        self._count = count

    def __call__(
        self,
        scenario: ScenarioT,
        report: Report = lambda at_s, done: None,
        observe: Callable[[WorldT], None] = lambda world: None,
    ) -> Outcome:
        """
        Play a scenario from its beginning to its end, kill its processes, and return its outcome.

        Args:
            scenario: The scenario.
            report: Called for each event, with its time in seconds and a description.
            observe: Called with the world before the first event.
        """
        with deferred_collection():
            return self._outcome(scenario, report, observe)

    def _outcome(self, scenario: ScenarioT, report: Report, observe: Callable[[WorldT], None]) -> Outcome:
        # A function of its own, so that the world is garbage when the collection of the run comes.
        world = self._make_world(scenario)
        observe(world)
        started_s = time.process_time()
        error = trace = ""
        try:
            self._drive(world, scenario, report)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            trace = "".join(traceback.format_exception(raised))
        for consumer in world.consumers:
            consumer.kill()
        cpu_s = time.process_time() - started_s
        return Outcome(scenario, world.timeline.steps, world.elapsed_s, cpu_s, *self._count(world), error, trace)
