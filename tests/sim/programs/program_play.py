"""Play the scenarios of a group of programs."""

from __future__ import annotations

from tests.sim.outcome import Player, Report, Totals
from tests.sim.programs.program_operations import perform
from tests.sim.programs.program_scenario import ProgramScenario
from tests.sim.programs.program_world import ProgramWorld

__all__ = ["play_programs"]

#: The time limit, in seconds beside the rebalance timeout and a check of all znodes, after the last fault, for all
#: members to be stable: sessions may have to expire first, and members that were refused join again.
SETTLED_S = 60.0
#: The time limit, in seconds, for all members to leave, and the time for which nothing may happen after that.
LEAVING_S, ENDED_S = 40.0, 12.0


def _drive(world: ProgramWorld, scenario: ProgramScenario, report: Report) -> None:
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


def _count(world: ProgramWorld) -> Totals:
    return Totals(world.checker.completed, 0, world.checker.published)


play_programs = Player(ProgramWorld, _drive, _count)
