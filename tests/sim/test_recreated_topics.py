"""Topics that are deleted and created again: offsets of the old log are not used in the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS
from kiel_groups.members.offsets.claim_opening import ClaimOpener
from kiel_groups.members.offsets.zookeeper_store import OffsetZnodes
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from tests.sim.commits import commit, process_all, process_some
from tests.sim.consumer import Consumer
from tests.sim.topics import no_broker_knows, recreate, recreate_within_a_write, stored_offsets
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one, which owns all partitions of a topic."""
    with at_rest(members=1, topics=(4,), reset="earliest") as made:
        yield made


def replace_owner(world: World, consumer: Consumer) -> None:
    """Kill a consumer, and wait until a new one owns its partitions."""
    consumer.kill()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)


def revoke_in_flight(world: World, consumer: Consumer) -> TopicPartition:
    """Have a member join while records of all partitions are in flight, and return a revoked partition."""
    for _ in range(4):
        consumer.work(0.0, 3, 10.0)
    world.join(world.topics)
    world.run_for(2.0)
    (partition, *_) = sorted(consumer.in_flight.keys() - consumer.opened.keys())
    return partition


def test_a_draining_partition_is_reset(world: World) -> None:
    """Its records in flight no longer count, and the next owner starts at the start of the new log."""
    (consumer,) = world.consumers
    partition = revoke_in_flight(world, consumer)
    recreate(world)
    world.run_for(2.0)
    assert partition not in consumer.in_flight, "its drain waits for no record that counts"
    world.settle(20.0)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_release_before_brokers_know_the_topic_does_not_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner finds an offset that is older than the topic, and starts at the start of the new log."""
    (consumer,) = world.consumers
    revoke_in_flight(world, consumer)
    no_broker_knows(monkeypatch)
    recreate(world)
    world.run_for(15.0)
    assert not consumer.in_flight
    world.close(20.0)
    monkeypatch.undo()
    world.join(world.topics)
    world.settle(20.0)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_nothing_is_committed_before_brokers_know_the_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the member is killed before, it leaves no offset that looks like one of the new log."""
    (consumer,) = world.consumers
    no_broker_knows(monkeypatch)
    process_some(world, consumer)
    recreate(world)
    # Each partition counts at each try.
    world.timeline.run_until(lambda: consumer.metrics.total("recreated_topic_resets_delayed") >= 4, 5.0)
    process_some(world, consumer)
    assert commit(world, consumer) == frozenset()
    monkeypatch.undo()
    replace_owner(world, consumer)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_an_offset_that_is_deleted_with_its_topic_is_not_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaving member that knows only the old log restores no deleted offset, and overwrites no garbage."""
    (consumer,) = world.consumers
    no_broker_knows(monkeypatch)
    process_some(world, consumer)
    recreate(world)
    world.run_for(1.0)
    gone, garbled, *_ = world.partitions()
    world.operator.delete(world.layout.offset(gone))
    world.operator.set(world.layout.offset(garbled), b"garbage")
    world.close(20.0)
    assert world.layout.offset(gone) not in world.ensemble.tree.znodes
    assert world.ensemble.tree.znodes[world.layout.offset(garbled)].data == b"garbage"
    monkeypatch.undo()
    world.join(world.topics)
    world.settle(20.0)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_blocked_member_is_notified_of_the_new_topic_before_it_releases() -> None:
    """A partition that is revoked during a block is not released at an old offset (seed 658516861909)."""
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
        assert stored_offsets(world) == [0] * 6


def test_a_blocked_member_is_notified_of_the_new_topic_before_it_commits(world: World) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.block(2.0)
    recreate(world)
    world.run_for(1.0)
    assert commit(world, consumer) == frozenset()
    replace_owner(world, consumer)
    assert stored_offsets(world) == [0, 0, 0, 0]


def recreate_during_an_outage(world: World, consumer: Consumer) -> None:
    """Wait until a member loses a request. Create the topic again while the member reaches no server for 3 s."""
    unknown = consumer.metrics.total("zookeeper_transactions_unknown")
    world.timeline.run_until(lambda: consumer.metrics.total("zookeeper_transactions_unknown") > unknown, 20.0)
    consumer.process.stall()
    recreate(world)
    world.run_for(3.0)
    consumer.process.resume()


def test_a_release_that_is_retried_after_an_outage_does_not_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that was prepared before an outage would leave an offset of the old log to the next owner."""
    (consumer,) = world.consumers
    process_all(world, consumer)
    release, released = OwnerZnodes.release, list[TopicPartition]()

    async def releasing(owner_znodes: OwnerZnodes, partitions: Collection[TopicPartition]) -> Any:
        if not released:
            consumer.process.lose("request")
        released.extend(partitions)
        return await release(owner_znodes, partitions)

    monkeypatch.setattr(OwnerZnodes, "release", releasing)
    world.join(world.topics)
    recreate_during_an_outage(world, consumer)
    world.run_for(1.0)
    world.settle(20.0)
    assert released
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_commit_is_not_retried_after_an_outage_with_a_new_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (consumer,) = world.consumers
    process_some(world, consumer)
    consumer.process.lose("request")
    committing = consumer.process.start(consumer.member.commit_on_session())
    no_broker_knows(monkeypatch)
    recreate_during_an_outage(world, consumer)
    world.timeline.run_until(committing.done, 5.0)
    assert committing.result() == frozenset()
    monkeypatch.undo()
    replace_owner(world, consumer)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_claim_that_is_retried_after_an_outage_does_not_rewrite_old_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewritten offsets would be newer than the topic, so the next owner would use them in the new log."""
    (consumer,) = world.consumers
    process_all(world, consumer)
    world.close(20.0)
    joined = world.join(world.topics)
    open_claims, opened = ClaimOpener.open, list[str]()

    async def opening(opener: ClaimOpener, topic: str, partitions: Sequence[TopicPartition]) -> Any:
        if not opened:
            joined.process.lose("request")
        opened.append(topic)
        return await open_claims(opener, topic, partitions)

    monkeypatch.setattr(ClaimOpener, "open", opening)
    no_broker_knows(monkeypatch)
    recreate_during_an_outage(world, joined)
    world.run_for(3.0)
    monkeypatch.undo()
    replace_owner(world, joined)
    assert stored_offsets(world) == [0, 0, 0, 0]


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_owner_resets_a_partition_although_its_offset_is_damaged_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, is_deleted: bool, is_late: bool
) -> None:
    """If the offset is damaged meanwhile, the owner still stores the start of the new log, and later commits work."""
    (consumer,) = world.consumers
    process_all(world, consumer)
    (partition, *_) = world.partitions()
    path, put = world.layout.offset(partition), OffsetZnodes.put

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

    monkeypatch.setattr(OffsetZnodes, "put", putting)
    recreate(world)
    world.run_for(2.0)
    if not is_late:
        assert stored_offsets(world) == [0, 0, 0, 0]
    for _ in range(4):
        consumer.work(0.0, 3, 0.01)
    # Garbage is noticed by the first commit, and overwritten by the second.
    world.run_for(11.0)
    assert stored_offsets(world) == [3, 3, 3, 3]


def test_an_offset_that_is_set_before_the_reset_to_the_new_log_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner follows an offset that is newer than the topic and not its own: the operator means the new log."""
    (consumer,) = world.consumers
    process_all(world, consumer)
    (partition, *_) = world.partitions()
    no_broker_knows(monkeypatch)
    recreate(world)
    world.run_for(1.0)
    world.operator.set(world.layout.offset(partition), b"2")
    world.run_for(0.1)
    monkeypatch.undo()
    world.run_for(6.0)
    assert stored_offsets(world) == [0, 0, 0, 2]
    assert consumer.finished(partition) == (2, 2)


