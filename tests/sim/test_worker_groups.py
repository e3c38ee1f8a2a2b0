"""Simulated groups of workers: no scenario breaks an invariant, and the checker notices broken workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from kiel_groups.workers.execution.work_supervisor import WorkSupervisor
from tests.sim.conftest import BASE
from tests.sim.invariants.invariant import Violation
from tests.sim.worker_groups.worker_fingerprint import worker_fingerprint
from tests.sim.worker_groups.worker_scenario import FAULTS, make_worker_scenario
from tests.sim.worker_groups.worker_world import WorkerWorld, workers_at_rest

pytestmark = pytest.mark.sim

PIECE = 100
#: The number of pieces: a twentieth of the seeds that groups of consumers on ZooKeeper get.
PIECES = -(-int(os.environ.get("SIM_SEEDS", "5000")) // (20 * PIECE))


@pytest.fixture
def world() -> Iterator[WorkerWorld]:
    """Provide a settled group of two workers and one connector."""
    with workers_at_rest() as made:
        yield made


# Seeds


@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_seeds(piece: int, base: int, record_property: Callable[[str, object], None]) -> None:
    """No seed breaks an invariant. The summary counts the seeds. A failure shows how to repeat it."""
    seeds = ("--seeds", str(PIECE), "--seed-base", str(base + piece * PIECE))
    command = [sys.executable, "-m", "tests.sim", "--groups", "workers", "--jobs", "1", *seeds]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    again = f"the same seeds again: {BASE}={base} scripts/test 'tests/sim/test_worker_groups.py::test_seeds[{piece}]'"
    assert played.returncode == 0, f"{played.stdout}{played.stderr}\n{again}"
    record_property("simulated_seeds", PIECE)
    record_property("simulated_from", base)


def test_scenarios_have_all_faults_and_settings() -> None:
    """Some hundred scenarios contain every operation, one to five workers, and both allocators."""
    scenarios = [make_worker_scenario(seed) for seed in range(200)]
    assert min(scenario.faults for scenario in scenarios) >= 4
    assert {scenario.members for scenario in scenarios} == {1, 2, 3, 4, 5}
    assert {scenario.allocator for scenario in scenarios} == {"round_robin", "sticky"}
    assert {event.operation for scenario in scenarios for event in scenario.events} >= set(FAULTS)


def test_a_seed_makes_the_same_run_in_every_process() -> None:
    """No run depends on the order of sets, on addresses, or on the name or id of a process."""
    seeds = [str(seed) for seed in range(7040, 7044)]
    command = [sys.executable, "-m", "tests.sim.worker_groups.worker_fingerprint"]

    def fingerprints(asked: list[str], hash_seed: int) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
        played = subprocess.run([*command, *asked], capture_output=True, text=True, check=True, env=environment)
        return played.stdout.splitlines()

    forward, backward = fingerprints(seeds, 1), fingerprints(seeds[::-1], 2)
    assert len(forward) == len(seeds)
    assert forward == backward[::-1]
    assert worker_fingerprint(make_worker_scenario(7040)) == worker_fingerprint(make_worker_scenario(7040))


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
    config = world.config(2)
    worker.ask(lambda: worker.requests.put_config("c1", config))
    world.run_for(3.0)
    with pytest.raises(Violation, match="c1"):
        world.settle(10.0)
