"""Resets of a position that the log no longer has: the offset that the member stores, and when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from kiel_groups.coordination.offsets.offset_znodes import Written
from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.group.member.partition_offsets import Commit
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
    put, calls = OwnedOffsets._put, []

    async def putting(offsets: OwnedOffsets, commits: Mapping[TopicPartition, Commit]) -> Written:
        if not calls:
            calls.append(do())
            await asyncio.sleep(0.1)
        return await put(offsets, commits)

    monkeypatch.setattr(OwnedOffsets, "_put", putting)


def expected(world: World) -> int:
    """Return the offset that the reset policy chooses."""
    log = world.logs[P0]
    return log.start if world.reset == "earliest" else log.end


def test_a_reset_is_stored_before_anything_is_delivered(world: World) -> None:
    """The member stores the reset at once, not with its next commit; then it delivers from there."""
    (consumer,) = world.consumers
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert (world.history.resets, world.history.stored(P0)) == (1, expected(world))
    process_and_commit(world)
    assert world.history.stored(P0) == expected(world) + 3
    assert consumer.metrics.total("commits_superseded") == 0


def test_a_reset_waits_for_records_in_flight(world: World) -> None:
    """The reset is stored after the application has finished them."""
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
    """Neither the next commit nor the release stores it."""
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
    """The next owner starts there and does not choose again."""
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
    """The next owner reads the log's range itself, and chooses again."""
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
    """The member follows the operator's offset, although it was about to store the one that the policy chose."""
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
    """An operator garbles the offset right before the member stores the reset."""
    before_the_reset_is_written(monkeypatch, lambda: world.operator.set_async(world.layout.offset(P0), b"garbage"))
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert world.history.stored(P0) == expected(world)


def test_a_reset_overwrites_garbage_over_an_equal_offset() -> None:
    """The member has already stored the offset that the reset chooses, but then another writer garbles it."""
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
        following = consumer.process.start(member_session.owned_partitions._offsets.owned.adopt_foreign_offsets([P0]))
        world.timeline.run_until(following.done, 1.0)
        world.timeline.run_until(lambda: not consumer.has_pending_reset(P0), 5.0)
        assert world.ensemble.tree.znodes[world.layout.offset(P0)].data == b"%d" % chosen


def test_a_new_topic_takes_precedence_over_a_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset chosen for the old log is not stored; the new log is read from its start."""
    before_the_reset_is_written(monkeypatch, lambda: world.recreate_topic("t0", 0.0, 0.0))
    world.retain(P0, 1_500)
    world.run_for(3.0)
    assert world.history.resets == 0
    assert world.history.stored(P0) == 0


def test_a_broken_connection_does_not_change_the_chosen_offset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are produced meanwhile come after the chosen position, so they are delivered."""
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
    """Until the topic's new log is known, fetching continues in the old one, which has grown (seed 450708062642)."""
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
    """ZooKeeper has executed the write; the member reads the znode, and counts no write of another writer."""
    (consumer,) = world.consumers
    before_the_reset_is_written(monkeypatch, lambda: consumer.process.lose("reply"))
    world.retain(P0, 1_500)
    world.run_for(5.0)
    assert (world.history.resets, world.history.stored(P0)) == (1, expected(world))
    assert consumer.metrics.total("commits_superseded") == 0
    process_and_commit(world)
    assert world.history.stored(P0) == expected(world) + 3
