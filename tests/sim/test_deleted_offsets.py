"""Somebody deletes the offsets of a topic, folder and all, under a running group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pytest

from kiel_groups.group.layout import topic_path
from tests.sim.test_interrupted_commits import process_some
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of two at rest."""
    with at_rest(members=2, topics=(4,), reset="earliest") as made:
        yield made


def delete_offsets(world: World, topic: str = "t0") -> None:
    """As zkCli's deleteall, or rmr, does it."""
    folder = world.layout.topic_offsets(topic)
    for name in world.ensemble.truth.children(folder):
        world.operator.delete_async(f"{folder}/{name}")
    world.operator.delete_async(folder)


def restored(world: World) -> int:
    return sum(consumer.metrics.total("offset_folders_restored") for consumer in world.consumers)


def test_what_is_finished_is_committed_all_the_same(world: World) -> None:
    """The folder is made again, once, and with it the offset that is known here."""
    consumer = world.consumers[0]
    process_some(world, consumer)
    (partition,) = {p for p in consumer.flowing if world.ledger.processed(p) != world.ledger.stored(p)}
    delete_offsets(world)
    world.run_for(0.1)
    commit = consumer.process.start(consumer.member.commit())
    world.timeline.run_until(commit.done, 5.0)
    assert commit.result() == {partition}
    stored = world.ensemble.truth.znodes[world.layout.offset(partition)]
    assert int(stored.data) == world.ledger.processed(partition) == 3
    assert restored(world) == 1


def test_who_leaves_stores_where_it_was(world: World) -> None:
    """Nothing comes again at its successor, who does not start where new groups do."""
    leaving, _ = world.consumers
    process_some(world, leaving)
    partitions = set(leaving.flowing)
    delete_offsets(world)
    world.run_for(0.1)
    leaving.leave()
    world.run_for(5.0)
    assert leaving.closed
    world.settle(20.0)
    znodes = world.ensemble.truth.znodes
    stored = [int(znodes[world.layout.offset(partition)].data) for partition in partitions]
    assert sorted(stored) == [0, 3]
    assert restored(world) == 1
    assert sum(consumer.metrics.total("commits_superseded") for consumer in world.consumers) == 0


@pytest.mark.parametrize("is_new", [True, False])
def test_first_offsets_are_stored_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """Of a new topic, or of one that was created again; the folder goes while brokers are asked for them."""
    asked = []

    for consumer in world.consumers:
        ask = consumer.log_offsets

        async def delete_and_ask(topic: str, numbers: Sequence[int], policy: str) -> Mapping[int, int]:
            asked.append(topic)
            if len(asked) == 1:
                delete_offsets(world, topic)
                await asyncio.sleep(0.1)
            return await ask(topic, numbers, policy)  # noqa: B023 -- all answer the same

        monkeypatch.setattr(consumer, "log_offsets", delete_and_ask)
        monkeypatch.setattr(consumer.member._membership.holding._store, "_log_offsets", delete_and_ask)  # type: ignore[union-attr]
    if is_new:
        world.topics["new"] = 2
        world.operator.create(topic_path("new"), world.topic_data("new"))
        for consumer in world.consumers:
            consumer.subscribe(["t0", "new"])
    else:
        world.operator.delete(topic_path("t0"))
        world.operator.create(topic_path("t0"), world.topic_data("t0"))
    world.run_for(10.0)
    world.settle(10.0)
    topic = "new" if is_new else "t0"
    stored = world.ensemble.truth.children(world.layout.topic_offsets(topic))
    assert sorted(map(int, stored)) == list(range(world.topics[topic]))
    assert asked[0] == topic
    assert len(asked) < 10
