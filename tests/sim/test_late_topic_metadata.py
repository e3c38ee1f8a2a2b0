"""Topics that are created again while brokers know some of their partitions, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pytest

from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Operation, Put
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from tests.sim.commits import commit, process_all
from tests.sim.consumer import Consumer
from tests.sim.topics import recreate, recreate_within_a_write, stored_offsets
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one, which owns all partitions of a topic."""
    with at_rest(members=1, topics=(4,), reset="earliest") as made:
        yield made


def test_partitions_that_brokers_know_are_reset_without_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Partitions that brokers know are reset without waiting for the other partitions. Here the new topic has fewer
    partitions, and records of the removed partitions are in flight.
    """
    (consumer,) = world.consumers
    process_all(world, consumer)
    for _ in range(4):
        consumer.work(0.0, 3, 600.0)
    busy = frozenset(TopicPartition("t0", number) for number in (2, 3))
    for partition in consumer.in_flight.keys() - busy:
        consumer.in_flight.pop(partition)
    monkeypatch.setattr(world, "has_leader", lambda partition: partition not in busy)
    world.topics["t0"] = 2
    recreate(world)
    world.run_for(5.0)
    assert busy <= consumer.in_flight.keys()
    assert stored_offsets(world) == [0, 0]
    process_all(world, consumer)
    world.run_for(6.0)
    assert stored_offsets(world) == [3, 3]


@pytest.mark.parametrize("moves", ["a plan", "leaving"])
def test_an_offset_of_the_old_log_is_not_released(world: World, monkeypatch: pytest.MonkeyPatch, moves: str) -> None:
    """
    An owner does not release an offset that it stored before it knew of the new topic. The next owner would mistake
    this offset for one of the new log.
    """
    (consumer,) = world.consumers
    process_all(world, consumer)
    recreate_within_a_write(world, monkeypatch)
    commit(world, consumer)
    assert stored_offsets(world) == [3, 3, 3, 3]
    world.join(world.topics)
    if moves == "leaving":
        consumer.leave()
    world.run_for(20.0)
    world.settle(20.0)
    assert stored_offsets(world) == [0, 0, 0, 0]
    assert consumer.metrics.total("offsets_of_deleted_topic") == 4


def test_a_claim_is_released_although_its_offset_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaving member releases a claim that it has not opened, even if an operator deletes the offset meanwhile."""
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        (consumer,) = world.consumers
        process_all(world, consumer)
        world.close(20.0)
        joined: list[Consumer] = []
        recreated = recreate_within_a_write(world, monkeypatch, lambda: joined[0].process.lose("reply"))
        joined.append(world.join(world.topics))
        world.timeline.run_until(lambda: recreated, 20.0)
        world.run_for(0.5)
        path, transact = world.layout.offset(TopicPartition("t0", 0)), Session.transact

        async def deleting(session: Session, operations: Iterable[Operation]) -> Any:
            listed = list(operations)
            if any(isinstance(each, Put) and each.path == path for each in listed):
                world.operator.delete_async(path)
                while path in world.ensemble.tree.znodes:  # noqa: ASYNC110 -- simulated time
                    await asyncio.sleep(0.0005)
            return await transact(session, listed)

        monkeypatch.setattr(Session, "transact", deleting)
        joined[0].leave()
        world.run_for(5.0)
        assert joined[0].closed
        assert path not in world.ensemble.tree.znodes
        assert joined[0].metrics.total("offset_folders_restored") == 0


@pytest.mark.parametrize("moves", ["a plan", "leaving"])
@pytest.mark.parametrize("partitions", [4, 2 * MOST_OPERATIONS], ids=["answer lost", "in part"])
def test_an_offset_of_the_old_log_that_a_claim_has_rewritten_is_not_released(
    monkeypatch: pytest.MonkeyPatch, moves: str, partitions: int
) -> None:
    """
    A claim that was never opened has no position. It is still not released at the offset that it rewrote, because that
    offset would mislead the next owner.
    """
    with at_rest(members=1, topics=(partitions,), reset="earliest") as world:
        (consumer,) = world.consumers
        process_all(world, consumer)
        world.run_for(1.0)
        world.close(20.0)
        assert set(stored_offsets(world)) == {3}
        joined: list[Consumer] = []
        lose = (lambda: joined[0].process.lose("reply")) if partitions == 4 else lambda: None
        recreated = recreate_within_a_write(world, monkeypatch, lose)
        joined.append(world.join(world.topics))
        world.timeline.run_until(lambda: recreated, 20.0)
        world.run_for(0.5)
        assert not world.has_leader(TopicPartition("t0", 0))
        assert not joined[0].opened
        world.join(world.topics)
        if moves == "leaving":
            joined[0].leave()
        world.run_for(20.0)
        world.settle(20.0)
        assert set(stored_offsets(world)) == {0}


