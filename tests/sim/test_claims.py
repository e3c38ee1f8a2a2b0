"""What a claim does before anything is handed out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.coordination import machine
from kiel_groups.testing import SimulatedMachine
from tests.sim.story import make_story
from tests.sim.world import World

pytestmark = pytest.mark.sim


def test_a_claim_gives_its_offsets_new_versions() -> None:
    """Whoever owned them before expects the old ones: what he may still write is refused, whatever became of him."""
    world = World(replace(make_story(1), members=1, topics=(3,), is_static=False, events=()))
    with machine.replaced(SimulatedMachine(world.timeline)):
        for claims in (1, 2):
            world.settle(60.0)
            versions = [world.ensemble.truth.znodes[world.layout.offset(p)].version for p in world.partitions()]
            assert versions == [claims] * 3
            world.consumers[-1].leave()
            world.run_for(10.0)
            world.join(world.topics)
    for consumer in world.consumers:
        consumer.kill()
