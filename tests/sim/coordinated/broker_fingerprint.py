"""Identify a run of a broker group by all its commits and randomness: ``python -m …broker_fingerprint SEED …``."""

from __future__ import annotations

import hashlib
import logging
import sys
from random import Random

from kiel_groups.testing.fake_coordinator import AcceptedCommit
from tests.sim.coordinated.broker_play import play_brokers
from tests.sim.coordinated.broker_scenario import BrokerScenario, make_broker_scenario
from tests.sim.coordinated.broker_world import BrokerWorld

__all__ = ["broker_fingerprint"]


def broker_fingerprint(scenario: BrokerScenario) -> str:
    """Play a scenario, and return a text that differs if any commit, random number or error of the run differs."""
    digest = hashlib.sha256()
    randomness: list[Random] = []

    def committed(commit: AcceptedCommit) -> None:
        token = (commit.request.generation, commit.request.member_id)
        digest.update(f"{token} {sorted(commit.request.offsets.items())}".encode())

    def observe(world: BrokerWorld) -> None:
        # Keep no reference to the world, so that it can be collected at the end of the scenario.
        world.coordinator.observers.append(committed)
        randomness.append(world.timeline.random)

    outcome = play_brokers(scenario, observe=observe)
    used = f"{outcome.steps} {outcome.seconds} {randomness[0].random()}"
    return f"{scenario.seed} {used} {digest.hexdigest()} {outcome.error}"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        sys.stdout.write(f"{broker_fingerprint(make_broker_scenario(int(seed)))}\n")
