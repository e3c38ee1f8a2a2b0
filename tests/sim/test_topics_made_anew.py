"""A topic is deleted and created again: offsets in the log that is gone mean nothing in the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS
from kiel_groups.model import TopicPartition
from tests.sim.consumer import Consumer
from tests.sim.test_interrupted_commits import process_some
from tests.sim.test_topics_known_late import recreate_within_a_write
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of one at rest, with all of a topic."""
    with at_rest(members=1, topics=(4,), reset="earliest") as made:
        yield made


def recreate(world: World) -> None:
    world.operator.delete(topic_path("t0"))
    world.operator.create(topic_path("t0"), world.topic_data("t0"))


def stored(world: World) -> list[int]:
    znodes = world.ensemble.truth.znodes
    return sorted(int(znodes[world.layout.offset(partition)].data) for partition in world.partitions())


def hand_over_in_hand(world: World, holding: Consumer) -> TopicPartition:
    """Others join while the application is busy with records of every partition; which one waits for it?"""
    for _ in range(4):
        holding.work(0.0, 3, 10.0)
    world.join(world.topics)
    world.run_for(2.0)
    (partition, *_) = sorted(holding.hands.keys() - holding.flowing.keys())
    return partition


def no_broker_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers hear of a new topic after ZooKeeper does."""

    monkeypatch.setattr(World, "has_leader", lambda world, partition: False)


def test_what_is_being_handed_over_starts_over_too(world: World) -> None:
    """What the application has of it counts no more, and the next owner begins where the new log does."""
    (holding,) = world.consumers
    partition = hand_over_in_hand(world, holding)
    recreate(world)
    world.run_for(2.0)
    assert partition not in holding.hands, "it waits for nothing that counts"
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_what_is_handed_over_before_brokers_know_the_topic_is_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner finds an offset that is older than the topic, and starts at the beginning."""
    (holding,) = world.consumers
    hand_over_in_hand(world, holding)
    no_broker_knows(monkeypatch)
    recreate(world)
    world.run_for(15.0)
    assert not holding.hands
    world.close(20.0)
    monkeypatch.undo()
    world.join(world.topics)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_nothing_is_committed_before_brokers_know_the_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who dies then leaves no offset that his successor takes for one of the new log."""
    (holding,) = world.consumers
    no_broker_knows(monkeypatch)
    process_some(world, holding)
    recreate(world)
    world.run_for(1.0)
    process_some(world, holding)
    commit = holding.process.start(holding.member.commit_on_session())
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    holding.kill()
    monkeypatch.undo()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_an_offset_that_is_deleted_with_its_topic_is_not_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor garbage in its place written over: who leaves knows only where it was in the old log."""
    (holding,) = world.consumers
    no_broker_knows(monkeypatch)
    process_some(world, holding)
    recreate(world)
    world.run_for(1.0)
    gone, garbled, *_ = world.partitions()
    world.operator.delete(world.layout.offset(gone))
    world.operator.set(world.layout.offset(garbled), b"garbage")
    world.close(20.0)
    assert world.layout.offset(gone) not in world.ensemble.truth.znodes
    assert world.ensemble.truth.znodes[world.layout.offset(garbled)].data == b"garbage"
    monkeypatch.undo()
    world.join(world.topics)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_who_was_blocked_hears_of_the_new_topic_before_it_gives_a_partition_back() -> None:
    """A plan without it came meanwhile, too; an offset of the old log is not to be its last word: seed 658516861909."""
    with at_rest(members=2, topics=(6,), reset="earliest") as world:
        (blocked,) = (consumer for consumer in world.consumers if not consumer.member.leads)
        for _ in range(3):
            blocked.work(0.0, 3, 0.01)
        world.run_for(0.1)
        blocked.process.block(4.0)
        world.join(world.topics)
        world.run_for(1.0)
        recreate(world)
        world.run_for(10.0)
        world.settle(20.0)
        assert stored(world) == [0] * 6


