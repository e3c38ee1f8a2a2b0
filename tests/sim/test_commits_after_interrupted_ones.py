"""A commit that follows one whose caller was interrupted, and which was made all the same."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from tests.sim.test_interrupted_commits import interrupted_commit, process_some, world  # noqa: F401 -- a fixture
from tests.sim.world import World

pytestmark = pytest.mark.sim


def unstored(world: World) -> set[TopicPartition]:  # noqa: F811
    """The partitions of which something is finished and not committed."""
    flowing = world.consumers[0].flowing
    return {p for p in flowing if world.ledger.processed(p) != world.ledger.stored(p)}


def test_nothing_new_is_finished(world: World) -> None:  # noqa: F811
    """The same offset again is refused, and found to be one's own: it is stored, and nobody is accused."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    partitions = unstored(world)
    interrupted_commit(world, consumer)
    second = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(second.done)
    assert second.result() == partitions
    assert len(partitions) == 1
    assert consumer.metrics.total("commits_superseded") == 0


def test_more_is_finished(world: World) -> None:  # noqa: F811
    """It is stored by that commit, in the place of what the first one made, and not only by the next one."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    interrupted_commit(world, consumer)
    process_some(world, consumer)
    partitions = unstored(world)
    second = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(second.done)
    assert second.result() == partitions
    assert len(partitions) == 1
    assert unstored(world) == set()
    assert consumer.metrics.total("commits_superseded") == 0


def test_somebody_else_wrote_the_same_meanwhile(world: World) -> None:  # noqa: F811
    """Where a commit is refused that nobody interrupted, the same offset in its place is another one's: a reset."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = unstored(world)
    offset = world.ledger.processed(partition)
    world.operator.set_async(world.layout.offset(partition), b"%d" % offset)
    world.timeline.run_until(lambda: world.ledger.stored(partition) == offset)
    commit = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(commit.done)
    assert commit.result() == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1
