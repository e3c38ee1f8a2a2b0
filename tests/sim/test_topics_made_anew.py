"""A topic is deleted and created again: offsets in the log that is gone mean nothing in the new one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from kiel_groups.errors import BrokerError
from kiel_groups.group.layout import topic_path
from kiel_groups.model import TopicPartition
from tests.sim.consumer import Consumer
from tests.sim.test_interrupted_commits import process_some
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


def no_broker_knows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers hear of a new topic after ZooKeeper does."""

    async def refuse(topic: str, numbers: Sequence[int], policy: str) -> Mapping[int, int]:
        raise BrokerError(f"no leader of {topic}")

    for consumer in world.consumers:
        monkeypatch.setattr(consumer.member._membership.holding._store, "_log_offsets", refuse)  # type: ignore[union-attr]


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
    no_broker_knows(world, monkeypatch)
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
    no_broker_knows(world, monkeypatch)
    process_some(world, holding)
    recreate(world)
    world.run_for(1.0)
    process_some(world, holding)
    commit = holding.process.start(holding.member.commit())
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    holding.kill()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]


def test_an_offset_that_is_deleted_with_its_topic_is_not_restored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor garbage in its place written over: who leaves knows only where it was in the old log."""
    (holding,) = world.consumers
    no_broker_knows(world, monkeypatch)
    process_some(world, holding)
    recreate(world)
    world.run_for(1.0)
    gone, garbled, *_ = world.partitions()
    world.operator.delete(world.layout.offset(gone))
    world.operator.set(world.layout.offset(garbled), b"garbage")
    world.close(20.0)
    assert world.layout.offset(gone) not in world.ensemble.truth.znodes
    assert world.ensemble.truth.znodes[world.layout.offset(garbled)].data == b"garbage"
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
    commit = holding.process.start(holding.member.commit())
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == frozenset()
    holding.kill()
    world.join(world.topics)
    world.run_for(12.0)
    world.settle(20.0)
    assert stored(world) == [0, 0, 0, 0]
