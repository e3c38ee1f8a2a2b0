"""A log loses the position of an owner: what the member stores, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from kiel_groups.coordination.offsets.zookeeper_store import StoredOffset, ZooKeeperOffsetStore
from kiel_groups.model import TopicPartition
from tests.sim.test_interrupted_commits import process_some
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

P0 = TopicPartition("t0", 0)
Put = Mapping[TopicPartition, tuple[int, int]]
Written = tuple[dict[TopicPartition, StoredOffset], dict[TopicPartition, StoredOffset]]


@pytest.fixture(params=["earliest", "latest"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A group of one at rest, with one partition; 3 records of it are processed and stored."""
    with at_rest(members=1, topics=(1,), reset=request.param) as made:
        process_and_commit(made)
        yield made


def process_and_commit(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.2)


def before_the_reset_is_written(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Have something happen right before the member writes what a reset chose."""
    put, calls = ZooKeeperOffsetStore.put, []

    async def putting(
        store: ZooKeeperOffsetStore, offsets: Put, is_outdated: Callable[[TopicPartition], bool]
    ) -> Written:
        if not calls:
            calls.append(do())
            await asyncio.sleep(0.1)
        return await put(store, offsets, is_outdated)

    monkeypatch.setattr(ZooKeeperOffsetStore, "put", putting)


def expected(world: World) -> int:
    """Where the policy continues."""
    log = world.logs[P0]
    return log.start if world.reset == "earliest" else log.end


def test_it_is_stored_before_anything_is_handed_out(world: World) -> None:
    """In a transaction of the member, long before its next commit; then records flow from there."""
    (consumer,) = world.consumers
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert (world.ledger.resets, world.ledger.stored(P0)) == (1, expected(world))
    process_and_commit(world)
    assert world.ledger.stored(P0) == expected(world) + 3
    assert consumer.metrics.total("commits_superseded") == 0


def test_it_waits_for_what_the_application_processes(world: World) -> None:
    """What was fetched before is finished as ever, and may be committed meanwhile."""
    (consumer,) = world.consumers
    before = world.ledger.stored(P0) or 0
    consumer.work(0.0, 3, 2.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert consumer.has_chosen(P0)
    assert world.ledger.stored(P0) == before
    world.run_for(2.0)
    assert not consumer.has_chosen(P0)
    assert world.ledger.stored(P0) == expected(world)


def test_what_is_cut_off_while_it_is_processed_is_not_committed() -> None:
    """Neither by the commit that comes first, nor by the hand-over."""
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        consumer.work(0.0, 5, 2.0)
        world.cut(P0, 1_002, 60.0)
        world.run_for(1.0)
        assert consumer.has_chosen(P0)
        consumer.leave()
        world.run_for(3.0)
        assert consumer.closed
        assert world.ledger.stored(P0) == 1_002


def test_a_hand_over_takes_what_was_chosen_with_it(world: World) -> None:
    """The next owner does not choose again: it begins there."""
    (leaving,) = world.consumers
    leaving.work(0.0, 3, 2.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert leaving.has_chosen(P0)
    chosen = expected(world)
    next_owner = world.join(["t0"])
    leaving.leave()
    world.run_for(1.5)
    world.logs.end = 3_000
    world.settle(20.0)
    assert leaving.closed
    assert world.ledger.stored(P0) == chosen
    assert next_owner.finished(P0) is not None
    assert next_owner.metrics.total("records_cut_off") == 0
    world.run_for(1.0)
    assert world.ledger.stored(P0) == chosen


def test_a_lost_session_writes_nothing(world: World) -> None:
    """What was chosen goes with the claim; the next owner meets the log as it is."""
    (consumer,) = world.consumers
    before = world.ledger.stored(P0)
    consumer.work(0.0, 3, 8.0)
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert consumer.has_chosen(P0)
    consumer.kill()
    world.run_for(30.0)
    assert world.ledger.stored(P0) == before


def test_an_operators_offset_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is followed, although the member was about to write what the policy chose."""
    (consumer,) = world.consumers
    before_the_reset_is_written(monkeypatch, lambda: world.operator.set_async(world.layout.offset(P0), b"1600"))
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert world.ledger.resets == 0
    assert world.ledger.stored(P0) == 1_600
    process_and_commit(world)
    assert world.ledger.stored(P0) == 1_603
    assert consumer.metrics.total("commits_superseded") == 1


def test_garbage_is_written_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no offset, and the choice is."""
    before_the_reset_is_written(monkeypatch, lambda: world.operator.set_async(world.layout.offset(P0), b"garbage"))
    world.retain(P0, 1_500)
    world.run_for(1.0)
    assert world.ledger.stored(P0) == expected(world)


def test_garbage_in_the_place_of_the_chosen_offset_is_written_over() -> None:
    """The member has stored that offset before, and another writer has destroyed it since."""
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        (consumer,) = world.consumers
        process_and_commit(world)
        chosen = 1_003
        assert world.ledger.stored(P0) == chosen
        process_some(world, consumer)
        consumer.work(0.0, 3, 2.0)
        world.cut(P0, chosen, 60.0)
        world.run_for(1.0)
        assert consumer.has_chosen(P0)
        world.operator.set(world.layout.offset(P0), b"garbage")
        membership = consumer.member._member_session
        assert membership is not None
        following = consumer.process.start(membership.owned_partitions._offsets.adopt_foreign_offsets())
        world.timeline.run_until(following.done, 1.0)
        world.timeline.run_until(lambda: not consumer.has_chosen(P0), 5.0)
        assert world.ensemble.truth.znodes[world.layout.offset(P0)].data == b"%d" % chosen


def test_a_topic_created_again_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen in the log that is gone is not written into the new one, which is read from its beginning."""
    before_the_reset_is_written(monkeypatch, lambda: world.recreate_topic("t0", 0.0, 0.0))
    world.retain(P0, 1_500)
    world.run_for(3.0)
    assert world.ledger.resets == 0
    assert world.ledger.stored(P0) == 0


def test_a_connection_that_breaks_before_it_is_stored_changes_no_choice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written meanwhile comes after the chosen position, and is delivered."""
    (consumer,) = world.consumers

    def break_and_write() -> None:
        consumer.process.reset()
        world.logs[P0].grown = 3_000

    world.retain(P0, 1_500)
    before_the_reset_is_written(monkeypatch, break_and_write)
    chosen = expected(world)
    world.run_for(10.0)
    assert world.logs[P0].end == 3_000
    assert (world.ledger.resets, world.ledger.stored(P0)) == (1, chosen)


def test_a_topic_that_is_gone_voids_what_was_chosen() -> None:
    """The fetch continues in the log that is gone, as far as it has grown again: seed 450708062642."""
    with at_rest(members=1, topics=(1,), reset="latest") as world:
        process_and_commit(world)
        (consumer,) = world.consumers
        consumer.work(0.0, 1, 6.0)
        world.cut(P0, 1_003, 2.0)
        world.run_for(1.0)
        assert consumer.has_chosen(P0)
        world.run_for(2.0)
        world.recreate_topic("t0", 0.0, 20.0)
        world.run_for(5.0)
        assert world.ledger.resets == 0
        consumer.work(0.0, 1, 0.1)
        world.run_for(40.0)
        assert world.ledger.stored(P0) == 0


def test_an_answer_that_is_lost_is_no_operators_word(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write may have happened: what stands there tells, and nobody is accused."""
    (consumer,) = world.consumers
    before_the_reset_is_written(monkeypatch, lambda: consumer.process.lose("reply"))
    world.retain(P0, 1_500)
    world.run_for(5.0)
    assert (world.ledger.resets, world.ledger.stored(P0)) == (1, expected(world))
    assert consumer.metrics.total("commits_superseded") == 0
    process_and_commit(world)
    assert world.ledger.stored(P0) == expected(world) + 3
