"""A topic is created again, and brokers know some of its partitions, or none, while these are handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pytest

from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperOffsetStore
from kiel_groups.coordination.partition_handler import LogOffsets
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Operation, Put
from kiel_groups.model import TopicPartition
from tests.sim.consumer import Consumer
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one at rest, with all of a topic."""
    with at_rest(members=1, topics=(4,), reset="earliest") as made:
        yield made


def stored(world: World) -> list[int]:
    znodes = world.ensemble.truth.znodes
    paths = [world.layout.offset(TopicPartition("t0", number)) for number in range(world.topics["t0"])]
    return [int(znodes[path].data) for path in paths]


def recreate_within_a_write(
    world: World, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None
) -> list[int]:
    """The next offset arrives just after its topic was created again; brokers hear of that six seconds later."""
    transact, recreated = Session.transact, list[int]()

    async def recreating(session: Session, operations: Iterable[Operation]) -> Any:
        listed = list(operations)
        if not recreated and any(isinstance(each, Put) and "/offsets/" in each.path for each in listed):
            before = world.ensemble.truth.znodes[topic_path("t0")].czxid
            recreated.append(before)
            world.recreate_topic("t0", 0.0, 6.0)
            while world.ensemble.truth.znodes[topic_path("t0")].czxid == before:  # noqa: ASYNC110 -- simulated time
                await asyncio.sleep(0.0005)
            then()
        return await transact(session, listed)

    monkeypatch.setattr(Session, "transact", recreating)
    return recreated


def process_all(world: World, consumer: Consumer) -> None:
    for _ in world.partitions():
        consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)


def test_what_brokers_know_starts_over_whatever_else_they_do_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new topic has fewer partitions, and the application is busy with one that is no more."""
    (holding,) = world.consumers
    process_all(world, holding)
    for _ in range(4):
        holding.work(0.0, 3, 600.0)
    busy = frozenset(TopicPartition("t0", number) for number in (2, 3))
    for partition in holding.hands.keys() - busy:
        holding.hands.pop(partition)
    monkeypatch.setattr(world, "has_leader", lambda partition: partition not in busy)
    world.topics["t0"] = 2
    world.operator.delete(topic_path("t0"))
    world.operator.create(topic_path("t0"), world.topic_data("t0"))
    world.run_for(5.0)
    assert busy <= holding.hands.keys()
    assert stored(world) == [0, 0]
    process_all(world, holding)
    world.run_for(6.0)
    assert stored(world) == [3, 3]


@pytest.mark.parametrize("moves", ["a plan", "leaving"])
def test_an_offset_that_was_stored_unknowingly_is_not_handed_over(
    world: World, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """Who has it knows better by then; the next one would take it for one of the new log."""
    (holding,) = world.consumers
    process_all(world, holding)
    recreate_within_a_write(world, monkeypatch)
    commit = holding.process.start(holding.member.commit_on_session())
    world.timeline.run_until(commit.done, 5.0)
    assert stored(world) == [3, 3, 3, 3]
    world.join(world.topics)
    if moves == "leaving":
        holding.leave()
    world.run_for(20.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]
    assert holding.metrics.total("offsets_of_deleted_topic") == 4


def test_an_offset_that_is_deleted_just_before_it_is_given_back_is_given_back_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand, while whoever was about to claim it leaves."""
    with at_rest(members=1, topics=(1,), reset="earliest") as world:
        (holding,) = world.consumers
        process_all(world, holding)
        world.close(20.0)
        late: list[Consumer] = []
        recreated = recreate_within_a_write(world, monkeypatch, lambda: late[0].process.lose("reply"))
        late.append(world.join(world.topics))
        world.timeline.run_until(lambda: recreated, 20.0)
        world.run_for(0.5)
        path, transact = world.layout.offset(TopicPartition("t0", 0)), Session.transact

        async def deleting(session: Session, operations: Iterable[Operation]) -> Any:
            listed = list(operations)
            if any(isinstance(each, Put) and each.path == path for each in listed):
                world.operator.delete_async(path)
                while path in world.ensemble.truth.znodes:  # noqa: ASYNC110 -- simulated time
                    await asyncio.sleep(0.0005)
            return await transact(session, listed)

        monkeypatch.setattr(Session, "transact", deleting)
        late[0].leave()
        world.run_for(5.0)
        assert late[0].closed
        assert path not in world.ensemble.truth.znodes
        assert late[0].metrics.total("offset_folders_restored") == 0


