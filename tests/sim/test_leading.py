"""Leaders that come to an end, and who follows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.coordination.leader.leader_driver import LeaderDriver
from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.transactions import Answer, Operation, Unknown
from tests.sim.world import World, at_rest

pytestmark = pytest.mark.sim

Assignment: TypeAlias = Mapping[str, Mapping[str, Collection[int]]]


def leading(world: World) -> LeaderDriver:
    """That of who leads."""
    (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
    assert leader.member._member_session is not None
    return leader.member._member_session._leader_driver


def causes(world: World) -> list[str]:
    """Why each generation was made, by the history."""
    folder, truth = world.layout.history, world.ensemble.truth
    paths = [f"{folder}/{name}" for name in sorted(truth.children(folder))]
    return [HistoryEntry.parse(truth.znodes[path].data, path).cause for path in paths]


def test_a_leader_that_is_refused_stands_for_election_again() -> None:
    """It does not wait for the regular look: partitions that were added have their owner within seconds."""
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        other = next(consumer for consumer in world.consumers if consumer is not leader)
        for name in world.ensemble.truth.children(world.layout.election):
            world.operator.delete(f"{world.layout.election}/{name}")
        other.kill()
        world.set_partitions("t0", 6)
        world.run_for(12.0)
        assert leader.member.leads
        assert len([p for p in leader.flowing if p.partition >= 4]) == 2


def test_folders_of_a_plan_that_are_deleted_are_created_again() -> None:
    """A leader that took them for created would be refused with every plan from then on."""
    with at_rest(members=2, topics=(4,)) as world:
        for name in world.ensemble.truth.children(world.layout.history):
            world.operator.delete(f"{world.layout.history}/{name}")
        world.operator.delete(world.layout.history)
        world.set_partitions("t0", 6)
        world.run_for(12.0)
        assert sum(len(consumer.flowing) for consumer in world.consumers) == 6


def test_the_next_candidate_leads_when_the_leader_is_gone() -> None:
    """It watches the one before it: the end of that one's session is enough, and no regular look is needed."""
    with at_rest(members=3, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        others = [consumer for consumer in world.consumers if consumer is not leader]
        leader.kill()
        world.run_for(12.0)
        assert sum(consumer.member.leads for consumer in others) == 1


def test_a_leader_that_resigned_says_nothing_of_owners_any_more() -> None:
    """They are as the next leader wants them, and not as it wanted them itself."""
    with at_rest(members=2, topics=(4,)) as world:
        (leader,) = (consumer for consumer in world.consumers if consumer.member.leads)
        truth, folder = world.ensemble.truth, world.layout.election
        stood = {truth.znodes[f"{folder}/{name}"].data.decode(): name for name in truth.children(folder)}
        world.operator.delete(f"{folder}/{stood[leader.member.member_id or '']}")
        world.join(world.topics)
        world.run_for(180.0)
        assert not leader.member.leads
        assert sum(consumer.member.leads for consumer in world.consumers) == 1
        assert [consumer.metrics.total("ownership_alarms") for consumer in world.consumers] == [0, 0, 0]


def test_the_history_tells_that_an_allocator_fails_and_that_it_recovers() -> None:
    """Once each, and in which words it fails is no news; nobody has touched anything."""
    with at_rest(members=3, topics=(8,)) as world:
        allocate, failures = leading(world)._allocator, list[str]()

        def failing(members: object, partitions: object) -> Assignment:
            failures.append(f"failure {len(failures)}")
            raise RuntimeError(failures[-1])

        leading(world)._allocator = failing
        joining = world.join(world.topics)
        world.run_for(100.0)
        leading(world)._allocator = allocate
        world.run_for(100.0)
        told = ["first plan", f"join of {joining.member.member_id}, allocator failed", "allocator recovered"]
        assert causes(world) == told
        assert len(failures) > 2


def test_the_history_tells_whose_doing_a_plan_is_where_the_group_is_the_same() -> None:
    """An allocator may answer otherwise by itself; what somebody wrote over a leader's plan is told as that."""
    with at_rest(members=2, topics=(4,)) as world:
        turned = False

        def turning(members: Sequence[str], partitions: Sequence[str]) -> Assignment:
            given = round_robin(members, partitions)
            return dict(zip(members, reversed([given[name] for name in members]), strict=True)) if turned else given

        leading(world)._allocator = turning
        world.run_for(100.0)
        before = len(causes(world))
        turned = True
        world.run_for(100.0)
        world.operator.delete(world.layout.assignment(str(world.consumers[0].member.member_id)))
        world.run_for(100.0)
        assert causes(world)[before:] == ["allocator", "manual"]


def test_the_history_tells_that_a_plan_mends_one_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a publication is lost, and who was in it is gone: there is no change since the one before."""
    with at_rest(members=2, topics=(4,)) as world:
        session = leading(world)._session
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
