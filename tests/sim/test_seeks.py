"""Seeks and pauses of a simulated application, and what the checker reports of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.model import TopicPartition
from tests.sim.checker import Violation
from tests.sim.consumer import Consumer
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

P0 = TopicPartition("t0", 0)


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a group of one member that owns one partition and has committed 20 of its records."""
    with at_rest(members=1, topics=(1,), reset="earliest") as running:
        (consumer,) = running.consumers
        consumer.work(0.0, 20, 0.1)
        running.run_for(7.0)
        assert running.history.stored(P0) == 20
        yield running


def seek(consumer: Consumer, offset: int) -> None:
    consumer.process.call(consumer._seek, P0, offset)


@pytest.mark.parametrize("offset", [5, 20, 60])
def test_a_seek_is_stored_by_the_next_commit_and_the_release(world: World, offset: int) -> None:
    """Backwards and forwards; records that were in flight do not count, and the next owner continues there."""
    (consumer,) = world.consumers
    consumer.work(0.0, 7, 0.1)
    seek(consumer, offset)
    world.run_for(0.2)
    assert consumer.in_flight == {}
    world.run_for(7.0)
    assert world.history.stored(P0) == offset
    consumer.work(0.0, 3, 0.1)
    world.run_for(7.0)
    assert world.history.stored(P0) == offset + 3
    seek(consumer, offset + 1)
    other = world.join(["t0"])
    consumer.leave()
    world.run_for(20.0)
    assert world.history.stored(P0) == offset + 1
    other.work(0.0, 1, 0.1)
    world.close(60.0)


def test_a_seek_during_a_drain_is_stored_by_the_release(world: World) -> None:
    """The application still has the partition; the records in flight delay the release, and do not count."""
    (consumer,) = world.consumers
    other = world.join(["t0"])
    world.settle(60.0)
    (owner,) = (each for each in (consumer, other) if P0 in each.opened)
    owner.work(0.0, 7, 30.0)
    owner.leave()
    world.run_for(15.0)
    assert P0 not in owner.opened
    assert owner.is_assigned(P0)
    owner.process.call(owner._seek, P0, 4)
    world.run_for(40.0)
    assert world.history.stored(P0) == 4


def test_a_seek_ends_with_its_claim(world: World) -> None:
    """A member that dies before the next commit leaves the stored offset."""
    (consumer,) = world.consumers
    other = world.join(["t0"])
    world.settle(60.0)
    (owner,) = (each for each in (consumer, other) if P0 in each.opened)
    owner.process.call(owner._seek, P0, 60)
    owner.kill()
    world.settle(60.0)
    assert world.history.stored(P0) == 20


def test_a_seek_back_that_is_not_delivered_from_is_reported(world: World) -> None:
    """The checker reports records that are skipped after a seek."""
    (consumer,) = world.consumers
    seek(consumer, 5)
    consumer._subscription.offsets.of(P0).position = 8  # type: ignore[union-attr]
    with pytest.raises(Violation, match="continues in t0:0 at 8, and has sought 5"):
        consumer.work(0.0, 1, 0.1)


def test_a_commit_before_a_sought_offset_is_reported(world: World) -> None:
    """A seek excuses offsets from its own on, and no others."""
    (consumer,) = world.consumers
    seek(consumer, 10)
    consumer._subscription.offsets.of(P0).finished = 9  # type: ignore[union-attr]
    with pytest.raises(Violation, match="takes the offset of t0:0 back from 20 to 9"):
        world.run_for(7.0)


def test_a_commit_beyond_what_was_processed_since_a_seek_is_reported(world: World) -> None:
    """Records after the sought offset must be processed before they are committed."""
    (consumer,) = world.consumers
    seek(consumer, 30)
    consumer._subscription.offsets.of(P0).finished = 31  # type: ignore[union-attr]
    with pytest.raises(Violation, match="commits 31 of t0:0, processed is 20"):
        world.run_for(7.0)


def choose(world: World, consumer: Consumer, offset: int) -> None:
    """Have the application commit an offset that it chooses."""
    world.checker.commit_chosen(consumer, P0, consumer.token(P0), offset)
    committing = consumer.process.start(consumer.member.commit_chosen({P0: offset}))
    world.timeline.run_until(committing.done, 2.0)
    committing.result()


@pytest.mark.parametrize("deleted", [False, True])
def test_an_offset_that_is_chosen_before_a_seek_is_stored_starts_an_epoch(world: World, deleted: bool) -> None:
    """
    The application may commit less than it has sought, also in place of an offset that an operator has deleted. The
    sought offset is stored by the next commit all the same, and a next owner may start at either.
    """
    (consumer,) = world.consumers
    seek(consumer, 60)
    if deleted:
        world.operator.delete_async(world.layout.offset(P0))
        world.run_for(1.0)
    choose(world, consumer, 40)
    assert world.history.stored(P0) == 40
    consumer.work(0.0, 2, 0.1)
    world.run_for(7.0)
    assert world.history.stored(P0) == 62
    world.close(60.0)


