"""What a member does as its slice says, and what it finds without being told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.group.znodes.layout import topic_path
from tests.sim.test_closing_sessions import cut_off_for
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim

#: Enough for a watch, and less than the shortest time to a look without one.
SOON_S = 5.0
#: Enough for a look without any watch.
LATE_S = 1.5 * RECONCILE_INTERVAL_MS / 1000


@pytest.fixture
def world() -> Iterator[World]:
    """A group of two at rest."""
    with at_rest(members=2, topics=(4,)) as made:
        yield made


def slice_path(world: World) -> str:
    """Where the first consumer's slice is."""
    return world.layout.assignment(world.consumers[0].member.member_id or "")


def changed(world: World, **fields: object) -> bytes:
    """That slice, with other fields."""
    return json.dumps(json.loads(world.ensemble.truth.znodes[slice_path(world)].data) | fields).encode()


@pytest.mark.parametrize("what", ["gone", "garbage", "for another member"])
def test_a_slice_that_says_nothing_takes_nothing_away(world: World, what: str) -> None:
    """What is held stays, and flows on."""
    (consumer, other), path = world.consumers, slice_path(world)
    held = set(consumer.flowing)
    if what == "gone":
        world.operator.delete(path)
    else:
        garbage = b"\xff" if what == "garbage" else changed(world, **{"for": other.member.member_id, "t0": []})
        world.operator.set(path, garbage)
    world.run_for(SOON_S)
    assert held
    assert set(consumer.flowing) == held
    assert consumer.failure is None


def test_a_slice_of_a_lower_generation_is_followed_at_once(world: World) -> None:
    """After pointer and slices were deleted by hand the next ones count from the beginning."""
    consumer = world.consumers[0]
    world.operator.set(slice_path(world), changed(world, generation=0, partitions={}))
    world.run_for(SOON_S)
    assert not consumer.flowing


def test_what_is_released_is_claimed_at_once(world: World) -> None:
    """Who waits for an owner znode, while the application of its owner is busy, watches it."""
    for consumer in world.consumers:
        for _ in list(consumer.flowing):
            consumer.work(0.0, 1, SOON_S / 2)
    newcomer = world.join(world.topics)
    world.run_for(SOON_S)
    assert newcomer.flowing


def test_a_reset_while_nothing_is_committed_is_found(world: World) -> None:
    """No watch tells of it: a regular look at the versions does."""
    consumer = world.consumers[0]
    partition = min(consumer.flowing)
    world.operator.set(world.layout.offset(partition), b"7")
    world.run_for(LATE_S)
    version_and_offset = consumer.finished(partition)
    assert version_and_offset is not None
    assert version_and_offset[1] == 7


def test_hints_that_keep_coming_do_not_put_the_regular_look_off(world: World) -> None:
    """A slice that changes twice in every interval is followed each time, and so is an operator's reset meanwhile."""
    consumer, path = world.consumers[0], slice_path(world)
    partition = min(consumer.flowing)
    world.operator.set(world.layout.offset(partition), b"7")
    generation = json.loads(world.ensemble.truth.znodes[path].data)["generation"]
    for number in range(4):
        world.operator.set(path, changed(world, generation=generation + number))
        world.run_for(RECONCILE_INTERVAL_MS / 2000)
    version_and_offset = consumer.finished(partition)
    assert version_and_offset is not None
    assert version_and_offset[1] == 7


def test_hints_that_come_during_each_read_do_not_put_the_regular_look_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice changes faster than the member reads it: there is a hint to follow at every moment."""
    consumer, path, get = world.consumers[0], slice_path(world), Session.get
    partition = min(consumer.flowing)

    async def overtaken(session: Session, asked: str, watcher: Any = None) -> Any:
        node = await get(session, asked, watcher)
        if asked == path and watcher is not None:
            await asyncio.sleep(1.0)
            watcher()
        return node

    monkeypatch.setattr(Session, "get", overtaken)
    world.operator.set(path, changed(world))
    world.run_for(SOON_S)
    world.operator.set(world.layout.offset(partition), b"7")
    world.run_for(LATE_S)
    version_and_offset = consumer.finished(partition)
    assert version_and_offset is not None
    assert version_and_offset[1] == 7


def test_a_claim_that_somebody_deleted_is_found(world: World) -> None:
    """No watch tells of it either; it is lost, and claimed anew."""
    consumer = world.consumers[0]
    world.operator.delete(world.layout.owner(min(consumer.flowing)))
    world.run_for(LATE_S)
    assert consumer.metrics.total("partitions_lost") == 1
    world.settle(60.0)


def test_a_topic_that_is_created_again_is_read_from_its_beginning(world: World) -> None:
    """Its owners stay; what they know of the old log means nothing in the new one."""
    for consumer in world.consumers:
        for _ in list(consumer.flowing):
            consumer.work(0.0, 3, 0.01)
    world.run_for(LATE_S)
    assert [world.ledger.stored(partition) for partition in world.partitions()] != [0] * 4
    world.operator.delete(topic_path("t0"))
    world.operator.create(topic_path("t0"), world.topic_data("t0"))
    world.run_for(SOON_S)
    assert [world.ledger.stored(partition) for partition in world.partitions()] == [0] * 4


def test_leaders_are_looked_at_in_each_interval(world: World) -> None:
    """A broker that does not know that it was deposed says nothing: only ZooKeeper names its successor."""
    before = [consumer.looks_at_leaders for consumer in world.consumers]
    world.run_for(LATE_S)
    assert all(consumer.looks_at_leaders > looks for consumer, looks in zip(world.consumers, before, strict=True))


def test_a_place_that_goes_back_to_a_dead_predecessor_is_no_duplicate() -> None:
    """An operator deletes the member znode of a process that was restarted: it joins anew. Seed 450708070177."""
    with at_rest(members=2, topics=(4,), is_static=True) as world:
        killed = next(consumer for consumer in world.consumers if not consumer.member.leads)
        killed.kill()
        restarted = world.join(world.topics, killed.instance_id)
        world.run_for(1.0)
        first_id = restarted.member.member_id
        assert first_id is not None
        world.operator.delete_async(world.layout.member(first_id))
        restarted.process.reset()
        cut_off_for(world, restarted, 1.5)
        world.run_for(SOON_S)
        world.settle(60.0)
        assert restarted.failure is None
        assert restarted.member.member_id not in (None, first_id)
        assert len(restarted.flowing) == 2
