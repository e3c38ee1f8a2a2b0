"""Play the scenarios of groups of consumers that ZooKeeper coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import kazoo.client

from kiel_groups.group.znodes import transactions
from tests.sim.operations import perform
from tests.sim.outcome import Player, Report, Totals
from tests.sim.scenario import Scenario
from tests.sim.world import World

__all__ = ["play"]

#: The time limit, in seconds, after the last fault, for every partition to be owned: a session may have to expire
#: first, and another member to lead and plan.
SETTLED_S = 60.0
#: The time limit, in seconds, for all members to leave.
LEAVING_S = 40.0


def _drive(world: World, scenario: Scenario, report: Report) -> None:
    with _small_transactions(scenario.most_operations), _known_paths():
        _play_events(world, scenario, report)


def _play_events(world: World, scenario: Scenario, report: Report) -> None:
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


def _count(world: World) -> Totals:
    return Totals(world.history.deliveries, world.history.commits, len(world.history.generations))


play = Player(World, _drive, _count)
