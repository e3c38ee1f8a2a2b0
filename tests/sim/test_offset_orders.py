"""Orders of operators to continue at other offsets: performed once, under the claim, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiel_groups.model import TopicPartition
from tests.sim.checker import Violation
from tests.sim.commits import commit
from tests.sim.consumer import Consumer
from tests.sim.kafka_groups import kafka_group
from tests.sim.topics import recreate
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

P0 = TopicPartition("t0", 0)


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a group of one member that owns one partition and has committed 20 of its records."""
    with at_rest(members=1, topics=(1,), reset="earliest") as running:
        (consumer,) = running.consumers
        consumer.work(0.0, 20, 0.1)
        running.run_for(7.0)
        assert running.history.stored(P0) == 20
        yield running


def left(world: World) -> list[str]:
    """Return the names of the orders that no member has acknowledged."""
    return world.ensemble.tree.children(world.layout.orders)


def deliver_one(consumer: Consumer) -> int:
    """Have the application process one record, and return its offset."""
    consumer.work(0.0, 1, 0.1)
    delivered = consumer.in_flight[P0]
    return delivered.start


@pytest.mark.parametrize("offset", [5, 20, 60])
def test_an_owner_stores_the_offset_and_continues_there(world: World, offset: int) -> None:
    """Backwards and forwards. What was finished and not committed, or is in flight, is not committed over it."""
    (consumer,) = world.consumers
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)
    consumer.work(0.0, 7, 30.0)
    world.order({P0: offset}, 60.0)
    world.run_for(0.5)
    assert (left(world), world.history.stored(P0), world.history.orders) == ([], offset, 1)
    assert consumer.in_flight == {}
    world.run_for(7.0)
    assert world.history.stored(P0) == offset
    assert deliver_one(consumer) == offset
    world.run_for(7.0)
    assert world.history.stored(P0) == offset + 1


def test_a_paused_partition_continues_there_once_it_is_resumed(world: World) -> None:
    """The order is performed at once, and the pause stays."""
    (consumer,) = world.consumers
    consumer.pause(0.0)
    world.order({P0: 5}, 60.0)
    world.run_for(0.5)
    assert (left(world), world.history.stored(P0)) == ([], 5)
    assert consumer.is_paused(P0)
    consumer.resume()
    assert deliver_one(consumer) == 5


def test_the_next_owner_performs_the_order_of_a_member_that_has_died(world: World) -> None:
    """The order is placed while no member owns the partition."""
    (consumer,) = world.consumers
    consumer.kill()
    world.run_for(0.5)
    world.order({P0: 5}, 60.0)
    other = world.join(world.topics)
    world.run_for(5.0)
    assert len(left(world)) == 1
    world.run_for(10.0)
    world.settle(30.0)
    assert (left(world), world.history.stored(P0)) == ([], 5)
    assert deliver_one(other) == 5


def test_an_order_is_performed_after_a_rebalance(world: World) -> None:
    """A draining partition keeps its order until it has another owner."""
    (consumer,) = world.consumers
    consumer.work(0.0, 3, 8.0)
    other = world.join(world.topics)
    consumer.leave()
    world.run_for(1.0)
    world.order({P0: 5}, 60.0)
    world.run_for(1.0)
    assert len(left(world)) == 1, "the partition is draining"
    world.settle(60.0)
    world.run_for(1.0)
    assert (left(world), world.history.stored(P0)) == ([], 5)
    assert deliver_one(other) == 5


def test_an_order_that_is_taken_back_has_no_effect(world: World) -> None:
    """A member that was suspended meanwhile reads that there is no order any more."""
    (consumer,) = world.consumers
    consumer.process.freeze()
    world.order({P0: 5}, 1.0)
    world.run_for(2.0)
    consumer.process.thaw()
    world.run_for(10.0)
    assert (left(world), world.history.orders, world.history.stored(P0)) == ([], 0, 20)
    assert deliver_one(consumer) == 20


