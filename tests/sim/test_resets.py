"""Resets of a position that the log no longer has: the offset that the member stores, and when the member stores it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from kiel_groups.group.partition_offsets import Commit
from kiel_groups.members.offsets.owned_offsets import Written
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.model import TopicPartition
from tests.sim.commits import process_some
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

P0 = TopicPartition("t0", 0)


@pytest.fixture(params=["earliest", "latest"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a settled group of one with one partition, of which three records are processed and committed."""
    with at_rest(members=1, topics=(1,), reset=request.param) as made:
        process_and_commit(made)
        yield made


def process_and_commit(world: World) -> None:
    """Have the only consumer finish three records and commit them."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.2)


def before_the_reset_is_written(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Call ``do`` right before the member writes the offset that the reset policy chose."""
    commit, calls = OffsetZnodes.commit, []

    async def committing(znodes: OffsetZnodes, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        if not calls:
            calls.append(do())
            await asyncio.sleep(0.1)
        return await commit(znodes, commits, metadata)

    monkeypatch.setattr(OffsetZnodes, "commit", committing)


def expected(world: World) -> int:
    """Return the offset that the reset policy chooses."""
    log = world.logs[P0]
    return log.start if world.reset == "earliest" else log.end


def test_a_reset_is_stored_before_anything_is_delivered(world: World) -> None:
    """The member stores a reset at once, not with its next commit. Then it delivers from the stored offset."""
    (consumer,) = world.consumers
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert (world.history.resets, world.history.stored(P0)) == (1, expected(world))
    process_and_commit(world)
    assert world.history.stored(P0) == expected(world) + 3
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_reset_waits_for_records_in_flight(world: World) -> None:
    """The member stores a reset after the application has finished the records in flight."""
    (consumer,) = world.consumers
    before = world.history.stored(P0) or 0
    consumer.work(0.0, 3, 2.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert consumer.has_pending_reset(P0)
    assert world.history.stored(P0) == before
    world.run_for(2.0)
    assert not consumer.has_pending_reset(P0)
    assert world.history.stored(P0) == expected(world)


def test_a_record_in_flight_that_is_cut_off_is_not_committed() -> None:
    """A release does not store records in flight that were cut off the log."""
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        consumer.work(0.0, 5, 2.0)
        world.cut(P0, 1_002, 60.0)
        world.run_for(1.0)
        assert consumer.has_pending_reset(P0)
        consumer.leave()
        world.run_for(3.0)
        assert consumer.closed
        assert world.history.stored(P0) == 1_002


def test_a_release_stores_the_chosen_offset(world: World) -> None:
    """
    A release stores the offset that a reset chose. The next owner starts at this offset and does not choose again.
    """
    (leaving,) = world.consumers
    leaving.work(0.0, 3, 2.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert leaving.has_pending_reset(P0)
    chosen = expected(world)
    next_owner = world.join(["t0"])
    leaving.leave()
    world.run_for(1.5)
    world.logs.end = 3_000
    world.settle(20.0)
    assert leaving.closed
    assert world.history.stored(P0) == chosen
    assert next_owner.finished(P0) is not None
    assert next_owner.metrics.total("records_cut_off") == 0
    world.run_for(1.0)
    assert world.history.stored(P0) == chosen


def test_a_lost_session_does_not_store_the_chosen_offset(world: World) -> None:
    """
    A member that is killed before it stores the chosen offset leaves the stored offset unchanged. The next owner reads
    the log's range itself, and chooses again.
    """
    (consumer,) = world.consumers
    before = world.history.stored(P0)
    consumer.work(0.0, 3, 8.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert consumer.has_pending_reset(P0)
    consumer.kill()
    world.run_for(30.0)
    assert world.history.stored(P0) == before


def test_an_operators_offset_takes_precedence_over_a_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member follows an operator's offset, even if it was about to store the offset that the policy chose."""
    (consumer,) = world.consumers
    before_the_reset_is_written(monkeypatch, lambda: world.operator.set_async(world.layout.offset(P0), b"1600"))
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert world.history.resets == 0
    assert world.history.stored(P0) == 1_600
    process_and_commit(world)
    assert world.history.stored(P0) == 1_603
    assert consumer.metrics.total("commits_superseded") == 1


def test_a_reset_overwrites_garbage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operator garbles the offset right before the member stores a reset, the reset overwrites the garbage."""
    before_the_reset_is_written(monkeypatch, lambda: world.operator.set_async(world.layout.offset(P0), b"garbage"))
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert world.history.stored(P0) == expected(world)


def test_a_reset_overwrites_garbage_over_an_equal_offset() -> None:
    """
    If the member has already stored the offset that a reset chooses and another writer garbles it, the reset overwrites
    the garbage.
    """
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        process_and_commit(world)
        chosen = 1_003
        assert world.history.stored(P0) == chosen
        process_some(world, consumer)
        consumer.work(0.0, 3, 2.0)
        world.cut(P0, chosen, 60.0)
        world.run_for(1.0)
        assert consumer.has_pending_reset(P0)
        world.operator.set(world.layout.offset(P0), b"garbage")
        member_session = consumer.member._member_session
        assert member_session is not None
        offsets = member_session.role.offsets.owned
        following = consumer.process.start(offsets.adopt_foreign_offsets(lambda: [P0]))
        world.timeline.run_until(following.done, 1.0)
        world.timeline.run_until(lambda: not consumer.has_pending_reset(P0), 5.0)
        assert world.ensemble.tree.znodes[world.layout.offset(P0)].data == b"%d" % chosen


def test_a_new_topic_takes_precedence_over_a_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset that was chosen for the old log is not stored. The new log is read from its start."""
    before_the_reset_is_written(monkeypatch, lambda: world.recreate_topic("t0", 0.0, 0.0))
    world.retain(P0, 1_500)
    world.run_for(3.0)
    assert world.history.resets == 0
    assert world.history.stored(P0) == 0


def test_a_broken_connection_does_not_change_the_chosen_offset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If the connection breaks while a reset is stored, the chosen offset stays. Records that are produced meanwhile come
    after this offset, so they are delivered.
    """
    (consumer,) = world.consumers

    def break_and_write() -> None:
        consumer.process.reset()
        world.logs[P0].grown = 3_000

    world.retain(P0, 1_500)
    before_the_reset_is_written(monkeypatch, break_and_write)
    chosen = expected(world)
    world.run_for(10.0)
    assert world.logs[P0].end == 3_000
    assert (world.history.resets, world.history.stored(P0)) == (1, chosen)


def test_a_deleted_topic_voids_the_chosen_offset() -> None:
    """
    When the topic is created again, the offset chosen in the old log is not stored. Until the new log is known,
    fetching continues in the old log, which has grown (seed 450708062642).
    """
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        process_and_commit(world)
        (consumer,) = world.consumers
        consumer.work(0.0, 1, 6.0)
        world.cut(P0, 1_003, 2.0)
        world.run_for(1.0)
        assert consumer.has_pending_reset(P0)
        world.run_for(2.0)
        world.recreate_topic("t0", 0.0, 20.0)
        world.run_for(5.0)
        assert world.history.resets == 0
        consumer.work(0.0, 1, 0.1)
        world.run_for(40.0)
        assert world.history.stored(P0) == 0


def test_a_lost_answer_is_not_taken_for_an_operators_offset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If the answer to the write of a reset is lost, the member reads the znode, and counts no write of another writer.
    """
    (consumer,) = world.consumers
    before_the_reset_is_written(monkeypatch, lambda: consumer.process.lose("reply"))
    world.retain(P0, 1_500)
    world.run_for(5.0)
    assert (world.history.resets, world.history.stored(P0)) == (1, expected(world))
    assert consumer.metrics.total("commits_superseded") == 0
    process_and_commit(world)
    assert world.history.stored(P0) == expected(world) + 3
