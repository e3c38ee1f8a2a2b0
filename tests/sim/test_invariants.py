"""Each invariant of the simulator's checker reports a violation."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.transactions import Delete, Operation, Put
from kiel_groups.model import TopicPartition
from tests.sim import invariants
from tests.sim.checker import INVARIANTS, Violation
from tests.sim.consumer import Consumer
from tests.sim.invariants.invariant import Invariant
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two; each member has one partition."""
    with at_rest(members=2, topics=(2,), reset="earliest", allocator="sticky") as made:
        yield made


@pytest.fixture
def consumer(world: World) -> Consumer:
    return world.consumers[0]


@pytest.fixture
def owned(consumer: Consumer) -> TopicPartition:
    """Return the consumer's partition."""
    (partition,) = consumer.opened
    return partition


@pytest.fixture
def foreign(world: World) -> TopicPartition:
    """Return the other consumer's partition."""
    (partition,) = world.consumers[1].opened
    return partition


def write(world: World, consumer: Consumer, *operations: Operation) -> None:
    """Execute operations on a consumer's session, without the member's own checks."""
    member_session = consumer.member._member_session
    assert member_session is not None
    consumer.process.start(member_session.session.transact(operations))
    world.run_for(0.2)


def finish(consumer: Consumer, partition: TopicPartition, count: int) -> None:
    """Have the application finish records, and commit nothing."""
    state = consumer.state_of(partition)
    assert state is not None
    state.position = state.finished = count
    consumer.world.checker.processed(partition, consumer.opened[partition], count)


def rewrite(world: World, consumer: Consumer, path: str, generation: int) -> None:
    """Write the group state or an assignment again, with ``generation`` added to its generation."""
    fields = json.loads(world.ensemble.tree.znodes[path].data)
    fields["generation"] += generation
    write(world, consumer, Put(path, json.dumps(fields).encode()))


def test_all_invariants_are_checked_and_state_their_rule() -> None:
    for module in pkgutil.iter_modules(invariants.__path__):
        importlib.import_module(f"{invariants.__name__}.{module.name}")
    found, pending = set[type[Invariant]](), [Invariant]
    while pending:
        kinds = pending.pop().__subclasses__()
        pending += kinds
        found.update(kind for kind in kinds if not kind.__subclasses__())
    assert found == set(INVARIANTS)
    assert len(INVARIANTS) == len(found)
    assert [kind for kind in INVARIANTS if not (kind.__doc__ or "").strip().partition("\n")[0].endswith(".")] == []


def test_a_lower_generation_is_reported(world: World, consumer: Consumer) -> None:
    with pytest.raises(Violation, match=r"generation \d follows \d"):
        rewrite(world, consumer, world.layout.group_state, -1)


def test_a_second_plan_of_a_generation_is_reported(world: World, consumer: Consumer) -> None:
    with pytest.raises(Violation, match="has two plans"):
        rewrite(world, consumer, world.layout.group_state, 0)


def test_an_assignment_of_another_generation_is_reported(world: World, consumer: Consumer) -> None:
    assert consumer.assignment_path is not None
    with pytest.raises(Violation, match="an assignment of generation"):
        rewrite(world, consumer, consumer.assignment_path, 1)


@pytest.mark.parametrize("change", ["another member", "deletion"])
def test_a_place_that_is_lost_within_its_grace_is_reported(change: str) -> None:
    """The next process of a static member has joined, and not subscribed yet."""
    with at_rest(
        members=2, topics=(2,), allocator="sticky", is_static=True, subscribe_after_s=(0.0, 0.0, 60.0)
    ) as world:
        gone, leader = world.consumers[1], world.consumers[0]
        path = world.layout.assignment("i-c2")
        gone.kill()
        back = world.join(["t0"], "i-c2")
        world.run_for(3.0)
        assert back.member.member_id is not None
        fields = json.loads(world.ensemble.tree.znodes[path].data) | {"for": back.member.member_id}
        with pytest.raises(Violation, match=r"the place of i-c2 goes from .*, within its grace"):
            write(world, leader, Delete(path) if change == "deletion" else Put(path, json.dumps(fields).encode()))


def test_a_write_on_a_session_that_has_ended_is_reported(
    world: World, consumer: Consumer, owned: TopicPartition
) -> None:
    world.history.sessions.ended.update(consumer.process.sessions)
    with pytest.raises(Violation, match="a session that has ended writes"):
        write(world, consumer, Put(world.layout.offset(owned), b"0"))