def test_who_was_blocked_hears_of_the_new_topic_before_it_commits(world: World) -> None:
    (holding,) = world.consumers
    process_some(world, holding)
    holding.process.block(2.0)
    recreate(world)
    world.run_for(1.0)
    commit = holding.process.start(holding.member.commit_on_session())
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    holding.kill()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def cut_off(world: World, consumer: Consumer) -> None:
    """A request of its is lost, and it finds no server for three seconds; the topic is created again meanwhile."""
    unknown = consumer.metrics.total("zookeeper_transactions_unknown")
    world.timeline.run_until(lambda: consumer.metrics.total("zookeeper_transactions_unknown") > unknown, 20.0)
    consumer.process.stall()
    recreate(world)
    world.run_for(3.0)
    consumer.process.resume()


def test_a_release_that_is_tried_again_after_an_outage_does_not_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been made ready before that; the next owner would take its offset for one of the new log."""
    (holding,) = world.consumers
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    world.run_for(0.1)
    release, released = OwnerZnodes.release, list[TopicPartition]()

    async def releasing(owner_znodes: OwnerZnodes, partitions: Collection[TopicPartition]) -> Any:
        if not released:
            holding.process.lose("request")
        released.extend(partitions)
        return await release(owner_znodes, partitions)

    monkeypatch.setattr(OwnerZnodes, "release", releasing)
    world.join(world.topics)
    cut_off(world, holding)
    world.run_for(1.0)
    world.settle(20.0)
    assert released
    assert stored(world) == [0, 0, 0, 0]


def test_a_commit_that_is_tried_again_after_an_outage_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (holding,) = world.consumers
    process_some(world, holding)
    holding.process.lose("request")
    commit = holding.process.start(holding.member.commit_on_session())
    no_broker_knows(monkeypatch)
    cut_off(world, holding)
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    holding.kill()
    monkeypatch.undo()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_a_claim_that_is_tried_again_after_an_outage_does_not_take_over_the_old_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who claims them next would take them for those of the new log: they were just written."""
    (holding,) = world.consumers
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    world.run_for(0.1)
    world.close(20.0)
    late = world.join(world.topics)
    take_over, taken = ZooKeeperOffsetStore._open_claims, list[str]()

    async def taking_over(store: ZooKeeperOffsetStore, topic: str, partitions: Sequence[TopicPartition]) -> Any:
        if not taken:
            late.process.lose("request")
        taken.append(topic)
        return await take_over(store, topic, partitions)

    monkeypatch.setattr(ZooKeeperOffsetStore, "_open_claims", taking_over)
    no_broker_knows(monkeypatch)
    cut_off(world, late)
    world.run_for(3.0)
    late.kill()
    monkeypatch.undo()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_offset_that_is_damaged_while_its_owner_starts_over(
    world: World, monkeypatch: pytest.MonkeyPatch, is_deleted: bool, is_late: bool
) -> None:
    """He starts over all the same, and commits again."""
    (holding,) = world.consumers
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    world.run_for(0.1)
    (partition, *_) = world.partitions()
    path, put = world.layout.offset(partition), ZooKeeperOffsetStore._put

    async def damage() -> None:
        if is_deleted:
            world.operator.delete_async(path)
        else:
            world.operator.set_async(path, b"garbage")
        await asyncio.sleep(0.2)

    async def putting(*arguments: Any) -> Any:
        monkeypatch.undo()
        if not is_late:
            await damage()
        written = await put(*arguments)
        if is_late:
            await damage()
        return written

    monkeypatch.setattr(ZooKeeperOffsetStore, "_put", putting)
    recreate(world)
    world.run_for(2.0)
    if not is_late:
        assert stored(world) == [0, 0, 0, 0]
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    # Garbage is noticed by the first commit, and overwritten by the second.
    world.run_for(11.0)
    assert stored(world) == [3, 3, 3, 3]