@pytest.mark.parametrize("moves", ["a plan", "leaving"])
@pytest.mark.parametrize("partitions", [4, 2 * MOST_OPERATIONS], ids=["answer lost", "in part"])
def test_an_offset_that_a_claim_has_written_back_unknowingly_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch, moves: str, partitions: int
) -> None:
    """It was never opened, so nobody has a position in it; what it wrote misleads the next one all the same."""
    with at_rest(members=1, topics=(partitions,), reset="earliest") as world:
        (holding,) = world.consumers
        process_all(world, holding)
        world.run_for(1.0)
        world.close(20.0)
        assert set(stored(world)) == {3}
        late: list[Consumer] = []
        lose = (lambda: late[0].process.lose("reply")) if partitions == 4 else lambda: None
        recreated = recreate_within_a_write(world, monkeypatch, lose)
        late.append(world.join(world.topics))
        world.timeline.run_until(lambda: recreated, 20.0)
        world.run_for(0.5)
        assert not world.has_leader(TopicPartition("t0", 0))
        assert not late[0].flowing
        world.join(world.topics)
        if moves == "leaving":
            late[0].leave()
        world.run_for(20.0)
        world.settle(20.0)
        assert set(stored(world)) == {0}


def test_a_topic_that_is_created_again_and_again_is_begun_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no broker knows it; only who has heard of the newest asks for it, and what was handed out since counts."""
    (holding,) = world.consumers
    process_all(world, holding)
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
    assert stored(world) == [0, 0, 0, 0]
    versions = {world.ensemble.truth.znodes[world.layout.offset(partition)].version for partition in world.partitions()}
    assert versions == {min(versions)}
    assert holding.metrics.total("offsets_of_deleted_topic") == 4


def test_an_operator_s_offset_in_a_new_log_is_handed_over_as_it_is(world: World) -> None:
    """Also where its owner has had time to see it, and no broker tells yet where the log begins."""
    (holding,) = world.consumers
    process_all(world, holding)
    world.recreate_topic("t0", 0.0, 90.0)
    world.run_for(0.5)
    for partition in world.partitions():
        world.operator.set(world.layout.offset(partition), b"50")
    world.run_for(60.0)
    holding.leave()
    world.run_for(5.0)
    assert holding.closed
    assert stored(world) == [50, 50, 50, 50]
    assert holding.metrics.total("offsets_of_deleted_topic") == 0


def test_an_offset_that_is_older_than_its_topic_is_left_to_the_next_owner(world: World) -> None:
    """Who asks brokers where the log begins: an operator may have deleted the topic in ZooKeeper alone."""
    (holding,) = world.consumers
    process_all(world, holding)
    commit = holding.process.start(holding.member.commit_on_session())
    world.timeline.run_until(commit.done, 5.0)
    world.recreate_topic("t0", 0.0, 6.0)
    world.run_for(0.2)
    holding.leave()
    world.run_for(2.0)
    assert holding.closed
    assert stored(world) == [3, 3, 3, 3]
    world.join(world.topics)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_what_somebody_else_had_of_a_new_log_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim was interrupted by the new topic, and deleted by hand; whoever had the partition next read some of it."""
    with at_rest(members=1, topics=(4,), reset="earliest") as world:
        (holding,) = world.consumers
        process_all(world, holding)
        world.close(20.0)
        complete, interrupted = ZooKeeperOffsetStore._find_or_create, list[str]()

        async def completing(store: ZooKeeperOffsetStore, topic: str, mine: Any) -> Any:
            found = await complete(store, topic, mine)
            if not interrupted:
                interrupted.append(topic)
                world.recreate_topic("t0", 0.0, 8.0)
                await asyncio.sleep(0.3)
            return found

        monkeypatch.setattr(ZooKeeperOffsetStore, "_find_or_create", completing)
        late = world.join(world.topics)
        world.timeline.run_until(lambda: interrupted, 20.0)
        world.run_for(1.0)
        (partition, *_) = world.partitions()
        owner = world.layout.owner(partition)
        world.operator.delete(owner)
        world.operator.create(owner, b"somebody else", ephemeral=True)
        world.run_for(30.0)
        world.operator.set(world.layout.offset(partition), b"50")
        world.operator.delete(owner)
        world.run_for(10.0)
        state = late._subscription.state(partition)
        assert state is not None
        assert state.position == 50


def test_an_offset_in_a_new_log_is_not_followed_before_its_owner_starts_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where brokers write, it may be a late write of the log that is gone. Starting over settles whose it is."""
    (holding,) = world.consumers
    process_all(world, holding)
    monkeypatch.setattr(world, "has_leader", lambda partition: False)
    world.recreate_topic("t0", 0.0, 0.0)
    world.run_for(2.0)
    partition = TopicPartition("t0", 0)
    before = holding.finished(partition)
    world.operator.set(world.layout.offset(partition), b"2")
    world.run_for(1.5 * RECONCILE_INTERVAL_MS / 1000)
    assert holding.finished(partition) == before
    assert holding.metrics.total("commits_superseded") == 0