def test_an_offset_that_is_set_in_the_new_log_may_be_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner follows the offset. Then retention deletes that record (seed 460356246064)."""
    (partition, *_) = world.partitions()
    with monkeypatch.context() as patch:
        no_broker_knows(patch)
        recreate(world)
        world.run_for(0.5)
        world.operator.set(world.layout.offset(partition), b"17")
    world.run_for(10.0)
    world.retain(partition, 1_500)
    world.run_for(5.0)
    assert stored_offsets(world) == [0, 0, 0, 1_500]


def test_a_repeated_start_in_the_new_log_does_not_overwrite_an_operators_offset(world: World) -> None:
    """The answer to the first write of the start is lost; then an operator sets an offset (seed 999201219745)."""
    (consumer,) = world.consumers
    (partition, *_) = world.partitions()
    path = world.layout.offset(partition)
    recreate(world)
    consumer.process.lose("reply")
    truth, before = world.ensemble.tree, world.ensemble.tree.znodes[path].version
    world.timeline.run_until(lambda: truth.znodes[path].version > before, 5.0)
    assert truth.znodes[path].data == b"0"
    world.operator.set_async(path, b"1719")
    world.run_for(6.0)
    assert consumer.metrics.total("zookeeper_transactions_unknown") == 1
    assert stored_offsets(world) == [0, 0, 0, 1_719]


def test_an_offset_that_is_set_during_the_reset_to_the_new_log_is_followed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the offset is set after the owner has read the old offset, the owner's write is refused."""
    (partition, *_) = world.partitions()
    put = OffsetZnodes.put

    async def putting(*arguments: Any) -> Any:
        monkeypatch.undo()
        world.operator.set_async(world.layout.offset(partition), b"2")
        await asyncio.sleep(0.2)
        return await put(*arguments)

    monkeypatch.setattr(OffsetZnodes, "put", putting)
    recreate(world)
    world.run_for(2.0)
    assert stored_offsets(world) == [0, 0, 0, 2]


