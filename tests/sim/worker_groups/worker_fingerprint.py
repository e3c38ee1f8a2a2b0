"""Identify a run of a group of workers by its writes and randomness: ``python -m …worker_fingerprint SEED …``."""

from __future__ import annotations

import hashlib
import logging
import sys
from random import Random

from kiel_groups.testing.fake_ensemble import Entry
from tests.sim.worker_groups.worker_play import play_workers
from tests.sim.worker_groups.worker_scenario import WorkerScenario, make_worker_scenario
from tests.sim.worker_groups.worker_world import WorkerWorld

__all__ = ["worker_fingerprint"]


def worker_fingerprint(scenario: WorkerScenario) -> str:
    """Play a scenario, and return a text that differs if any write, random number or error of the run differs."""
    digest = hashlib.sha256()
    randomness: list[Random] = []

    def committed(entry: Entry) -> None:
        for change in entry.changes:
            digest.update(f"{entry.zxid} {change.path} {change.kind.name} {change.znode.data!r}".encode())

    def observe(world: WorkerWorld) -> None:
        # Keep no reference to the world, so that it can be collected at the end of the scenario.
        world.ensemble.observers.append(committed)
        randomness.append(world.timeline.random)

    outcome = play_workers(scenario, observe=observe)
    used = f"{outcome.steps} {outcome.seconds} {randomness[0].random()}"
    return f"{scenario.seed} {used} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        sys.stdout.write(f"{worker_fingerprint(make_worker_scenario(int(seed)))}\n")
