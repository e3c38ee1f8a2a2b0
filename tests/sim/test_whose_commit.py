"""An offset that somebody else writes while it is not known what became of a commit: versions and values tell both."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from tests.sim.test_commits_after_interrupted_ones import unstored
from tests.sim.test_interrupted_commits import interrupted_commit, process_some, world  # noqa: F401 -- a fixture
from tests.sim.world import World

pytestmark = pytest.mark.sim


def one_unstored(world: World) -> TopicPartition:  # noqa: F811
    process_some(world, world.consumers[0])
    (partition,) = unstored(world)
    return partition


def test_the_same_offset_after_an_interrupted_commit(world: World) -> None:  # noqa: F811
    """It has a version more than that commit made: it is a reset."""
    consumer = world.consumers[0]
    partition = one_unstored(world)
    interrupted_commit(world, consumer)
    world.operator.set(world.layout.offset(partition), b"%d" % world.ledger.processed(partition))
    commit = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(commit.done)
    assert commit.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1


def test_the_same_offset_after_a_commit_whose_answer_is_lost(world: World) -> None:  # noqa: F811
    """So it has here."""
    consumer = world.consumers[0]
    partition, before = one_unstored(world), world.ledger.commits
    consumer.process.lose("reply")
    commit = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(lambda: world.ledger.commits > before)
    world.operator.set_async(world.layout.offset(partition), b"%d" % world.ledger.processed(partition))
    world.timeline.run_until(commit.done)
    assert commit.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1


def test_another_offset_in_the_place_of_a_commit_that_is_lost(world: World) -> None:  # noqa: F811
    """It has the version that the commit would have made, and another value."""
    consumer = world.consumers[0]
    partition = one_unstored(world)
    consumer.process.lose("request")
    commit = consumer.process.start(consumer.member.commit_on_session())
    world.operator.set_async(world.layout.offset(partition), b"1")
    world.timeline.run_until(commit.done)
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert commit.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1
    assert world.ledger.stored(partition) == 1


def test_two_commits_at_once(world: World) -> None:  # noqa: F811
    """The second one waits for the first, and has nothing left to store; it is not taken for somebody else's."""
    consumer = world.consumers[0]
    partition = one_unstored(world)
    commits = [consumer.process.start(consumer.member.commit_on_session()) for _ in range(2)]
    world.timeline.run_until(lambda: all(commit.done() for commit in commits))
    assert [commit.result() for commit in commits] == [{partition}, frozenset()]
    assert consumer.metrics.total("commits_superseded") == 0


def test_an_offset_that_is_deleted_is_stored_again(world: World) -> None:  # noqa: F811
    """With the next commit, or with the release where that comes first."""
    consumer = world.consumers[0]
    partition = one_unstored(world)
    world.operator.delete(world.layout.offset(partition))
    consumer.leave()
    world.run_for(10.0)
    assert world.ensemble.truth.znodes[world.layout.offset(partition)].data == b"3"
