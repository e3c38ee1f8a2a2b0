"""Play a scenario from its beginning to its end, and report its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import kazoo.client

from kiel_groups.group.znodes import transactions
from tests.sim.garbage_collection import deferred_collection
from tests.sim.operations import perform
from tests.sim.outcome import Outcome, Totals, outcome_of
from tests.sim.scenario import Scenario
from tests.sim.world import World

__all__ = ["play"]

#: The time limit, in seconds, after the last fault, for every partition to be owned: a session may have to expire
#: first, and another member to lead and plan.
SETTLED_S = 60.0
#: The time limit, in seconds, for all members to leave.
LEAVING_S = 40.0


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
    # A function of its own, so that the world is garbage when the collection of the run comes.
    world = World(scenario)
    observe(world)
    history = world.history
    with _small_transactions(scenario.most_operations), _known_paths():
        return outcome_of(
            scenario,
            world,
            lambda: _play(world, scenario, report),
            lambda: Totals(history.deliveries, history.commits, len(history.generations)),
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
