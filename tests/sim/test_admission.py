"""Who does not get into a group."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A member by itself, at rest."""
    with at_rest(members=1, topics=(2,), reset="earliest") as made:
        yield made


def members(world: World) -> list[str]:
    return sorted(world.ensemble.truth.children(world.layout.members))


def test_nobody_joins_beside_a_consumer_of_java(world: World) -> None:
    """Both would read everything; as soon as that one is gone, joining succeeds."""
    before, foreign = members(world), world.layout.consumer_id("g_java-1-1")
    world.operator.create(foreign, b"{}", makepath=True)
    world.ledger.forbids_joining = True
    world.join(world.topics)
    world.run_for(10.0)
    assert members(world) == before
    world.operator.delete(foreign)
    world.settle(60.0)
    assert len(members(world)) == 2


def test_nobody_joins_with_other_settings(world: World) -> None:
    """Who would start elsewhere than the others does not start at all."""
    before = members(world)
    settings = json.loads(world.ensemble.truth.znodes[world.layout.config].data)
    world.operator.set(world.layout.config, json.dumps(settings | {"auto_offset_reset": "latest"}).encode())
    world.ledger.forbids_joining = True
    world.join(world.topics)
    world.run_for(10.0)
    assert members(world) == before
