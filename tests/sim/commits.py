"""Steps of tests with a simulated group: process records, commit, and interrupt a commit."""

from __future__ import annotations

import asyncio

from kiel_groups.model import TopicPartition
from tests.sim.consumer import Consumer
from tests.sim.world import World

__all__ = ["process_some", "process_all", "commit", "interrupted_commit", "uncommitted"]


def process_some(world: World, consumer: Consumer) -> None:
    """Have the application finish three records of one partition."""
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)


def process_all(world: World, consumer: Consumer) -> None:
    """Have the application finish three records of each partition. The consumer must own all partitions."""
    for _ in world.partitions():
        consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)


def commit(world: World, consumer: Consumer, limit_s: float = 5.0) -> frozenset[TopicPartition]:
    """Commit the finished records, and return the partitions whose offsets the member has stored."""
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(committing.done, limit_s)
    return committing.result()


def interrupted_commit(world: World, consumer: Consumer) -> asyncio.Task[object]:
    """Start a commit, and cancel its caller when ZooKeeper has executed the commit and the answer is in flight."""
    before = world.history.commits
    committing: asyncio.Task[object] = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(lambda: world.history.commits > before)
    consumer.process.call(committing.cancel)
    return committing


def uncommitted(world: World, consumer: Consumer) -> set[TopicPartition]:
    """Return the consumer's partitions with finished records that are not committed."""
    return {p for p in consumer.opened if world.history.processed(p) != world.history.stored(p)}