def test_a_topic_that_is_created_again_five_times_is_reset_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While brokers do not know the topic, the member looks up the log's start only for the newest incarnation."""
    (consumer,) = world.consumers
    process_all(world, consumer)
    for _ in range(5):
        world.recreate_topic("t0", 0.0, 8.0)
        world.run_for(0.2)
    asked, log_offsets = list[float](), Consumer.log_offsets

    async def asking(consumer: Consumer, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        asked.append(world.elapsed_s)
        return await log_offsets(consumer, partitions, policy)

    monkeypatch.setattr(Consumer, "log_offsets", asking)
    world.run_for(6.0)
    assert 1 <= len(asked) <= 4
    world.run_for(10.0)
    assert stored_offsets(world) == [0, 0, 0, 0]
    versions = {world.ensemble.tree.znodes[world.layout.offset(partition)].version for partition in world.partitions()}
    assert versions == {min(versions)}
    assert consumer.metrics.total("offsets_of_deleted_topic") == 4


def test_an_operators_offset_in_a_new_log_is_released_unchanged(world: World) -> None:
    """
    A release leaves an operator's offset in a new log unchanged. The owner has had time to notice the offset, and no
    broker has reported the start of the log yet.
    """
    (consumer,) = world.consumers
    process_all(world, consumer)
    world.recreate_topic("t0", 0.0, 90.0)
    world.run_for(0.5)
    for partition in world.partitions():
        world.operator.set(world.layout.offset(partition), b"50")
    world.run_for(60.0)
    consumer.leave()
    world.run_for(5.0)
    assert consumer.closed
    assert stored_offsets(world) == [50, 50, 50, 50]
    assert consumer.metrics.total("offsets_of_deleted_topic") == 0


def test_an_offset_that_is_older_than_its_topic_is_left_to_the_next_owner(world: World) -> None:
    """
    A release keeps an offset that is older than its topic, in case only the topic's znode was deleted. The next owner
    looks up the log's start.
    """
    (consumer,) = world.consumers
    process_all(world, consumer)
    commit(world, consumer)
    world.recreate_topic("t0", 0.0, 6.0)
    world.run_for(0.2)
    consumer.leave()
    world.run_for(2.0)
    assert consumer.closed
    assert stored_offsets(world) == [3, 3, 3, 3]
    world.join(world.topics)
    world.settle(20.0)
    assert stored_offsets(world) == [0, 0, 0, 0]


def recreate_while_opening(world: World, monkeypatch: pytest.MonkeyPatch, silent_s: float) -> Consumer:
    """
    Have a member claim the partitions of t0, and create the topic again before the claims are opened.

    Brokers know of the new topic ``silent_s`` later, so the member cannot open its claims yet.
    """
    complete, interrupted = ClaimOpener._find_or_create, list[str]()

    async def completing(opener: ClaimOpener, topic: str, mine: Any) -> Any:
        found = await complete(opener, topic, mine)
        if not interrupted:
            interrupted.append(topic)
            world.recreate_topic("t0", 0.0, silent_s)
            await asyncio.sleep(0.3)
        return found

    monkeypatch.setattr(ClaimOpener, "_find_or_create", completing)
    joined = world.join(world.topics)
    world.timeline.run_until(lambda: interrupted, 20.0)
    world.run_for(1.0)
    assert not joined.opened
    return joined


def position_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Return a consumer's position in a partition that it has opened."""
    state = consumer._subscription.offsets.of(partition)
    assert state is not None
    return state.position


def test_progress_of_another_owner_in_a_new_log_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If a new topic interrupts a claim whose owner znode is then deleted, the member later continues where another owner
    has meanwhile read to.
    """
    with at_rest(members=1, topics=(4,), reset="earliest") as world:
        (consumer,) = world.consumers
        process_all(world, consumer)
        world.close(20.0)
        joined = recreate_while_opening(world, monkeypatch, 8.0)
        (partition, *_) = world.partitions()
        owner_path = world.layout.owner(partition)
        world.operator.delete(owner_path)
        world.operator.create(owner_path, b"another", ephemeral=True)
        world.run_for(30.0)
        world.operator.set(world.layout.offset(partition), b"50")
        world.operator.delete(owner_path)
        world.run_for(10.0)
        assert position_of(joined, partition) == 50


def test_progress_in_a_new_log_is_kept_by_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If a new topic interrupts a claim whose session then ends, the member's next session continues at the offset that
    was meanwhile stored in the new log.
    """
    with at_rest(members=1, topics=(4,), reset="earliest") as world:
        (consumer,) = world.consumers
        process_all(world, consumer)
        world.close(20.0)
        joined = recreate_while_opening(world, monkeypatch, 30.0)
        (partition, *_) = world.partitions()
        joined.process.stall()
        world.run_for(20.0)
        assert joined.metrics.total("sessions_lost") == 1
        world.operator.set(world.layout.offset(partition), b"50")
        joined.process.resume()
        world.run_for(30.0)
        assert position_of(joined, partition) == 50


def test_an_offset_in_a_new_log_is_not_followed_before_its_owner_resets_the_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An owner follows no offset in a new log before it has reset the partition. If brokers write offsets, this offset may
    be a late write of the old log.
    """
    (consumer,) = world.consumers
    process_all(world, consumer)
    monkeypatch.setattr(world, "has_leader", lambda partition: False)
    world.recreate_topic("t0", 0.0, 0.0)
    world.run_for(2.0)
    partition = TopicPartition("t0", 0)
    before = consumer.finished(partition)
    world.operator.set(world.layout.offset(partition), b"2")
    world.run_for(1.5 * RECONCILE_INTERVAL_MS / 1000)
    assert consumer.finished(partition) == before
    assert consumer.metrics.total("commits_superseded") == 0
