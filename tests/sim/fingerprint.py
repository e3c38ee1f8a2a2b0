"""Identify a run by all its writes and all randomness that it used: ``python -m tests.sim.fingerprint SEED …``."""

from __future__ import annotations

import hashlib
import logging
import sys
from random import Random

from kiel_groups.testing.fake_ensemble import Entry
from tests.sim.play import play
from tests.sim.scenario import Scenario, make_scenario
from tests.sim.world import World

__all__ = ["fingerprint"]


def fingerprint(scenario: Scenario) -> str:
    """Play a scenario, and return a text that differs if any write, random number or error of the run differs."""
    digest = hashlib.sha256()
    randomness: list[Random] = []

    def committed(entry: Entry) -> None:
        digest.update(f"{entry.zxid} {entry.session_id} {entry.error!r}".encode())
        for change in entry.changes:
            digest.update(f"{change.kind} {change.path} {change.znode}".encode())

    def observe(world: World) -> None:
        # Keep no reference to the world, so that it can be collected at the end of the scenario.
        world.ensemble.observers.append(committed)
        randomness.append(world.timeline.random)

    outcome = play(scenario, observe=observe)
    used = f"{outcome.steps} {outcome.seconds} {randomness[0].random()}"
    return f"{scenario.seed} {used} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        sys.stdout.write(f"{fingerprint(make_scenario(int(seed)))}\n")
