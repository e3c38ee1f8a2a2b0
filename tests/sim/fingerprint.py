"""Identify a run by all that was written, and all randomness that was used: ``python -m … SEED …``."""

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
    """Play a scenario, and return a text that differs between two runs that differ anywhere."""
    digest = hashlib.sha256()
    randomness: list[Random] = []

    def committed(entry: Entry) -> None:
        digest.update(f"{entry.zxid} {entry.session_id} {entry.error!r}".encode())
        for change in entry.changes:
            digest.update(f"{change.kind} {change.path} {change.znode}".encode())

    def observe(world: World) -> None:
        # Nothing refers to the world itself, which is collected when the scenario is over.
        world.ensemble.observers.append(committed)
        randomness.append(world.timeline.random)

    outcome = play(scenario, observe=observe)
    used = f"{outcome.steps} {outcome.seconds} {randomness[0].random()}"
    return f"{scenario.seed} {used} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        sys.stdout.write(f"{fingerprint(make_scenario(int(seed)))}\n")
