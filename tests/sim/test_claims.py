"""What a claim does before anything is handed out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.coordination import machine
from kiel_groups.group.layout import topic_path
from kiel_groups.testing import SimulatedMachine
from tests.sim.story import make_story
from tests.sim.world import World

pytestmark = pytest.mark.sim


def test_a_claim_of_a_topic_that_was_created_again_starts_at_its_beginning() -> None:
    """Nobody was there when it happened: the offsets are older than the topic, and mean nothing in it."""
    world = World(replace(make_story(1), members=1, topics=(3,), reset="latest", is_static=False, events=()))
    with machine.replaced(SimulatedMachine(world.timeline)):
        world.settle(60.0)
        world.consumers[-1].leave()
        world.run_for(10.0)
        world.operator.delete(topic_path("t0"))
        world.operator.create(topic_path("t0"), world.topic_data("t0"))
        world.join(world.topics)
        world.settle(60.0)
        assert [world.ledger.stored(partition) for partition in world.partitions()] == [0, 0, 0]
    for consumer in world.consumers:
        consumer.kill()


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
