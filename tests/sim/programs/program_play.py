"""Play a scenario of a group of programs from its beginning to its end, and report its outcome."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.garbage_collection import deferred_collection
from tests.sim.outcome import Outcome, Totals, outcome_of
from tests.sim.programs.program_operations import perform
from tests.sim.programs.program_scenario import ProgramScenario
from tests.sim.programs.program_world import ProgramWorld

__all__ = ["play_programs"]

#: The time limit, in seconds beside the rebalance timeout and a check of all znodes, after the last fault, for all
#: members to be stable: sessions may have to expire first, and members that were refused join again.
SETTLED_S = 60.0
#: The time limit, in seconds, for all members to leave, and the time for which nothing may happen after that.
LEAVING_S, ENDED_S = 40.0, 12.0


def play_programs(
    scenario: ProgramScenario,
    report: Callable[[float, str], None] = lambda at_s, done: None,
    observe: Callable[[ProgramWorld], None] = lambda world: None,
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
    scenario: ProgramScenario, report: Callable[[float, str], None], observe: Callable[[ProgramWorld], None]
) -> Outcome:
    # A function of its own, so that the world is garbage when the collection of the run comes.
    world = ProgramWorld(scenario)
    observe(world)
    checker = world.checker
    return outcome_of(
        scenario, world, lambda: _play(world, scenario, report), lambda: Totals(checker.completed, 0, checker.published)
    )


def _play(world: ProgramWorld, scenario: ProgramScenario, report: Callable[[float, str], None]) -> None:
    for event in scenario.events:
        world.run_for(max(0.0, event.at_s - world.elapsed_s))
        report(event.at_s, perform(world, event))
    world.heal()
    if not world.running:
        world.join()
    report(world.elapsed_s, "all faults end")
    longest_check_s = 1.34 * scenario.reconcile_interval_ms / 1000
    world.settle(SETTLED_S + scenario.rebalance_timeout_ms / 1000 + longest_check_s)
    report(world.elapsed_s, "all members leave")
    for program in world.running:
        program.leave()
    world.wait(world.checker.unclosed, LEAVING_S)
    world.run_for(ENDED_S)
