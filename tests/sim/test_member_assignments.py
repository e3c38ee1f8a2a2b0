"""Members follow their assignments, and reconcile to find changes that no watch reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.zookeeper.session import Session
from tests.sim.outages import cut_off_for
from tests.sim.topics import recreate
from tests.sim.world import RECONCILE_INTERVAL_MS, World, at_rest

pytestmark = pytest.mark.sim

#: Enough time for a watch, in seconds; less than the shortest time until a member reconciles.
SOON_S = 5.0
#: Enough time, in seconds, for a member to reconcile without any watch.
LATE_S = 1.5 * RECONCILE_INTERVAL_MS / 1000


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two."""
    with at_rest(members=2, topics=(4,)) as made:
        yield made


def assignment_path(world: World) -> str:
    """Return the path of the first consumer's assignment."""
    return world.layout.assignment(world.consumers[0].member.member_id or "")


def changed(world: World, **fields: object) -> bytes:
    """Return the data of the first consumer's assignment with changed fields."""
    return json.dumps(json.loads(world.ensemble.tree.znodes[assignment_path(world)].data) | fields).encode()


@pytest.mark.parametrize("what", ["gone", "garbage", "for another member"])
def test_an_unknown_assignment_revokes_nothing(world: World, what: str) -> None:
    """A member whose assignment cannot be read keeps its partitions and continues to fetch them."""
    (consumer, other), path = world.consumers, assignment_path(world)
    owned = set(consumer.opened)
    if what == "gone":
        world.operator.delete(path)
    else:
        garbage = b"\xff" if what == "garbage" else changed(world, **{"for": other.member.member_id, "t0": []})
        world.operator.set(path, garbage)
    world.run_for(SOON_S)
    assert owned
    assert set(consumer.opened) == owned
    assert consumer.failure is None


def test_an_assignment_of_a_lower_generation_is_followed_at_once(world: World) -> None:
    """
    A member follows an assignment of a lower generation. Generations start at 1 again if an operator has deleted the
    group state and the assignments.
    """
    consumer = world.consumers[0]
    world.operator.set(assignment_path(world), changed(world, generation=0, partitions={}))
    world.run_for(SOON_S)
    assert not consumer.opened


def test_a_released_partition_is_claimed_at_once(world: World) -> None:
    """
    The next owner claims a partition as soon as it is released, because it watches the owner znode while the current
    owner's application is busy.
    """
    for consumer in world.consumers:
        for _ in list(consumer.opened):
            consumer.work(0.0, 1, SOON_S / 2)
    newcomer = world.join(world.topics)
    world.run_for(SOON_S)
    assert newcomer.opened


def test_a_reset_is_found_while_nothing_is_committed(world: World) -> None:
    """No watch reports an operator's offset. The member compares versions when it reconciles."""
    consumer = world.consumers[0]
    partition = min(consumer.opened)
    world.operator.set(world.layout.offset(partition), b"7")
    world.run_for(LATE_S)
    version_and_offset = consumer.finished(partition)
    assert version_and_offset is not None
    assert version_and_offset[1] == 7


def test_constant_hints_do_not_delay_reconciliation(world: World) -> None:
    """The member still finds an operator's offset if its assignment changes twice in every interval."""
    consumer, path = world.consumers[0], assignment_path(world)
    partition = min(consumer.opened)
    world.operator.set(world.layout.offset(partition), b"7")
    generation = json.loads(world.ensemble.tree.znodes[path].data)["generation"]
    for number in range(4):
        world.operator.set(path, changed(world, generation=generation + number))
        world.run_for(RECONCILE_INTERVAL_MS / 2000)
    version_and_offset = consumer.finished(partition)
    assert version_and_offset is not None
    assert version_and_offset[1] == 7


def test_a_hint_during_each_read_does_not_delay_reconciliation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member still finds an operator's offset if its assignment changes faster than it reads the assignment."""
    consumer, path, get = world.consumers[0], assignment_path(world), Session.get
    partition = min(consumer.opened)

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


def test_a_deleted_claim_is_found(world: World) -> None:
    """
    No watch reports the deletion of a claim. When the member reconciles, it loses the partition and claims it again.
    """
    consumer = world.consumers[0]
    world.operator.delete(world.layout.owner(min(consumer.opened)))
    world.run_for(LATE_S)
    assert consumer.metrics.total("partitions_lost") == 1
    world.settle(60.0)


def test_a_topic_that_is_created_again_is_read_from_its_beginning(world: World) -> None:
    """
    The partitions of a recreated topic keep their owners, which reset their positions to the start of the new log.
    """
    for consumer in world.consumers:
        for _ in list(consumer.opened):
            consumer.work(0.0, 3, 0.01)
    world.run_for(LATE_S)
    assert [world.history.stored(partition) for partition in world.partitions()] != [0] * 4
    recreate(world)
    world.run_for(SOON_S)
    assert [world.history.stored(partition) for partition in world.partitions()] == [0] * 4


def test_partition_leaders_are_checked_in_each_interval(world: World) -> None:
    """
    Members read the partition leaders in ZooKeeper in each interval. A broker that does not know that it lost the
    leadership reports no change.
    """
    before = [consumer.leader_updates for consumer in world.consumers]
    world.run_for(LATE_S)
    assert all(consumer.leader_updates > looks for consumer, looks in zip(world.consumers, before, strict=True))


@pytest.mark.parametrize("outage_s", [1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5])
def test_a_slot_that_returns_to_a_dead_predecessor_is_no_duplicate(outage_s: float) -> None:
    """
    A restarted static member joins again after an operator has deleted its member znode. It does not end as a
    duplicate, although its slot returned to its dead predecessor (seed 450708070177).
    """
    with at_rest(members=2, topics=(4,), is_static=True) as world:
        killed = next(consumer for consumer in world.consumers if not consumer.member.leads)
        killed.kill()
        restarted = world.join(world.topics, killed.instance_id)
        world.run_for(1.0)
        first_id = restarted.member.member_id
        assert first_id is not None
        world.operator.delete_async(world.layout.member(first_id))
        restarted.process.reset()
        cut_off_for(world, restarted, outage_s)
        world.run_for(SOON_S)
        world.settle(60.0)
        assert restarted.failure is None
        assert restarted.member.member_id not in (None, first_id)
        assert len(restarted.opened) == 2
