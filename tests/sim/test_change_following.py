"""Members follow a change without a notification within one reconcile interval, or the checker reports a violation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kiel_groups.group import claims
from kiel_groups.members.zookeeper.owned_partitions import OwnedPartitions
from tests.sim.checker import Violation
from tests.sim.operations import perform
from tests.sim.scenario import Event
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

INTERVAL_S = 8.0


@pytest.fixture
def world() -> Iterator[World]:
    with at_rest(
        members=2, topics=(4,), reset="earliest", allocator="sticky", reconcile_interval_ms=int(1000 * INTERVAL_S)
    ) as made:
        yield made


def disturb(world: World, operation: str) -> None:
    """Perform an operation on the first consumer. It lasts longer than the time limit for following a change."""
    perform(world, Event(0.0, operation, 0, 0.0, 5 * INTERVAL_S))


def test_an_offset_is_followed_while_notifications_keep_coming(world: World) -> None:
    consumer = world.consumers[0]
    partition = min(consumer.opened)
    disturb(world, "notify_often")
    world.run_for(2 * INTERVAL_S)
    assert consumer.finished(partition) == (2, 0)


def test_an_offset_that_is_not_followed_while_notifications_keep_coming_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The checker reports a member that counts its interval from the newest notification. An earlier version did, instead
    of counting from the last reconciliation.
    """

    async def follow_assignment(owned: OwnedPartitions) -> None:
        while True:
            owned._due.clear()
            owned._feed(await owned._read_assignment())
            try:
                async with asyncio.timeout(owned._context.audit_interval_s()):
                    await owned._due.wait()
            except TimeoutError:
                await owned._audit()

    monkeypatch.setattr(OwnedPartitions, "_follow_assignment", follow_assignment)
    world.consumers[0].process.call(world.consumers[0].kill)
    world.join(world.topics)
    world.settle(60.0)
    perform(world, Event(0.0, "notify_often", 1, 0.0, 0.0))
    with pytest.raises(Violation, match="c3 has not followed the offset of t0:0 that an operator set for 15 s"):
        world.run_for(3 * INTERVAL_S)


def test_an_assignment_is_followed_although_no_watch_fires(world: World) -> None:
    disturb(world, "lose_events")
    world.join(world.topics)
    world.run_for(4 * INTERVAL_S)
    world.settle(0.0)
    assert [len(consumer.opened) for consumer in world.consumers] == [1, 2, 1]


def test_an_assignment_that_is_not_followed_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (follower,) = (consumer for consumer in world.consumers if not consumer.member.leads)
    member_session = follower.member._member_session
    assert member_session is not None
    wanted = claims.AssignmentRead(member_session.role.owned_partitions._claims.want)

    async def read_nothing_new() -> claims.AssignmentRead:
        return wanted

    monkeypatch.setattr(member_session.role.owned_partitions, "_read_assignment", read_nothing_new)
    for _ in range(2):
        world.join(world.topics)
    with pytest.raises(Violation, match=f"{follower.name} has not followed its assignment for 15 s"):
        world.run_for(4 * INTERVAL_S)


def test_a_consumer_with_a_fault_has_more_time(world: World) -> None:
    """Time in which the consumer's event loop is blocked does not count."""
    consumer = world.consumers[0]
    partition = min(consumer.opened)
    world.operator.set(world.layout.offset(partition), b"7")
    consumer.process.block(3 * INTERVAL_S)
    world.run_for(5 * INTERVAL_S)
    assert consumer.finished(partition) == (2, 7)
