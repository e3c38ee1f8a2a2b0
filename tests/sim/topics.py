"""Steps of tests that create topics, delete them and create them again, and that read their stored offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import Operation, Put
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from tests.sim.world import World

__all__ = ["create_topic", "recreate", "recreate_within_a_write", "no_broker_knows", "stored_offsets"]


def create_topic(world: World, topic: str, partitions: int) -> None:
    """Create a further topic, to which no consumer subscribes yet."""
    world.topics[topic] = partitions
    world.operator.create(topic_path(topic), world.topic_data(topic))


def recreate(world: World) -> None:
    """Delete the topic ``t0`` and create it again. Brokers know of the new topic at once."""
    world.operator.delete(topic_path("t0"))
    world.operator.create(topic_path("t0"), world.topic_data("t0"))


def recreate_within_a_write(
    world: World, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None
) -> list[int]:
    """
    Recreate ``t0`` right before the next write of an offset. Brokers know of the new topic six seconds later.

    Args:
        world: The group.
        monkeypatch: The test's fixture.
        then: Called after the topic is created again and before the write.

    Returns:
        A list that is empty until then, and then contains the czxid of the old topic.
    """
    transact, recreated = Session.transact, list[int]()

    async def recreating(session: Session, operations: Iterable[Operation]) -> Any:
        listed = list(operations)
        if not recreated and any(isinstance(each, Put) and "/offsets/" in each.path for each in listed):
            before = world.ensemble.tree.znodes[topic_path("t0")].czxid
            recreated.append(before)
            world.recreate_topic("t0", 0.0, 6.0)
            while world.ensemble.tree.znodes[topic_path("t0")].czxid == before:  # noqa: ASYNC110 -- simulated time
                await asyncio.sleep(0.0005)
            then()
        return await transact(session, listed)

    monkeypatch.setattr(Session, "transact", recreating)
    return recreated


def no_broker_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all partitions without a leader, as for a topic that brokers do not know of yet."""
    monkeypatch.setattr(World, "has_leader", lambda world, partition: False)


def stored_offsets(world: World, topic: str = "t0") -> list[int]:
    """Return the stored offsets of a topic's partitions in ascending order."""
    znodes = world.ensemble.tree.znodes
    paths = [world.layout.offset(TopicPartition(topic, number)) for number in range(world.topics[topic])]
    return sorted(int(znodes[path].data) for path in paths)
