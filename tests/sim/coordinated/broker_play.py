"""Play a scenario of a broker-coordinated group from its beginning to its end, and report its outcome."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.coordinated.broker_operations import perform
from tests.sim.coordinated.broker_scenario import BrokerScenario
from tests.sim.coordinated.broker_world import BrokerWorld
from tests.sim.garbage_collection import deferred_collection
from tests.sim.outcome import Outcome, Totals, outcome_of

__all__ = ["play_brokers"]

#: The time limits, in seconds, after the last fault: for every partition to be owned, for all records to be processed
#: and committed, and for all members to leave; the time for which nothing may happen after that.
SETTLED_S, FINISHED_S, LEAVING_S, ENDED_S = 90.0, 60.0, 40.0, 12.0


def play_brokers(
    scenario: BrokerScenario,
    report: Callable[[float, str], None] = lambda at_s, done: None,
    observe: Callable[[BrokerWorld], None] = lambda world: None,
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
    scenario: BrokerScenario, report: Callable[[float, str], None], observe: Callable[[BrokerWorld], None]
) -> Outcome:
    # A function of its own, so that the world is garbage when the collection of the run comes.
    world = BrokerWorld(scenario)
    observe(world)
    checker = world.checker
    return outcome_of(
        scenario, world, lambda: _play(world, scenario, report), lambda: Totals(checker.deliveries, checker.commits, 0)
    )


def _play(world: BrokerWorld, scenario: BrokerScenario, report: Callable[[float, str], None]) -> None:
    for event in scenario.events:
        world.run_for(max(0.0, event.at_s - world.elapsed_s))
        report(event.at_s, perform(world, event))
    if not world.running:
        world.join(world.topics)
    world.heal()
    report(world.elapsed_s, "all faults end")
    world.wait("unowned", SETTLED_S)
    for consumer in world.running:
        consumer.resume()
    world.wait("unfinished", FINISHED_S)
    partitions = world.partitions()
    report(world.elapsed_s, "all members leave")
    for consumer in world.running:
        consumer.leave()
    world.wait("unclosed", LEAVING_S)
    world.run_for(ENDED_S)
    world.checker.check_committed(partitions)
