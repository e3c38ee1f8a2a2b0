"""Somebody deletes or garbles offsets, or creates a topic again, under a running group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.partition_handler import LogOffsets
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.layout import topic_path
from kiel_groups.model import TopicPartition
from tests.sim.test_interrupted_commits import process_some
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

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
    commit = consumer.process.start(consumer.member.commit_on_session())
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

        monkeypatch.setattr(consumer.member._member_session.owned_partitions._store._first, "_look_up", delete_and_ask)  # type: ignore[union-attr]
        monkeypatch.setattr(consumer, "log_offsets", delete_and_ask)
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


@pytest.mark.parametrize("is_known", [True, False])
def test_garbage_is_written_over_by_who_knows_better(world: World, is_known: bool) -> None:
    """By the next commit, or by the release of who has not even seen it: the successor starts where this one was."""
    leaving, staying = world.consumers
    process_some(world, leaving)
    commit = leaving.process.start(leaving.member.commit_on_session())
    world.timeline.run_until(commit.done, 5.0)
    (partition,) = commit.result()
    world.operator.set(world.layout.offset(partition), b"garbage")
    if is_known:
        world.run_for(2 * RECONCILE_INTERVAL_MS / 1000)
        assert int(world.ensemble.truth.znodes[world.layout.offset(partition)].data) == 3
        assert leaving.metrics.total("offsets_unreadable") == 1
    leaving.leave()
    world.run_for(5.0)
    assert int(world.ensemble.truth.znodes[world.layout.offset(partition)].data) == 3
    world.settle(20.0)
    state = staying.finished(partition)
    assert state is not None
    assert state[1] == 3


def test_who_hears_late_of_a_new_log_starts_over_only_where_it_was_in_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has claimed since from who had heard of it is in the new log already: seed 924729945908."""
    hint, slow = TopicIncarnations._hint, list[TopicIncarnations]()

    def hint_later(watch: TopicIncarnations, *topics: str) -> None:
        if watch in slow:
            asyncio.get_running_loop().call_later(8.0, hint, watch, *topics)
        else:
            hint(watch, *topics)

    monkeypatch.setattr(TopicIncarnations, "_hint", hint_later)
    with at_rest(members=2, topics=(4,), reset="earliest") as world:
        late, prompt = world.consumers
        before = set(prompt.flowing)
        slow.append(late.member._member_session.owned_partitions._topics)  # type: ignore[union-attr]
        world.operator.delete(topic_path("t0"))
        world.operator.create(topic_path("t0"), world.topic_data("t0"))
        world.run_for(0.5)
        process_some(world, prompt)
        prompt.leave()
        world.run_for(6.0)
        assert set(late.flowing) > before, "claimed, and it does not know yet"
        world.run_for(8.0)
        stored = {p: int(world.ensemble.truth.znodes[world.layout.offset(p)].data) for p in world.partitions()}
        assert sorted(stored[partition] for partition in before) == [0, 3]


def test_who_claims_leaves_the_offsets_of_others_to_them() -> None:
    """All are gone: what nobody knows any more is read from its beginning, what somebody holds goes on where he is."""
    with at_rest(members=3, topics=(6,), reset="latest") as world:
        holding, staying, leaving = world.consumers
        world.logs.end = 2_000
        process_some(world, holding)
        held, lost = set(holding.flowing) | set(staying.flowing), set(leaving.flowing)
        delete_offsets(world)
        leaving.kill()
        world.run_for(15.0)
        world.settle(20.0)
        process_some(world, staying)
        world.close(20.0)
        stored = {p: int(world.ensemble.truth.znodes[world.layout.offset(p)].data) for p in held | lost}
        assert {stored[partition] for partition in lost} <= {0, 3}
        assert {stored[partition] for partition in held} <= {1_000, 1_003}
        assert 1_003 in {stored[partition] for partition in held}


def test_offsets_that_go_while_a_claimant_looks_at_them_are_left_to_their_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It must not take an empty folder together with a time from before that was emptied."""
    with at_rest(members=2, topics=(6,), reset="latest") as world:
        late = world.join(world.topics)
        world.settle(20.0)
        world.run_for(1.0)
        process_some(world, late)
        held, folder, looks = set(late.flowing), world.layout.topic_offsets("t0"), list[str]()

        for name in ("children", "get"):
            look = getattr(Session, name)

            async def look_and_delete(session: Session, path: str, watcher: Any = None, look: Any = look) -> Any:
                if path == folder:
                    looks.append(path)
                    if len(looks) == 2:
                        for number in world.ensemble.truth.children(folder):
                            world.operator.delete_async(f"{folder}/{number}")
                        await asyncio.sleep(1.0)
                return await look(session, path, watcher)

            monkeypatch.setattr(Session, name, look_and_delete)
        world.set_partitions("t0", 7)
        world.run_for(5.0)
        world.settle(20.0)
        world.close(20.0)
        assert len(looks) >= 2
        stored = {p: int(world.ensemble.truth.znodes[world.layout.offset(p)].data) for p in held}
        assert sorted(stored.values()) == [1_000, 1_003]
