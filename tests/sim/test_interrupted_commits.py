"""A commit that its caller is interrupted in: by a Ctrl-C, or because the consumer is closed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sim.consumer import Consumer
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of two at rest."""
    with at_rest(members=2) as made:
        yield made


def process_some(world: World, consumer: Consumer) -> None:
    """Have the application finish a few records of one partition."""
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)


def interrupted_commit(world: World, consumer: Consumer) -> asyncio.Task[object]:
    """A commit that has happened at ZooKeeper, and whose caller is cancelled before it hears of that."""
    before = world.ledger.commits
    commit: asyncio.Task[object] = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(lambda: world.ledger.commits > before)
    consumer.process.call(commit.cancel)
    return commit


def test_ones_own_commit_is_not_taken_for_somebody_elses(world: World) -> None:
    """What is finished after it is committed with the release: nothing comes again, and nobody is accused."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    commit = interrupted_commit(world, consumer)
    process_some(world, consumer)
    (partition,) = {p for p in consumer.flowing if world.ledger.processed(p) != world.ledger.stored(p)}
    world.close(60.0)
    assert commit.cancelled()
    assert world.ledger.stored(partition) == world.ledger.processed(partition)
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_commit_whose_caller_is_gone_ends_with_its_session(world: World) -> None:
    """It holds up neither the end of the session nor the next one; that it failed, nobody is told."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    consumer.process.stall()
    commit: asyncio.Task[object] = consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.1)
    consumer.process.call(commit.cancel)
    world.run_for(20.0)
    consumer.process.resume()
    world.settle(60.0)
    assert commit.cancelled()
    assert not world.timeline.failures


def test_a_commit_whose_answer_is_lost(world: World) -> None:
    """It has happened, and is told as such: what was finished since stays finished."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = {p for p in consumer.flowing if world.ledger.processed(p) != world.ledger.stored(p)}
    consumer.process.lose("reply")
    commit = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(commit.done)
    assert commit.result() == {partition}
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert consumer.metrics.total("commits_superseded") == 0
