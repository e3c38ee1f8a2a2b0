"""
Cases that seeds of the simulator have found, each reproduced directly.

A seed reproduces a case only until the product changes: a single additional request changes the whole run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.model import TopicPartition
from tests.sim.commits import commit
from tests.sim.operations import perform
from tests.sim.scenario import Event, make_scenario
from tests.sim.topics import create_topic
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of one, which owns all partitions of two topics."""
    with at_rest(members=1, topics=(2, 2), reset="earliest") as made:
        yield made


def test_a_reset_to_the_offset_of_the_next_commit_is_a_reset(world: World) -> None:
    """
    If an operator sets the offset that the next commit would store, the member still treats it as a reset: it stops
    counting its records in flight.
    """
    (consumer,) = world.consumers
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)
    (partition,) = (p for p in world.partitions() if world.history.processed(p) == 3)
    world.operator.set(world.layout.offset(partition), b"3")
    consumer.work(0.0, 2, 5.0)
    assert commit(world, consumer) == frozenset()
    assert consumer.metrics.total("commits_superseded") == 1
    assert not consumer.in_flight


def test_a_subscription_is_written_again_when_it_is_changed_back_while_the_answer_is_lost(world: World) -> None:
    """
    If the answer to a changed subscription is lost and the subscription is changed back, the member writes it again.
    ZooKeeper may have executed the change in between.
    """
    (consumer,) = world.consumers
    before = consumer.topics
    consumer.process.lose("reply")
    consumer.subscribe(["t0"])
    world.run_for(0.001)
    consumer.subscribe(before)
    world.run_for(10.0)
    member = world.ensemble.tree.znodes[world.layout.member(consumer.member.member_id or "")]
    assert set(json.loads(member.data)["subscription"]) == before
    world.settle(60.0)


def test_a_topic_is_created_again_while_its_first_positions_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    If a topic is created again while its first positions are read, these positions belong to the old log, so the group
    resets the topic to its new log.
    """
    world = World(
        replace(
            make_scenario(1),
            members=1,
            topics=(3,),
            reset="latest",
            is_static=False,
            store="zookeeper",
            events=(),
            leaders_after_s=(),
        )
    )
    (consumer,) = world.consumers
    ask = consumer.log_offsets

    async def answer_late(partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        offsets = await ask(partitions, policy)
        if policy == "latest":
            perform(world, Event(0.0, "recreate_topic", 0, 0.0, 0.0))
            await asyncio.sleep(0.1)
        return offsets

    monkeypatch.setattr(consumer, "log_offsets", answer_late)
    world.settle(60.0)
    world.run_for(1.0)
    assert [world.history.stored(partition) for partition in world.partitions()] == [0, 0, 0]
    consumer.kill()


def test_a_partition_that_is_new_to_the_group_starts_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A partition starts at its beginning if other partitions have offsets when its owner stores the first offset, even if
    the owner first read none (seed 7004691).
    """
    with at_rest(members=1, topics=(2,), reset="latest") as world:
        (consumer,) = world.consumers
        ask, policies = consumer.log_offsets, list[str]()

        async def ask_late(partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
            policies.append(policy)
            if len(policies) == 1:
                for number in range(2):
                    world.operator.create_async(f"{world.layout.topic_offsets('new')}/{number}", b"1000")
                await asyncio.sleep(0.1)
            return await ask(partitions, policy)

        monkeypatch.setattr(consumer, "log_offsets", ask_late)
        create_topic(world, "new", 3)
        consumer.subscribe(["t0", "new"])
        world.run_for(5.0)
        world.settle(5.0)
        stored = [world.history.stored(TopicPartition("new", number)) for number in range(3)]
        assert stored == [1_000, 1_000, 0]
        assert policies == ["latest", "earliest"]


def test_a_reset_may_choose_an_offset_that_was_processed_before_the_offsets_were_deleted() -> None:
    """
    An operator deletes the offsets, and the next owner of a partition begins behind what was processed. If the log lost
    its position, the chosen one is a reset, although the application commits, and has committed it before (seed
    1001708320323).
    """
    with at_rest(members=2, topics=(2,), reset="latest", autocommit=False) as world:
        dead, owner = world.consumers
        (partition,) = dead.opened
        dead.kill()
        perform(world, Event(0.0, "delete_offsets", 0, 0.0, 0.0))
        world.run_for(15.0)
        assert world.history.stored(partition) == 0
        owner._deliver([partition], 2, 0.01)
        world.run_for(0.1)
        commit(world, owner)
        owner._deliver([partition], 2, 5.0)
        world.retain(partition, 500)
        world.run_for(1.0)
        assert owner.has_pending_reset(partition)
        owner.leave()
        world.run_for(10.0)
        assert world.history.stored(partition) == world.logs[partition].end
