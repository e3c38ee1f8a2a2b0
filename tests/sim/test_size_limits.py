"""
Groups near ZooKeeper's size limits, on the fake ensemble, which has the same limits. Real servers would take minutes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kiel_groups.errors import ConfigError
from tests.fakes.fake_server import MOST_BYTES
from tests.sim.scenario import make_scenario
from tests.sim.world import World

pytestmark = [pytest.mark.sim, pytest.mark.slow]


@contextmanager
def group_of(members: int, topics: tuple[int, ...], topic_name: Callable[[int], str] = "t{}".format) -> Iterator[World]:
    """Provide a group without events, whose members all start at the same time."""
    calm = replace(
        make_scenario(1),
        members=members,
        topics=topics,
        is_static=False,
        store="zookeeper",
        most_operations=200,
        events=(),
    )
    world = World(calm, topic_name)
    gc.disable()
    try:
        yield world
    finally:
        gc.enable()
        for consumer in world.consumers:
            consumer.kill()


def long_name(number: int) -> str:
    """Return a topic name of the maximum length."""
    return f"{number:05d}".rjust(249, "x")


def test_a_thousand_members_at_once() -> None:
    """The leader needs only a few plans, and each member owns the partitions of its assignment."""
    with group_of(1_000, (200,)) as world:
        world.settle(60.0)
        assert len(world.history.generations) <= 5


def test_a_plan_near_the_size_limit() -> None:
    """Subscriptions and assignments of hundreds of KiB are published, claimed and released. No connection breaks."""
    with group_of(2, (1,) * 1_200, long_name) as world:
        first, second = world.consumers
        second.subscribe(world.topics)
        world.settle(60.0)
        second.leave()
        world.run_for(10.0)
        world.settle(60.0)
        assignments = world.ensemble.tree.children(world.layout.group_state)
        largest = max(len(world.ensemble.tree.znodes[world.layout.assignment(slot)].data) for slot in assignments)
        assert MOST_BYTES / 4 < largest < MOST_BYTES / 2
        assert first.metrics.total("zookeeper_suspensions") == 0


def test_a_subscription_beyond_the_size_limit() -> None:
    """The subscription is refused with an error that has its size, and is not sent to ZooKeeper."""
    with group_of(1, (1,) * 3, long_name) as world:
        (consumer,) = world.consumers
        world.settle(60.0)
        consumer.subscribe([*world.topics, *map(long_name, range(3, 2_000))])
        with pytest.raises(ConfigError, match=r"a subscription to 2000 topics takes \d+ KiB .* at most 960; have"):
            world.run_for(1.0)