@pytest.mark.parametrize("leaves", [False, True])
def test_an_offset_that_was_adopted_before_its_owner_was_notified_of_the_new_topic_is_kept(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """An adopted offset is newer than the topic. The owner reads offsets before topics (seed 814000004605)."""
    with at_rest(members=1, topics=(1,), reset="earliest", reconcile_interval_ms=4_000) as world:
        (consumer,) = world.consumers
        (partition,) = world.partitions()
        no_broker_knows(monkeypatch)
        consumer.process.loses_events = lambda path: path == topic_path("t0")
        recreate(world)
        world.operator.set(world.layout.offset(partition), b"2")
        world.timeline.run_until(lambda: consumer.finished(partition) == (2, 2), 6.0)
        if leaves:
            world.run_for(1.0)
            world.close(20.0)
        monkeypatch.undo()
        world.run_for(10.0)
        assert world.history.stored(partition) == 2


def test_an_offset_that_was_set_before_the_topic_was_created_again_is_of_the_old_log(world: World) -> None:
    """An owner that was not notified of the offset resets the partition to the start of the new log."""
    (consumer,) = world.consumers
    (partition, *_) = world.partitions()
    consumer.process.block(1.0)
    world.operator.set(world.layout.offset(partition), b"1719")
    recreate(world)
    world.run_for(3.0)
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_an_interrupted_commit_of_the_old_log_is_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is stored after the topic was created again, but the member recognizes its own commit."""
    (consumer,) = world.consumers
    process_some(world, consumer)
    recreated = recreate_within_a_write(world, monkeypatch)
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.timeline.run_until(lambda: 3 in stored_offsets(world), 5.0)
    consumer.process.call(committing.cancel)
    world.run_for(12.0)
    assert recreated
    assert committing.cancelled()
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_partly_opened_claim_is_reset_when_brokers_know_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offsets that the claim has rewritten are newer than the topic, but of the old log."""
    partitions = 2 * MOST_OPERATIONS
    with at_rest(members=1, topics=(partitions,), reset="earliest") as world:
        (consumer,) = world.consumers
        for _ in range(partitions):
            consumer.work(0.0, 3, 0.001)
        world.run_for(0.1)
        world.close(20.0)
        recreated = recreate_within_a_write(world, monkeypatch)
        world.join(world.topics)
        world.run_for(15.0)
        world.settle(20.0)
        assert recreated
        assert set(stored_offsets(world)) == {0}


def test_a_write_waits_for_a_broken_connection_before_it_is_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A commit that was prepared before the topic is created again would be outdated.

    The test suspends the gate in the middle of a write, as kazoo's thread may at any time.
    """
    (consumer,) = world.consumers
    process_some(world, consumer)
    renew, gates = FencedWriter._renew, list[DeliveryGate]()

    def renewing(*arguments: Any) -> bool:
        is_same = renew(*arguments)
        if not gates:
            gates.append(consumer.member._member_session.session.gate)  # type: ignore[union-attr]
            gates[0].suspended = True
        return is_same

    no_broker_knows(monkeypatch)
    monkeypatch.setattr(FencedWriter, "_renew", staticmethod(renewing))
    committing = consumer.process.start(consumer.member.commit_on_session())
    world.run_for(0.1)
    recreate(world)
    world.run_for(0.1)
    gates[0].suspended = False
    world.timeline.run_until(committing.done, 5.0)
    assert committing.result() == frozenset()
    assert stored_offsets(world) == [0, 0, 0, 0]


def test_a_scenario_ends_with_a_new_topic_although_the_old_one_is_not_deleted_yet(world: World) -> None:
    """``heal`` ends the time without the topic early (seeds 689370254007 and 689370255003)."""
    before = world.ensemble.tree.znodes[topic_path("t0")].czxid
    world.recreate_topic("t0", 20.0, 0.0)
    world.heal()
    world.settle(20.0)
    assert world.ensemble.tree.znodes[topic_path("t0")].czxid > before
    assert stored_offsets(world) == [0, 0, 0, 0]