def test_a_write_on_a_session_that_kazoo_opened_is_reported(
    world: World, consumer: Consumer, owned: TopicPartition
) -> None:
    world.history.sessions.reopened.update(consumer.process.sessions)
    with pytest.raises(Violation, match="on a session that kazoo opened by itself"):
        write(world, consumer, Put(world.layout.offset(owned), b"0"))


def test_a_commit_of_another_members_partition_is_reported(
    world: World, consumer: Consumer, foreign: TopicPartition
) -> None:
    with pytest.raises(Violation, match=f"{consumer.name} commits 1 of {foreign}, and its claim is not there"):
        write(world, consumer, Put(world.layout.offset(foreign), b"1"))


def test_a_commit_beyond_the_processed_records_is_reported(
    world: World, consumer: Consumer, owned: TopicPartition
) -> None:
    with pytest.raises(Violation, match=f"{consumer.name} commits 1 of {owned}, processed is 0"):
        write(world, consumer, Put(world.layout.offset(owned), b"1"))


def test_a_release_while_records_are_in_flight_is_reported(
    world: World, consumer: Consumer, owned: TopicPartition
) -> None:
    consumer.work(0.0, 3, 5.0)
    with pytest.raises(Violation, match=f"releases {owned} while its application processes it"):
        write(world, consumer, Delete(world.layout.owner(owned)))


def test_a_release_without_a_commit_is_reported(world: World, consumer: Consumer, owned: TopicPartition) -> None:
    consumer.work(0.0, 3, 0.01)
    world.run_for(0.1)
    with pytest.raises(Violation, match=f"releases {owned} at 0, finished is 3"):
        write(world, consumer, Delete(world.layout.owner(owned)))


def test_a_release_that_commits_for_an_application_is_reported() -> None:
    """An application that commits by itself may have finished records that it does not want to commit yet."""
    with at_rest(members=1, topics=(1,), reset="earliest", autocommit=False) as world:
        (consumer,), (owned,) = world.consumers, world.partitions()
        finish(consumer, owned, 3)
        commits = Put(world.layout.offset(owned), b"3"), Delete(world.layout.owner(owned))
        with pytest.raises(Violation, match=f"stores 3 of {owned} with its release, and 0 is stored"):
            write(world, consumer, *commits)


def test_a_release_of_a_partition_that_may_still_be_delivered_is_reported(
    world: World, consumer: Consumer, owned: TopicPartition
) -> None:
    with pytest.raises(Violation, match=f"{consumer.name} loses its claim of {owned}, and its gate is open"):
        write(world, consumer, Delete(world.layout.owner(owned)))


def test_a_delivery_without_a_claim_is_reported(world: World, consumer: Consumer, foreign: TopicPartition) -> None:
    consumer.opened[foreign] = 1
    with pytest.raises(Violation, match=f"{consumer.name} delivers {foreign}, and its claim is not there"):
        world.checker.delivered(consumer, foreign, 0)


def test_a_delivery_before_the_assigned_hook_has_ended_is_reported(consumer: Consumer) -> None:
    consumer.hooked.clear()
    with pytest.raises(Violation, match="its assigned hook has not ended"):
        consumer.work(0.0, 1, 0.1)


def test_two_open_gates_of_a_partition_are_reported(world: World, consumer: Consumer, foreign: TopicPartition) -> None:
    consumer.opened[foreign] = 1
    with pytest.raises(Violation, match=f"two gates are open for {foreign}: c1 and c2"):
        world.checker.opened(consumer, foreign, 0)


def test_a_member_that_stops_is_reported(world: World, consumer: Consumer) -> None:
    with pytest.raises(Violation, match="c1 stops for good: no reason"):
        world.checker.stopped(consumer, CoordinationError("no reason"))


def test_a_partition_without_an_owner_is_reported(world: World, owned: TopicPartition) -> None:
    world.consumers[0].kill()
    with pytest.raises(Violation, match=f"2 s after the last fault 1 partitions are not owned by one, .*{owned.topic}"):
        world.settle(2.0)


def test_a_member_that_does_not_leave_in_time_is_reported(world: World, consumer: Consumer) -> None:
    consumer.process.freeze()
    with pytest.raises(Violation, match="1 s after all members were asked to leave"):
        world.close(1.0)
