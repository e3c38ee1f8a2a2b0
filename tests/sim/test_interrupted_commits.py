"""Commits whose caller is cancelled, by Ctrl-C or by closing the consumer, and later commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sim.commits import commit, interrupted_commit, process_some, uncommitted
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two."""
    with at_rest(members=2) as made:
        yield made


def test_a_release_after_an_interrupted_commit_stores_the_newest_finished_offset(world: World) -> None:
    """
    After an interrupted commit, the member recognizes the commit as its own: no record is repeated, and no write of
    another writer is counted.
    """
    consumer = world.consumers[0]
    process_some(world, consumer)
    committing = interrupted_commit(world, consumer)
    process_some(world, consumer)
    (partition,) = uncommitted(world, consumer)
    world.close(60.0)
    assert committing.cancelled()
    assert world.history.stored(partition) == world.history.processed(partition)
    assert consumer.metrics.total("commits_superseded") == 0


def test_an_interrupted_commit_ends_with_its_session(world: World) -> None:
    """An interrupted commit delays neither the end of its session nor the next session, and its error is dropped."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    consumer.process.stall()
    committing: asyncio.Task[object] = consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.1)
    consumer.process.call(committing.cancel)
    world.run_for(20.0)
    consumer.process.resume()
    world.settle(60.0)
    assert committing.cancelled()
    assert not world.timeline.failures


def test_a_commit_whose_answer_is_lost_is_reported_as_stored(world: World) -> None:
    """
    If ZooKeeper has executed a commit and the answer is lost, the member finds this out and reports the partition as
    stored.
    """
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = uncommitted(world, consumer)
    consumer.process.lose("reply")
    assert commit(world, consumer) == {partition}
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_commit_of_the_same_offset_after_an_interrupted_one(world: World) -> None:
    """
    ZooKeeper refuses a commit of the same offset after an interrupted commit. The member finds its own offset, and
    reports the partition as stored.
    """
    consumer = world.consumers[0]
    process_some(world, consumer)
    partitions = uncommitted(world, consumer)
    interrupted_commit(world, consumer)
    assert commit(world, consumer) == partitions
    assert len(partitions) == 1
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_commit_of_a_larger_offset_after_an_interrupted_one(world: World) -> None:
    """A commit after an interrupted commit stores its larger offset at once. No third commit is needed."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    interrupted_commit(world, consumer)
    process_some(world, consumer)
    partitions = uncommitted(world, consumer)
    assert commit(world, consumer) == partitions
    assert len(partitions) == 1
    assert uncommitted(world, consumer) == set()
    assert consumer.metrics.total("commits_superseded") == 0


def test_an_equal_offset_of_another_writer_is_a_reset(world: World) -> None:
    """If no commit was interrupted, a new version is another writer's, even if the value is equal."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = uncommitted(world, consumer)
    offset = world.history.processed(partition)
    world.operator.set_async(world.layout.offset(partition), b"%d" % offset)
    world.timeline.run_until(lambda: world.history.stored(partition) == offset)
    assert commit(world, consumer) == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1
