"""Leaders that stop and their successors, and the causes that a leader writes into the history."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.group.znodes.transactions import Answer, Operation, Unknown
from kiel_groups.members.zookeeper.leader import LeaderDriver
from tests.sim.consumer import Consumer
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

Assignment: TypeAlias = Mapping[str, Mapping[str, Collection[int]]]


def leader_driver(world: World) -> LeaderDriver:
    """Return the driver of the group's leader."""
    (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
    assert leader.member._member_session is not None
    return leader.member._member_session.role.candidacy._leader_driver


def causes(world: World) -> list[str]:
    """Return the cause of each generation in the history."""
    folder, truth = world.layout.history, world.ensemble.tree
    paths = [f"{folder}/{name}" for name in sorted(truth.children(folder))]
    return [HistoryEntry.parse(truth.znodes[path].data, path).cause for path in paths]


def test_a_leader_that_is_refused_enters_the_election_again() -> None:
    """
    A leader whose write is refused enters the election again without waiting until it reconciles. New partitions have
    an owner within seconds.
    """
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        other = next(consumer for consumer in world.consumers if consumer is not leader)
        for name in world.ensemble.tree.children(world.layout.election):
            world.operator.delete(f"{world.layout.election}/{name}")
        other.kill()
        world.set_partitions("t0", 6)
        world.run_for(12.0)
        assert leader.member.leads
        assert len([p for p in leader.opened if p.partition >= 4]) == 2


def test_deleted_folders_of_a_plan_are_created_again() -> None:
    """
    The leader creates deleted parent znodes of a plan again. Otherwise, all of the leader's later plans would be
    refused.
    """
    with at_rest(members=2, topics=(4,)) as world:
        for name in world.ensemble.tree.children(world.layout.history):
            world.operator.delete(f"{world.layout.history}/{name}")
        world.operator.delete(world.layout.history)
        world.set_partitions("t0", 6)
        world.run_for(12.0)
        assert sum(len(consumer.opened) for consumer in world.consumers) == 6


def test_the_next_candidate_leads_when_the_leader_is_gone() -> None:
    """The next candidate watches its predecessor's znode, and leads as soon as that session ends."""
    with at_rest(members=3, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        others = [consumer for consumer in world.consumers if consumer is not leader]
        leader.kill()
        world.run_for(12.0)
        assert sum(consumer.member.leads for consumer in others) == 1


def test_an_operators_request_is_answered_once() -> None:
    """
    If the leader dies before it answers a request for a plan, its successor does. A later leader does not answer it
    again.
    """
    with at_rest(members=3, topics=(4,)) as world:
        settings = json.loads(world.ensemble.tree.znodes[world.layout.config].data)
        request = {"rebalance": {"at": 7, "reason": "disks"}}
        world.operator.set(world.layout.config, json.dumps(settings | request).encode())
        killed: list[Consumer] = []
        for _ in range(2):
            killed += [each for each in world.consumers if each.member.leads and each not in killed]
            killed[-1].kill()
            world.run_for(12.0)
            assert ["operator: disks" in cause for cause in causes(world)].count(True) == 1
        assert "operator: disks, leader change" in "".join(causes(world))


def test_a_leader_that_resigned_raises_no_ownership_alarm() -> None:
    """
    A former leader raises no ownership alarm. Owners follow the plan of the next leader, so they differ from its own
    plan.
    """
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        truth, folder = world.ensemble.tree, world.layout.election
        candidates = {truth.znodes[f"{folder}/{name}"].data.decode(): name for name in truth.children(folder)}
        world.operator.delete(f"{folder}/{candidates[leader.member.member_id or '']}")
        world.join(world.topics)
        world.run_for(180.0)
        assert not leader.member.leads
        assert sum(consumer.member.leads for consumer in world.consumers) == 1
        assert [consumer.metrics.total("ownership_alarms") for consumer in world.consumers] == [0, 0, 0]


def test_the_history_records_when_an_allocator_fails_and_recovers() -> None:
    """Failure and recovery are recorded once each. A change of the error text alone adds no entry."""
    with at_rest(members=3, topics=(8,)) as world:
        allocate, failures = leader_driver(world)._planner._allocator, list[str]()

        def failing(members: object, partitions: object) -> Assignment:
            failures.append(f"failure {len(failures)}")
            raise RuntimeError(failures[-1])

        leader_driver(world)._planner._allocator = failing
        joining = world.join(world.topics)
        world.run_for(100.0)
        leader_driver(world)._planner._allocator = allocate
        world.run_for(100.0)
        expected = ["first plan", f"join of {joining.member.member_id}, allocator failed", "allocator recovered"]
        assert causes(world) == expected
        assert len(failures) > 2


def test_the_history_records_the_cause_of_a_plan_for_an_unchanged_group() -> None:
    """
    The cause is ``allocator`` if the allocator's result changes, and ``manual`` if an operator deletes an assignment.
    """
    with at_rest(members=2, topics=(4,)) as world:
        turned = False

        def turning(members: Sequence[str], partitions: Sequence[str]) -> Assignment:
            given = round_robin(members, partitions)
            return dict(zip(members, reversed([given[name] for name in members]), strict=True)) if turned else given

        leader_driver(world)._planner._allocator = turning
        world.run_for(100.0)
        before = len(causes(world))
        turned = True
        world.run_for(100.0)
        world.operator.delete(world.layout.assignment(str(world.consumers[0].member.member_id)))
        world.run_for(100.0)
        assert causes(world)[before:] == ["allocator", "manual"]


def test_the_history_records_that_a_plan_completes_an_interrupted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The cause is ``publication interrupted`` if the answer of a publication is lost and the member that caused the plan
    is gone, so that the group is as before.
    """
    with at_rest(members=2, topics=(4,)) as world:
        session = leader_driver(world)._session
        transact, interrupted = session.transact, list[str]()

        async def interrupting(operations: Iterable[Operation]) -> Answer:
            listed = list(operations)
            answer = await transact(listed)
            if not interrupted and any(operation.path == world.layout.group_state for operation in listed):
                interrupted.append(str(joining.member.member_id))
                joining.kill()
                world.operator.delete_async(world.layout.member(interrupted[0]))
                return Unknown()
            return answer

        monkeypatch.setattr(session, "transact", interrupting)
        joining = world.join(world.topics)
        world.run_for(30.0)
        assert causes(world) == ["first plan", f"join of {interrupted[0]}", "publication interrupted"]
