"""A member that is asked to leave while it joins anew, at each step of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kiel_groups.coordination import machine
from kiel_groups.testing import SimulatedMachine
from tests.sim.story import make_story
from tests.sim.world import World

pytestmark = pytest.mark.sim


@contextmanager
def group_of_two() -> Iterator[World]:
    """At rest."""
    world = World(replace(make_story(1), members=2, topics=(2,), is_static=False, events=()))
    with machine.replaced(SimulatedMachine(world.timeline)):
        world.settle(60.0)
        yield world
    for consumer in world.consumers:
        consumer.kill()


@pytest.mark.parametrize("after_ms", range(10))
def test_leaving_while_joining_anew(after_ms: int) -> None:
    """Its event loop is blocked for a while, and finds both then: the word to leave, and the answer it waited for."""
    with group_of_two() as world:
        consumer = world.consumers[0]
        world.operator.delete_async(world.layout.member(consumer.member.member_id or ""))
        world.timeline.run_until(lambda: len(consumer.process.connections) > 1)
        world.run_for(after_ms / 1000)
        consumer.process.block(0.1)
        consumer.leave()
        world.close(40.0)