def test_an_order_of_the_old_log_is_not_performed_in_the_new_one(world: World) -> None:
    """It names the topic's incarnation: the partition starts at the beginning of the new log, and stays there."""
    (consumer,) = world.consumers
    consumer.process.freeze()
    world.order({P0: 5}, 60.0)
    world.run_for(0.1)
    recreate(world)
    world.run_for(0.1)
    consumer.process.thaw()
    world.run_for(10.0)
    assert (len(left(world)), world.history.orders, world.history.stored(P0)) == (1, 0, 0)
    assert deliver_one(consumer) == 0


def test_a_lost_answer_does_not_hide_that_the_order_is_performed(world: World) -> None:
    """The member finds its own write, and continues there."""
    (consumer,) = world.consumers
    world.order({P0: 5}, 60.0)
    world.timeline.run_until(lambda: world.history.orders == 1)
    consumer.process.reset()
    world.run_for(8.0)
    assert (left(world), world.history.stored(P0), world.history.orders) == ([], 5, 1)
    assert deliver_one(consumer) == 5
    world.run_for(7.0)
    assert world.history.stored(P0) == 6


def test_an_operators_offset_that_the_owner_has_not_read_does_not_prevent_the_order(world: World) -> None:
    """The first try is refused because of its version. The owner reads the offset, and tries again."""
    world.operator.set(world.layout.offset(P0), b"11")
    world.order({P0: 5}, 60.0)
    world.run_for(2.0)
    assert (left(world), world.history.stored(P0)) == ([], 5)


def test_unreadable_orders_are_reported_and_change_nothing(world: World) -> None:
    """The member keeps running, and performs the next order."""
    (consumer,) = world.consumers
    world.operator.create(world.layout.orders, b"garbage")
    world.operator.create(f"{world.layout.orders}/x", b"")
    world.operator.set(world.layout.orders, b"garbage")
    world.run_for(1.0)
    assert consumer.metrics.total("znodes_unreadable") >= 1
    world.operator.delete(f"{world.layout.orders}/x")
    world.order({P0: 5}, 60.0)
    world.run_for(1.0)
    assert (left(world), world.history.stored(P0)) == ([], 5)


def test_without_an_order_the_members_read_one_znode(world: World) -> None:
    """A partition that is opened costs no further request, because the watch reports the next order."""
    (consumer,) = world.consumers
    reads: list[str] = []
    session = consumer.member._member_session
    assert session is not None
    read = session.session.exists

    async def exists(path: str, *rest: object) -> object:
        reads.extend([path] if path == world.layout.orders else [])
        return await read(path, *rest)  # type: ignore[arg-type]

    session.session.exists = exists  # type: ignore[method-assign, assignment]
    world.set_partitions("t0", 3)
    world.run_for(5.0)
    assert len(consumer.opened) == 3
    assert reads == []


def test_an_acknowledgement_without_the_offset_is_reported(world: World) -> None:
    """The checker notices a member that deletes an order and stores nothing."""
    (consumer,) = world.consumers
    consumer.process.freeze()
    world.order({P0: 5}, 60.0)
    world.run_for(0.1)
    (path,) = (f"{world.layout.orders}/{name}" for name in left(world))
    consumer.process.thaw()
    session = consumer.member._member_session
    assert session is not None
    consumer.process.call(session.session.client.delete_async, path)
    with pytest.raises(Violation, match="is acknowledged, and no offset is stored"):
        world.run_for(1.0)


# Offsets in Kafka


def test_an_owner_stores_the_offset_in_kafka_and_then_acknowledges() -> None:
    """The coordinator answers late: until then the order is not acknowledged, and the old offset counts."""
    with kafka_group(members=1, topics=(1,), reset="earliest") as world:
        (consumer,) = world.consumers
        consumer.work(0.0, 20, 0.1)
        world.run_for(1.0)
        commit(world, consumer)
        world.coordinator.hold(2.0)
        world.order({P0: 5}, 60.0)
        world.run_for(1.0)
        assert (len(left(world)), world.offsets()) == (1, {P0: 20})
        world.run_for(5.0)
        assert (left(world), world.offsets()) == ([], {P0: 5})
        assert world.checker.acknowledged == 1
        assert deliver_one(consumer) == 5
        world.run_for(1.0)
        commit(world, consumer)
        assert world.offsets() == {P0: 6}