def test_an_offset_is_chosen_from_the_start_of_the_claim_on_after_a_seek(world: World) -> None:
    """The floor stays where the claim was opened, also if the application seeks forward before the first record."""
    (consumer,) = world.consumers
    consumer.leave()
    world.run_for(20.0)
    other = world.join(["t0"])
    world.settle(60.0)
    seek(other, 30)
    other.process.call(other._open, [P0])
    choose(world, other, 20)
    assert world.history.stored(P0) == 20


def test_a_seek_that_is_stored_before_the_partition_is_opened_for_delivery_counts(world: World) -> None:
    """An application may seek in its assigned hook, and a commit may store that before the hook has ended."""
    (consumer,) = world.consumers
    opened = consumer.opened.pop(P0)
    seek(consumer, 5)
    world.timeline.run_until(lambda: world.history.stored(P0) == 5, 10.0)
    assert world.history.epoch(P0) == opened + 1
    consumer.process.call(consumer._open, [P0])
    consumer.work(0.0, 2, 0.1)
    world.run_for(7.0)
    assert world.history.stored(P0) == 7


def test_a_pause_ends_when_its_topic_leaves_the_subscription(world: World) -> None:
    """Nothing of the topic is delivered meanwhile. If the claim outlasts that, the partition is not paused any more."""
    (consumer,) = world.consumers
    consumer.process.call(consumer.pause, 0.0)
    consumer.process.call(consumer.subscribe, ["t1"])
    assert consumer._idle() == []
    consumer.process.call(consumer.subscribe, ["t0"])
    world.timeline.run_until(lambda: consumer.is_assigned(P0), 10.0)
    consumer.work(0.0, 1, 0.1)
    assert P0 in consumer.in_flight


def test_a_paused_partition_is_not_delivered_until_it_is_resumed(world: World) -> None:
    """The claim stays, and the delivery continues where it was."""
    (consumer,) = world.consumers
    consumer.process.call(consumer.pause, 0.0)
    consumer.work(0.0, 1, 0.1)
    consumer.get_many(1, 0.1)
    world.run_for(60.0)
    assert consumer.in_flight == {}
    assert P0 in consumer.opened
    consumer.process.call(consumer.resume)
    consumer.get_many(1, 0.1)
    assert P0 in consumer.in_flight


def test_a_delivery_of_a_paused_partition_is_reported(world: World) -> None:
    """The application has not resumed it, whatever the member believes."""
    (consumer,) = world.consumers
    consumer.process.call(consumer.pause, 0.0)
    consumer._subscription.resume(P0)
    with pytest.raises(Violation, match="delivers t0:0, which is paused"):
        consumer.work(0.0, 1, 0.1)


def test_a_pause_that_outlasts_its_claim_is_reported(world: World) -> None:
    """A partition that is claimed anew starts without a pause."""
    (consumer,) = world.consumers
    consumer._subscription.pause(P0)
    with pytest.raises(Violation, match="the pause of t0:0 is not that of its claim"):
        consumer.process.call(consumer._open, [P0])


def test_a_delivery_of_a_partition_that_is_not_assigned_is_reported(world: World) -> None:
    """The application could neither seek nor pause it."""
    (consumer,) = world.consumers
    consumer._subscription.assign_from_subscribed([])
    with pytest.raises(Violation, match="delivers t0:0, which is not assigned"):
        consumer.work(0.0, 1, 0.1)


def test_a_reset_that_stores_nothing_moves_a_seek() -> None:
    """
    The application commits, so the reset leaves the stored offset, 0. The next commit stores the position.

    Its offset is what the seek's has become: the log was cut off behind it, and nothing in between was skipped.
    """
    # With this seed, the application does not commit after its work by itself.
    with at_rest(members=1, topics=(1,), reset="latest", autocommit=False, seed=2) as world:
        (consumer,) = world.consumers
        world.run_for(1.0)
        (start,) = {world.history.stored(P0)}
        assert start is not None
        seek(consumer, start + 1)
        consumer.work(0.0, 5, 0.1)
        world.run_for(2.0)
        world.cut(P0, start + 3, 60.0)
        world.run_for(2.0)
        assert world.history.stored(P0) == start
        consumer.process.start(consumer.member.commit_on_session())
        world.run_for(1.0)
        assert world.history.stored(P0) == start + 3
