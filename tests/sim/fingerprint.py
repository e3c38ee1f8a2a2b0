"""Identify a run by all its writes and all randomness it used: ``python -m tests.sim.fingerprint GROUPS SEED …``."""

from __future__ import annotations

import hashlib
import logging
import sys
from random import Random

from tests.sim.group_world import GroupWorld
from tests.sim.report import GROUPS, Groups

__all__ = ["fingerprint"]


def fingerprint(groups: Groups, seed: int) -> str:
    """Play a seed, and return a text that differs if any write, random number or error of the run differs."""
    digest = hashlib.sha256()
    randomness: list[Random] = []

    def observe(world: GroupWorld) -> None:
        # Keep no reference to the world, so that it can be collected at the end of the scenario.
        world.observe_writes(lambda write: digest.update(write.encode()))
        randomness.append(world.timeline.random)

    outcome = groups.play(groups.make(seed), observe=observe)
    used = f"{outcome.steps} {outcome.seconds} {randomness[0].random()}"
    return f"{seed} {used} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[2:]:
        sys.stdout.write(f"{fingerprint(GROUPS[sys.argv[1]], int(seed))}\n")
