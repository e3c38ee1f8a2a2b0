"""Offsets that are deleted or garbled, and topics that are created again, while the group runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Session
from tests.sim.commits import commit, process_some
from tests.sim.topics import create_topic, recreate
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two."""
    with at_rest(members=2, topics=(4,), reset="earliest") as made:
        yield made


def delete_offsets(world: World, topic: str = "t0") -> None:
    """Delete all offsets of a topic with their folder, as zkCli's deleteall or rmr does."""
    folder = world.layout.topic_offsets(topic)
    for name in world.ensemble.tree.children(folder):
        world.operator.delete_async(f"{folder}/{name}")
    world.operator.delete_async(folder)


def restored(world: World) -> int:
    """Return how many times consumers have created an offset folder again."""
    return sum(consumer.metrics.total("offset_folders_restored") for consumer in world.consumers)


def test_a_commit_creates_a_deleted_folder_again(world: World) -> None:
    """A commit creates the deleted folder of a topic's offsets once, and stores the member's offset in it."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = {p for p in consumer.opened if world.history.processed(p) != world.history.stored(p)}
    delete_offsets(world)
    world.run_for(0.1)
    assert commit(world, consumer) == {partition}
    stored = world.ensemble.tree.znodes[world.layout.offset(partition)]
    assert int(stored.data) == world.history.processed(partition) == 3
    assert restored(world) == 1


def test_a_leaving_member_stores_deleted_offsets_again(world: World) -> None:
    """
    A leaving member stores deleted offsets again. The next owner continues at these offsets instead of starting as in a
    new group.
    """
    leaving, _ = world.consumers
    process_some(world, leaving)
    partitions = set(leaving.opened)
    delete_offsets(world)
    world.run_for(0.1)
    leaving.leave()
    world.run_for(5.0)
    assert leaving.closed
    world.settle(20.0)
    znodes = world.ensemble.tree.znodes
    stored = [int(znodes[world.layout.offset(partition)].data) for partition in partitions]
    assert sorted(stored) == [0, 3]
    assert restored(world) == 1
    assert sum(consumer.metrics.total("commits_superseded") for consumer in world.consumers) == 0


@pytest.mark.parametrize("is_new", [True, False])
def test_first_offsets_are_stored_although_their_folder_is_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """
    A member stores the first offsets of a new or recreated topic even if their folder is deleted while the member looks
    up log offsets on brokers.
    """
    asked = []

    async def delete(topic: str) -> None:
        asked.append(topic)
        if len(asked) == 1:
            delete_offsets(world, topic)
            await asyncio.sleep(0.1)

    for consumer in world.consumers:
        log_offsets = consumer.log_offsets

        async def delete_and_ask(partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
            await delete(min(partitions).topic)
            return await log_offsets(partitions, policy)  # noqa: B023 -- all answer the same

        monkeypatch.setattr(consumer, "log_offsets", delete_and_ask)
    if is_new:
        create_topic(world, "new", 2)
        for consumer in world.consumers:
            consumer.subscribe(["t0", "new"])
    else:
        recreate(world)
    world.run_for(10.0)
    world.settle(10.0)
    topic = "new" if is_new else "t0"
    stored = world.ensemble.tree.children(world.layout.topic_offsets(topic))
    assert sorted(map(int, stored)) == list(range(world.topics[topic]))
    assert asked[0] == topic
    assert len(asked) < 10


@pytest.mark.parametrize("is_known", [True, False])
def test_an_owner_overwrites_garbage_with_its_offset(world: World, is_known: bool) -> None:
    """
    The owner overwrites a garbled offset with its next commit, or with the release if it has not noticed the garbage.
    The next owner continues at the offset.
    """
    leaving, staying = world.consumers
    process_some(world, leaving)
    (partition,) = commit(world, leaving)
    world.operator.set(world.layout.offset(partition), b"garbage")
    if is_known:
        world.run_for(2 * RECONCILE_INTERVAL_MS / 1000)
        assert int(world.ensemble.tree.znodes[world.layout.offset(partition)].data) == 3
        assert leaving.metrics.total("offsets_unreadable") == 1
    leaving.leave()
    world.run_for(5.0)
    assert int(world.ensemble.tree.znodes[world.layout.offset(partition)].data) == 3
    world.settle(20.0)
    state = staying.finished(partition)
    assert state is not None
    assert state[1] == 3


def test_a_member_that_is_notified_late_resets_only_partitions_of_the_old_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A member that is notified late of a recreated topic keeps the offsets of partitions that another member has reset to
    the new log already, and that it claims before the notification (seed 924729945908).
    """
    hint, slow = TopicIncarnations._hint, list[TopicIncarnations]()

    def hint_later(watch: TopicIncarnations, *topics: str) -> None:
        if watch in slow:
            asyncio.get_running_loop().call_later(8.0, hint, watch, *topics)
        else:
            hint(watch, *topics)

    monkeypatch.setattr(TopicIncarnations, "_hint", hint_later)
    with at_rest(members=2, topics=(4,), reset="earliest") as world:
        late, prompt = world.consumers
        before = set(prompt.opened)
        slow.append(late.member._member_session.role.offsets.topics)  # type: ignore[union-attr]
        recreate(world)
        world.run_for(0.5)
        process_some(world, prompt)
        prompt.leave()
        world.run_for(6.0)
        assert set(late.opened) > before, "claimed before the late member is notified"
        world.run_for(8.0)
        stored = {p: int(world.ensemble.tree.znodes[world.layout.offset(p)].data) for p in world.partitions()}
        assert sorted(stored[partition] for partition in before) == [0, 3]


