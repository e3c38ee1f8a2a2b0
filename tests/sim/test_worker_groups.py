"""Simulated groups of workers: no scenario breaks an invariant, and the checker notices broken workers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from kiel_groups.workers.execution.work_supervisor import WorkSupervisor
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from tests.sim.invariants.invariant import Violation
from tests.sim.worker_groups import recording_sinks
from tests.sim.worker_groups.sink_checker import SinkCalls
from tests.sim.worker_groups.worker_scenario import FAULTS, make_worker_scenario
from tests.sim.worker_groups.worker_world import WorkerWorld, workers_at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[WorkerWorld]:
    """Provide a settled group of two workers and one connector."""
    with workers_at_rest() as made:
        yield made


# Scenarios


def test_scenarios_have_all_faults_and_settings() -> None:
    """Some hundred scenarios contain every operation, one to five workers, and both allocators."""
    scenarios = [make_worker_scenario(seed) for seed in range(200)]
    assert min(scenario.faults for scenario in scenarios) >= 4
    assert {scenario.members for scenario in scenarios} == {1, 2, 3, 4, 5}
    assert {scenario.allocator for scenario in scenarios} == {"round_robin", "sticky"}
    assert {event.operation for scenario in scenarios for event in scenario.events} >= set(FAULTS)


# The checker


def test_the_checker_notices_a_delivery_without_a_claim(world: WorkerWorld) -> None:
    """A worker whose session has expired may deliver nothing of what another worker owns."""
    run = world.checker.runs["c1-0"][0]
    run.worker.process.stall()
    world.run_for(20.0)
    with pytest.raises(Violation, match="with token"):
        run.worker.process.call(world.checker.delivering, "c1-0", run.token, 1)


def test_the_checker_notices_work_that_does_not_run(world: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors that ignore a changed configuration leave work with old settings."""
    monkeypatch.setattr(WorkSupervisor, "update", lambda supervisor, spec, generation: None)
    worker = world.running[0]
    config = world.config("c1", 2)
    worker.ask(lambda: worker.requests.put_config("c1", config))
    world.run_for(3.0)
    with pytest.raises(Violation, match="c1"):
        world.settle(10.0)


# Sinks


@pytest.fixture
def sinks() -> Iterator[WorkerWorld]:
    """Provide a settled group of two workers and one sink."""
    with workers_at_rest(sinks=("c1",)) as made:
        yield made


def test_sinks_write_and_commit_all_records(sinks: WorkerWorld) -> None:
    """Two tasks share the partitions; nothing is left when the topic does not grow any more."""
    sinks.run_for(20.0)
    sinks.cluster.is_growing = False
    sinks.wait(sinks.sinks.uncommitted, 10.0)
    assert sinks.sinks.puts == sum(sinks.cluster.ends.values())
    assert len(set(sinks.cluster.groups["c1"].owners.values())) == 2


@pytest.mark.parametrize("method", ["_forget", "_still_owned"])
def test_the_checker_notices_sinks_that_keep_lost_partitions(
    sinks: WorkerWorld, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A runner may flush and commit nothing of partitions that its consumer has lost, also if a call was running."""
    broken = {"_forget": lambda runner, partitions: None, "_still_owned": lambda runner, values, owned: dict(values)}
    monkeypatch.setattr(SinkTaskRunner, method, broken[method])
    monkeypatch.setattr(recording_sinks, "SLOW_PORTION", 1.0)
    monkeypatch.setattr(recording_sinks, "SLOW_S", 1.5)
    sinks.cluster.slow_until_s = math.inf

    def lose_partitions() -> None:
        sinks.cluster.lose_partitions(sinks.timeline.random.random())
        sinks.timeline.after(0.7, lose_partitions)

    lose_partitions()
    with pytest.raises(Violation, match=r"which it has lost|it is at None"):
        sinks.run_for(70.0)


def test_the_checker_notices_sinks_that_commit_nothing(sinks: WorkerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """All records of the topic have to be committed in time."""

    async def nothing(runner: SinkTaskRunner) -> None:
        """Flush and commit nothing."""

    monkeypatch.setattr(SinkTaskRunner, "_flush_and_commit", nothing)
    sinks.run_for(10.0)
    with pytest.raises(Violation, match=r"c1 has committed \d+ of \d+ records"):
        sinks.wait(sinks.sinks.uncommitted, 20.0)


def test_the_checker_notices_commits_of_what_is_not_written(
    sinks: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that writes nothing may not be committed."""
    monkeypatch.setattr(SinkCalls, "wrote", lambda calls, kept: None)
    with pytest.raises(Violation, match="and has written what is before"):
        sinks.run_for(20.0)
