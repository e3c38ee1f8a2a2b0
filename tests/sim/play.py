"""Play a scenario from its beginning to its end, and report its outcome."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import kazoo.client

from kiel_groups.group.znodes import transactions
from tests.sim.garbage_collection import deferred_collection
from tests.sim.operations import perform
from tests.sim.scenario import Eventful, Scenario
from tests.sim.world import World

__all__ = ["Outcome", "play"]

#: The time limit, in seconds, after the last fault, for every partition to be owned: a session may have to expire
#: first, and another member to lead and plan.
SETTLED_S = 60.0
#: The time limit, in seconds, for all members to leave.
LEAVING_S = 40.0


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


def play(
    scenario: Scenario,
    report: Callable[[float, str], None] = lambda at_s, done: None,
    observe: Callable[[World], None] = lambda world: None,
) -> Outcome:
    """
    Play a scenario.

    Args:
        scenario: The scenario.
        report: Called for each event, with its time in seconds and a description.
        observe: Called with the world before the first event.
    """
    with deferred_collection():
        return _outcome(scenario, report, observe)


def _outcome(scenario: Scenario, report: Callable[[float, str], None], observe: Callable[[World], None]) -> Outcome:
    started_s = time.process_time()
    world = World(scenario)
    observe(world)
    error = trace = ""
    with _small_transactions(scenario.most_operations), _known_paths():
        try:
            _play(world, scenario, report)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
            trace = "".join(traceback.format_exception(raised))
    for consumer in world.consumers:
        consumer.kill()
    return Outcome(
        scenario,
        world.timeline.steps,
        world.elapsed_s,
        time.process_time() - started_s,
        world.history.deliveries,
        world.history.commits,
        len(world.history.generations),
        error,
        trace,
    )


def _play(world: World, scenario: Scenario, report: Callable[[float, str], None]) -> None:
    for event in scenario.events:
        world.run_for(max(0.0, event.at_s - world.elapsed_s))
        report(event.at_s, perform(world, event))
    if not any(consumer.is_running for consumer in world.consumers):
        world.join(world.topics)
    world.heal()
    report(world.elapsed_s, "all faults end")
    world.settle(SETTLED_S)
    owned = world.partitions()
    report(world.elapsed_s, "all members leave")
    world.close(LEAVING_S)
    world.checker.end(owned)


@contextmanager
def _small_transactions(most_operations: int) -> Iterator[None]:
    """Limit the operations of a transaction, so that small groups need several transactions, as large groups do."""
    before = transactions.MOST_OPERATIONS
    transactions.MOST_OPERATIONS = most_operations
    try:
        yield
    finally:
        transactions.MOST_OPERATIONS = before


@contextmanager
def _known_paths() -> Iterator[None]:
    """Cache kazoo's computation of a path, which kazoo repeats for each request."""
    before = kazoo.client._prefix_root
    kazoo.client._prefix_root = lru_cache(maxsize=None)(before)
    try:
        yield
    finally:
        kazoo.client._prefix_root = before
