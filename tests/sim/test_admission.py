"""Members that may not join a group, or not yet."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one."""
    with at_rest(members=1, topics=(2,), reset="earliest") as made:
        yield made


def members(world: World) -> list[str]:
    """Return the names of the member znodes."""
    return sorted(world.ensemble.tree.children(world.layout.members))


def test_a_member_does_not_join_beside_a_java_consumer(world: World) -> None:
    """
    A member does not join while a Java consumer is in the group, because each would read all partitions. The member
    joins as soon as the Java consumer is gone.
    """
    before, foreign = members(world), world.layout.consumer_id("g_java-1-1")
    world.operator.create(foreign, b"{}", makepath=True)
    world.history.forbids_joining = True
    world.join(world.topics)
    world.run_for(10.0)
    assert members(world) == before
    world.operator.delete(foreign)
    world.settle(60.0)
    assert len(members(world)) == 2


def test_a_member_with_other_settings_does_not_join(world: World) -> None:
    """
    A member with another reset policy does not join, because it would start at other offsets than the rest of the
    group.
    """
    before = members(world)
    settings = json.loads(world.ensemble.tree.znodes[world.layout.config].data)
    world.operator.set(world.layout.config, json.dumps(settings | {"auto_offset_reset": "latest"}).encode())
    world.history.forbids_joining = True
    world.join(world.topics)
    world.run_for(10.0)
    assert members(world) == before
