"""Thousands of new scenarios break no invariant, and a seed always produces the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from math import ceil

import pytest

from kiel_groups.config import BROKER_V0
from tests.sim.conftest import BASE
from tests.sim.fingerprint import fingerprint
from tests.sim.report import GROUPS
from tests.sim.scenario import BROKER_FAULTS, FAULTS, RECONCILE_FAULTS, Scenario, make_scenario, shorten

pytestmark = pytest.mark.sim

#: The number of seeds that a test plays; the last test of a kind of groups plays fewer.
PIECE = 100
#: How many of the seeds of SIM_SEEDS are played for each kind of groups: the share is smaller where a seed costs more,
#: or where consumers on ZooKeeper have played the same code.
SHARES = {"zookeeper": 1.0, "brokers": 0.2, "programs": 0.2, "workers": 0.1}
SEEDS = {groups: ceil(int(os.environ.get("SIM_SEEDS", "5000")) * share) for groups, share in SHARES.items()}
PIECES = [(groups, piece) for groups, seeds in SEEDS.items() for piece in range(ceil(seeds / PIECE))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("groups", "piece"), PIECES)
def test_seeds(groups: str, piece: int, base: int, record_property: Callable[[str, object], None]) -> None:
    """No seed breaks an invariant. The summary shows the number of seeds. A failure shows how to repeat it."""
    count = min(PIECE, SEEDS[groups] - piece * PIECE)
    seeds = ("--seeds", str(count), "--seed-base", str(base + piece * PIECE))
    command = [sys.executable, "-m", "tests.sim", "--groups", groups, "--jobs", "1", *seeds]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    again = f"the same seeds again: {BASE}={base} scripts/test 'tests/sim/test_sim.py::test_seeds[{groups}-{piece}]'"
    assert played.returncode == 0, f"{played.stdout}{played.stderr}\n{again}"
    record_property("simulated_seeds", count)
    record_property("simulated_from", base)


def test_every_kind_of_groups_is_played() -> None:
    """No kind of groups is missing among the seeds."""
    assert SHARES.keys() == GROUPS.keys()


def test_a_scenario_has_enough_events_faults_and_members() -> None:
    """Each scenario has at least 150 events, at least five of which are faults, and at least three members."""
    scenarios = [make_scenario(seed) for seed in range(200)]
    assert min(len(scenario.events) for scenario in scenarios) >= 150
    assert min(scenario.faults for scenario in scenarios) >= 5
    assert {scenario.members for scenario in scenarios} == {3, 4, 5, 6}
    assert min(sum(scenario.topics) for scenario in scenarios) >= 24
    assert {event.operation for scenario in scenarios for event in scenario.events} >= {
        *FAULTS,
        *BROKER_FAULTS,
        *RECONCILE_FAULTS,
    }
    assert 20 <= sum(scenario.store == BROKER_V0 for scenario in scenarios) <= 60


@pytest.mark.parametrize("groups", GROUPS)
def test_a_seed_makes_the_same_run_in_every_process(groups: str) -> None:
    """No run depends on the order of sets, on addresses, on the name or id of a process, or on the runs before it."""
    seeds = [str(seed) for seed in range(7020, 7022)]
    command = [sys.executable, "-m", "tests.sim.fingerprint", groups]

    def fingerprints(asked: list[str], hash_seed: int) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
        played = subprocess.run([*command, *asked], capture_output=True, text=True, check=True, env=environment)
        return played.stdout.splitlines()

    forward, backward = fingerprints(seeds, 1), fingerprints(seeds[::-1], 2)
    assert len(set(forward)) == len(seeds)
    assert forward == backward[::-1]
    again = [fingerprint(GROUPS[groups], int(seeds[0])) for _ in range(2)]
    assert again == forward[:1] * 2


def test_a_scenario_is_shortened_to_the_events_that_it_needs() -> None:
    """A shortened scenario has only the two events that the failure needs."""
    scenario = make_scenario(3)
    needed = (scenario.events[20], scenario.events[97])

    def fails(shorter: Scenario) -> bool:
        return all(event in shorter.events for event in needed)

    assert shorten(scenario, fails).events == needed
