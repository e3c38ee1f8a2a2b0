"""Offsets of other writers while the outcome of a commit is unknown. Versions and values identify the writer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.model import TopicPartition
from tests.sim.commits import commit, interrupted_commit, process_some, uncommitted
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two."""
    with at_rest(members=2) as made:
        yield made


def one_uncommitted(world: World) -> TopicPartition:
    """Have the application finish records of one partition, and return the partition."""
    process_some(world, world.consumers[0])
    (partition,) = uncommitted(world, world.consumers[0])
    return partition


def test_an_equal_offset_over_an_interrupted_commit_is_a_reset(world: World) -> None:
    """
    An equal offset over an interrupted commit is another writer's: the znode's version is one higher than after the
    commit.
    """
    consumer = world.consumers[0]
    partition = one_uncommitted(world)
    interrupted_commit(world, consumer)
    world.operator.set(world.layout.offset(partition), b"%d" % world.history.processed(partition))
    assert commit(world, consumer) == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1


def test_an_equal_offset_over_a_commit_whose_answer_is_lost_is_a_reset(world: World) -> None:
    """
    An equal offset over a commit whose answer is lost is another writer's: the znode's version is one higher than after
    the commit.
    """
    consumer = world.consumers[0]
    partition, before = one_uncommitted(world), world.history.commits
    consumer.process.lose("reply")
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(lambda: world.history.commits > before)
    world.operator.set_async(world.layout.offset(partition), b"%d" % world.history.processed(partition))
    world.timeline.run_until(committing.done)
    assert committing.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1


def test_another_offset_at_the_version_of_a_lost_commit_is_a_reset(world: World) -> None:
    """A lost commit would have given the znode its current version. The value differs, so another writer set it."""
    consumer = world.consumers[0]
    partition = one_uncommitted(world)
    consumer.process.lose("request")
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.operator.set_async(world.layout.offset(partition), b"1")
    world.timeline.run_until(committing.done)
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert committing.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1
    assert world.history.stored(partition) == 1


def test_a_second_commit_waits_for_the_first(world: World) -> None:
    """
    A second commit waits for the first. It then has nothing left to store, and does not mistake the first commit for
    another writer's.
    """
    consumer = world.consumers[0]
    partition = one_uncommitted(world)
    commits = [consumer.process.start(consumer.member.commit_on_session()) for _ in range(2)]
    world.timeline.run_until(lambda: all(commit.done() for commit in commits))
    assert [commit.result() for commit in commits] == [{partition}, frozenset()]
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_deleted_offset_is_stored_again(world: World) -> None:
    """The next commit stores a deleted offset again, and so does a release, as in this test."""
    consumer = world.consumers[0]
    partition = one_uncommitted(world)
    world.operator.delete(world.layout.offset(partition))
    consumer.leave()
    world.run_for(10.0)
    assert world.ensemble.tree.znodes[world.layout.offset(partition)].data == b"3"
