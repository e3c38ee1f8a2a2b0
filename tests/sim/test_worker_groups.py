"""Simulated groups of workers: no scenario breaks an invariant, and the checker notices broken workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.workers.execution.work_supervisor import WorkSupervisor
from tests.sim.invariants.invariant import Violation
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
