"""Play a scenario of a group of workers from its beginning to its end, and report its outcome."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.garbage_collection import deferred_collection
from tests.sim.outcome import Outcome, Totals, outcome_of
from tests.sim.worker_groups.worker_operations import perform
from tests.sim.worker_groups.worker_scenario import WorkerScenario
from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["play_workers"]

#: The time limit, in seconds beside the rebalance timeout and a check of all znodes, after the last fault, for all work
#: to run: sessions may have to expire first, and failed work waits before its restart.
SETTLED_S = 60.0
#: The time, in seconds, in which every task delivers, also if the group has just assigned the work again.
PROGRESS_S = 20.0
#: The time limit, in seconds, for all workers to leave, and the time for which nothing may happen after that.
LEAVING_S, ENDED_S = 40.0, 12.0


def play_workers(
    scenario: WorkerScenario,
    report: Callable[[float, str], None] = lambda at_s, done: None,
    observe: Callable[[WorkerWorld], None] = lambda world: None,
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


def _outcome(
    scenario: WorkerScenario, report: Callable[[float, str], None], observe: Callable[[WorkerWorld], None]
) -> Outcome:
    # A function of its own, so that the world is garbage when the collection of the run comes.
    world = WorkerWorld(scenario)
    observe(world)
    checker = world.checker
    return outcome_of(
        scenario,
        world,
        lambda: _play(world, scenario, report),
        lambda: Totals(checker.deliveries, checker.stores, checker.changes),
    )


def _play(world: WorkerWorld, scenario: WorkerScenario, report: Callable[[float, str], None]) -> None:
    for event in scenario.events:
        world.run_for(max(0.0, event.at_s - world.elapsed_s))
        report(event.at_s, perform(world, event))
    world.heal()
    if not world.running:
        world.join()
    report(world.elapsed_s, "all faults end")
    world.create_last()
    longest_check_s = 1.34 * scenario.reconcile_interval_ms / 1000
    world.settle(SETTLED_S + scenario.rebalance_timeout_ms / 1000 + longest_check_s)
    before = world.checker.progress()
    world.wait(lambda: world.checker.stuck(before), PROGRESS_S)
    report(world.elapsed_s, "all workers leave")
    for worker in world.running:
        worker.leave()
    world.wait(world.checker.unclosed, LEAVING_S)
    world.run_for(ENDED_S)