def test_an_offset_that_is_set_in_the_new_log_before_its_owner_has_started_over_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is younger than the topic, and not this member's: an operator means the new log."""
    (holding,) = world.consumers
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    world.run_for(0.1)
    (partition, *_) = world.partitions()
    no_broker_knows(monkeypatch)
    recreate(world)
    world.run_for(1.0)
    world.operator.set(world.layout.offset(partition), b"2")
    world.run_for(0.1)
    monkeypatch.undo()
    world.run_for(6.0)
    assert stored(world) == [0, 0, 0, 2]
    assert holding.finished(partition) == (2, 2)


def test_an_offset_that_is_set_in_the_new_log_may_be_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has followed it instead of starting over, and retention deletes it: seed 460356246064."""
    (partition, *_) = world.partitions()
    with monkeypatch.context() as patch:
        no_broker_knows(patch)
        recreate(world)
        world.run_for(0.5)
        world.operator.set(world.layout.offset(partition), b"17")
    world.run_for(10.0)
    world.retain(partition, 1_500)
    world.run_for(5.0)
    assert stored(world) == [0, 0, 0, 1_500]


def test_an_offset_that_is_set_in_the_new_log_is_not_overwritten_by_a_start_that_is_sent_again(world: World) -> None:
    """The start was stored and its answer lost; the operator was next: seed 999201219745."""
    (holding,) = world.consumers
    (partition, *_) = world.partitions()
    path = world.layout.offset(partition)
    recreate(world)
    holding.process.lose("reply")
    truth, before = world.ensemble.truth, world.ensemble.truth.znodes[path].version
    world.timeline.run_until(lambda: truth.znodes[path].version > before, 5.0)
    assert truth.znodes[path].data == b"0"
    world.operator.set_async(path, b"1719")
    world.run_for(6.0)
    assert holding.metrics.total("zookeeper_transactions_unknown") == 1
    assert stored(world) == [0, 0, 0, 1_719]


def test_an_offset_that_is_set_while_its_owner_starts_over_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has just read the offset that it replaces: its write is refused."""
    (partition, *_) = world.partitions()
    put = ZooKeeperOffsetStore._put

    async def putting(*arguments: Any) -> Any:
        monkeypatch.undo()
        world.operator.set_async(world.layout.offset(partition), b"2")
        await asyncio.sleep(0.2)
        return await put(*arguments)

    monkeypatch.setattr(ZooKeeperOffsetStore, "_put", putting)
    recreate(world)
    world.run_for(2.0)
    assert stored(world) == [0, 0, 0, 2]


