"""The outcome of a scenario, whatever coordinates its group."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tests.sim.group_world import GroupWorld
from tests.sim.scenario import Eventful

__all__ = ["Outcome", "Totals", "outcome_of"]


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


def outcome_of(scenario: Eventful, world: GroupWorld, run: Callable[[], None], total: Callable[[], Totals]) -> Outcome:
    """
    Run a scenario, kill its processes, and return its outcome.

    Args:
        scenario: The scenario.
        world: Its group, before the first event.
        run: Plays all events; what it raises is the error of the outcome.
        total: Counts after the run.
    """
    started_s = time.process_time()
    error = trace = ""
    try:
        run()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        trace = "".join(traceback.format_exception(raised))
    for consumer in world.consumers:
        consumer.kill()
    cpu_s = time.process_time() - started_s
    return Outcome(scenario, world.timeline.steps, world.elapsed_s, cpu_s, *total(), error, trace)
