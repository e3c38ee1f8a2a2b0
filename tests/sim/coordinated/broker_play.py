"""Play the scenarios of a broker-coordinated group."""

from __future__ import annotations

from tests.sim.coordinated.broker_operations import perform
from tests.sim.coordinated.broker_scenario import BrokerScenario
from tests.sim.coordinated.broker_world import BrokerWorld
from tests.sim.outcome import Player, Report, Totals

__all__ = ["play_brokers"]

#: The time limits, in seconds, after the last fault: for every partition to be owned, for all records to be processed
#: and committed, and for all members to leave; the time for which nothing may happen after that.
SETTLED_S, FINISHED_S, LEAVING_S, ENDED_S = 90.0, 60.0, 40.0, 12.0


def _drive(world: BrokerWorld, scenario: BrokerScenario, report: Report) -> None:
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


def _count(world: BrokerWorld) -> Totals:
    return Totals(world.checker.deliveries, world.checker.commits, 0)


play_brokers = Player(BrokerWorld, _drive, _count)