@pytest.mark.parametrize("leaves", [False, True])
def test_an_offset_that_was_adopted_before_its_owner_heard_of_the_new_topic_stays(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """It is younger than the topic: the owner looked at offsets before topics (seed 814000004605)."""
    with at_rest(members=1, topics=(1,), reset="earliest", reconcile_interval_ms=4_000) as world:
        (holding,) = world.consumers
        (partition,) = world.partitions()
        no_broker_knows(monkeypatch)
        holding.process.loses_events = lambda path: path == topic_path("t0")
        recreate(world)
        world.operator.set(world.layout.offset(partition), b"2")
        world.timeline.run_until(lambda: holding.finished(partition) == (2, 2), 6.0)
        if leaves:
            world.run_for(1.0)
            world.close(20.0)
        monkeypatch.undo()
        world.run_for(10.0)
        assert world.ledger.stored(partition) == 2


def test_an_offset_that_was_set_before_the_topic_was_created_again_is_of_the_log_before(world: World) -> None:
    """Its owner has not heard of it, and starts over all the same."""
    (holding,) = world.consumers
    (partition, *_) = world.partitions()
    holding.process.block(1.0)
    world.operator.set(world.layout.offset(partition), b"1719")
    recreate(world)
    world.run_for(3.0)
    assert stored(world) == [0, 0, 0, 0]


def test_a_commit_of_the_old_log_that_its_caller_has_left_is_overwritten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored right after the topic was created again: younger than that, and this member's own."""
    (holding,) = world.consumers
    process_some(world, holding)
    recreated = recreate_within_a_write(world, monkeypatch)
    commit = holding.process.start(holding.member.commit_on_session())
    world.timeline.run_until(lambda: 3 in stored(world), 5.0)
    holding.process.call(commit.cancel)
    world.run_for(12.0)
    assert recreated
    assert commit.cancelled()
    assert stored(world) == [0, 0, 0, 0]


def test_a_topic_that_is_only_deleted_while_it_is_claimed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no new log as long as nobody creates it."""
    (holding,) = world.consumers
    for _ in range(4):
        holding.work(0.0, 3, 0.01)
    world.run_for(0.1)
    partitions = world.partitions()
    world.close(20.0)
    complete = ZooKeeperOffsetStore._find_or_create

    async def completing(store: ZooKeeperOffsetStore, topic: str, *rest: Any, **options: Any) -> Any:
        monkeypatch.undo()
        world.operator.delete_async(topic_path("t0"))
        await asyncio.sleep(0.3)
        return await complete(store, topic, *rest, **options)

    monkeypatch.setattr(ZooKeeperOffsetStore, "_find_or_create", completing)
    late = world.join(world.topics)
    world.run_for(6.0)
    znodes = world.ensemble.truth.znodes
    assert [int(znodes[world.layout.offset(partition)].data) for partition in partitions] == [3, 3, 3, 3]
    world.operator.create(topic_path("t0"), world.topic_data("t0"))
    world.run_for(6.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]
    assert set(late.flowing) == set(partitions)


def test_a_claim_whose_offsets_were_written_back_in_part_starts_over_when_brokers_know_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written just after the topic was created again is newer than that, and of the old log all the same."""
    partitions = 2 * MOST_OPERATIONS
    with at_rest(members=1, topics=(partitions,), reset="earliest") as world:
        (holding,) = world.consumers
        for _ in range(partitions):
            holding.work(0.0, 3, 0.001)
        world.run_for(0.1)
        world.close(20.0)
        recreated = recreate_within_a_write(world, monkeypatch)
        world.join(world.topics)
        world.run_for(15.0)
        world.settle(20.0)
        assert recreated
        assert set(stored(world)) == {0}


def test_a_connection_that_breaks_at_the_last_moment_is_waited_for_before_it_is_asked_what_to_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created again during the outage; kazoo's thread shuts the gate when it likes."""
    (holding,) = world.consumers
    process_some(world, holding)
    renew, gates = FencedWriter._renew, list[DeliveryGate]()

    def renewing(*arguments: Any) -> bool:
        is_same = renew(*arguments)
        if not gates:
            gates.append(holding.member._member_session.session.gate)  # type: ignore[union-attr]
            gates[0].suspended = True
        return is_same

    no_broker_knows(monkeypatch)
    monkeypatch.setattr(FencedWriter, "_renew", staticmethod(renewing))
    commit = holding.process.start(holding.member.commit_on_session())
    world.run_for(0.1)
    recreate(world)
    world.run_for(0.1)
    gates[0].suspended = False
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    assert stored(world) == [0, 0, 0, 0]


def test_a_story_ends_with_a_new_topic_also_where_the_old_one_is_not_deleted_yet(world: World) -> None:
    """Seeds 689370254007 and 689370255003, which ended with a topic that was gone for ever."""
    before = world.ensemble.truth.znodes[topic_path("t0")].czxid
    world.recreate_topic("t0", 20.0, 0.0)
    world.heal()
    world.settle(20.0)
    assert world.ensemble.truth.znodes[topic_path("t0")].czxid > before
    assert stored(world) == [0, 0, 0, 0]