def test_a_claim_does_not_restore_offsets_of_other_owners() -> None:
    """
    After all offsets are deleted, partitions without an owner are read from their start, and owners keep their
    positions.
    """
    with at_rest(members=3, topics=(6,), reset="latest") as world:
        owner, staying, leaving = world.consumers
        world.logs.end = 2_000
        process_some(world, owner)
        owned, lost = set(owner.opened) | set(staying.opened), set(leaving.opened)
        delete_offsets(world)
        leaving.kill()
        world.run_for(15.0)
        world.settle(20.0)
        process_some(world, staying)
        world.close(20.0)
        stored = {p: int(world.ensemble.tree.znodes[world.layout.offset(p)].data) for p in owned | lost}
        assert {stored[partition] for partition in lost} <= {0, 3}
        assert {stored[partition] for partition in owned} <= {1_000, 1_003}
        assert 1_003 in {stored[partition] for partition in owned}


def test_offsets_that_are_deleted_during_a_claim_are_left_to_their_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A claiming member that reads an emptied folder does not conclude that the topic has no offsets of other owners. The
    owners store their offsets again.
    """
    # With this seed, the partition with the finished records is not moved while its offset is deleted.
    with at_rest(members=2, topics=(6,), reset="latest", seed=2) as world:
        late = world.join(world.topics)
        world.settle(20.0)
        world.run_for(1.0)
        process_some(world, late)
        owned, folder, reads = set(late.opened), world.layout.topic_offsets("t0"), list[str]()

        for name in ("children", "get"):
            read = getattr(Session, name)

            async def read_and_delete(session: Session, path: str, watcher: Any = None, read: Any = read) -> Any:
                if path == folder:
                    reads.append(path)
                    if len(reads) == 2:
                        for number in world.ensemble.tree.children(folder):
                            world.operator.delete_async(f"{folder}/{number}")
                        # The offsets are deleted by then, and the owners have not restored them yet.
                        await asyncio.sleep(0.05)
                return await read(session, path, watcher)

            monkeypatch.setattr(Session, name, read_and_delete)
        world.set_partitions("t0", 7)
        world.run_for(5.0)
        world.settle(20.0)
        world.close(20.0)
        assert len(reads) >= 2
        stored = {p: int(world.ensemble.tree.znodes[world.layout.offset(p)].data) for p in owned}
        assert sorted(stored.values()) == [1_000, 1_003]
