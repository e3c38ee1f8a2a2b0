"""Play the scenarios of a group of workers."""

from __future__ import annotations

from kiel_groups.workers.runners import sink_task_runner
from tests.sim.outcome import Player, Report, Totals
from tests.sim.worker_groups.worker_operations import perform
from tests.sim.worker_groups.worker_scenario import WorkerScenario
from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["play_workers"]

#: The time limit, in seconds beside the rebalance timeout and a check of all znodes, after the last fault, for all work
#: to run: sessions may have to expire first, and failed work waits before its restart.
SETTLED_S = 60.0
#: The time, in seconds, in which every task delivers, also if the group has just assigned the work again.
PROGRESS_S = 20.0
#: The time limit, in seconds, for all sinks to commit all records: a pause of a task after an error of its brokers may
#: last for 15, a call or a commit of a slow sink for 25, and the session of a killed consumer has to end.
COMMITTED_S = 60.0
#: The time limit, in seconds, for all workers to leave, and the time for which nothing may happen after that.
LEAVING_S, ENDED_S = 40.0, 12.0


def _drive(world: WorkerWorld, scenario: WorkerScenario, report: Report) -> None:
    before_s = sink_task_runner._COMMIT_INTERVAL_S
    sink_task_runner._COMMIT_INTERVAL_S = scenario.commit_s
    try:
        _play_events(world, scenario, report)
    finally:
        sink_task_runner._COMMIT_INTERVAL_S = before_s


def _play_events(world: WorkerWorld, scenario: WorkerScenario, report: Report) -> None:
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
    world.cluster.is_growing = False
    world.wait(world.sinks.uncommitted, COMMITTED_S)
    report(world.elapsed_s, "all workers leave")
    for worker in world.running:
        worker.leave()
    world.wait(world.checker.unclosed, LEAVING_S)
    world.run_for(ENDED_S)
    world.wait(world.sinks.unclosed, 0.0)


def _count(world: WorkerWorld) -> Totals:
    checker, sinks = world.checker, world.sinks
    return Totals(checker.deliveries + sinks.puts, checker.stores + sinks.commits, checker.changes)


play_workers = Player(WorkerWorld, _drive, _count)
