"""Voluntary releases by a member, and forced releases of running and of dead members."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

import pytest

from kiel_groups.config import BROKER_V0, ZOOKEEPER_STORE
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes, Releases
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.release import plan_release
from tests.sim import application
from tests.sim.commits import process_some
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a settled group of two."""
    with at_rest(members=2, topics=(4,)) as made:
        yield made


def test_a_forced_release_deletes_no_claims_if_the_member_ends_its_session(world: World) -> None:
    """
    A member that finds its member znode deleted ends its session and joins again. The forced release does not delete
    its new claims.
    """
    consumer = world.consumers[0]
    member_id, owned = consumer.member.member_id or "", sorted(consumer.opened)
    done = plan_release(world.operator, world.group, member_id).apply(world.operator, sleep=world.run_for)
    assert done.owned == tuple(owned)
    assert 0 < done.waited_ms < SESSION_TIMEOUT_MS / 2, (
        "the member stops at its next heartbeat, and the release waits no longer"
    )
    assert done.taken == ()
    world.settle(60.0)
    assert consumer.member.member_id != member_id
    assert consumer.metrics.total("partitions_lost") == len(owned)


@pytest.mark.parametrize("in_hook", [True, False])
@pytest.mark.parametrize("store", [ZOOKEEPER_STORE, BROKER_V0])
def test_without_autocommit_a_release_leaves_what_the_application_committed(
    monkeypatch: pytest.MonkeyPatch, store: str, in_hook: bool
) -> None:
    """Its last commit may be made in the revoked hook. What it did not commit is delivered again by the next owner."""
    monkeypatch.setattr(application, "COMMITTING_SHARE", 0.0)
    monkeypatch.setattr(application, "HOOK_SHARE", 1.0 if in_hook else 0.0)
    with at_rest(members=2, topics=(1,), reset="earliest", store=store, autocommit=False) as world:
        (partition,) = world.partitions()
        (owner,) = (consumer for consumer in world.consumers if consumer.opened)
        (other,) = (consumer for consumer in world.consumers if consumer is not owner)
        process_some(world, owner)
        world.run_for(20.0)
        assert world.history.stored(partition) == 0, "nothing is committed by itself"
        owner.leave()
        world.timeline.run_until(lambda: partition in other.opened, 30.0)
        left = 3 if in_hook else 0
        state = other.state_of(partition)
        assert state is not None
        assert (world.history.stored(partition), state.position) == (left, left)
        process_some(world, other)


@pytest.mark.parametrize(("requested_ms", "waited_ms"), [(0, SESSION_TIMEOUT_MS), (2 * SESSION_TIMEOUT_MS,) * 2])
def test_a_forced_release_waits_for_the_session_timeout_at_least(
    world: World, requested_ms: int, waited_ms: int
) -> None:
    """
    A forced release waits for at least the session timeout. If a claim were deleted before its owner's gate is shut,
    the partition could have two owners.
    """
    consumer = world.consumers[0]
    member_id, lasting = consumer.member.member_id or "", TopicPartition("lasting", 0)
    world.operator.create(world.layout.owner(lasting), encode_owner(member_id), makepath=True)
    waited_s: list[float] = []

    def wait(duration_s: float) -> None:
        waited_s.append(duration_s)
        world.run_for(duration_s)

    done = plan_release(world.operator, world.group, member_id, wait_ms=requested_ms).apply(world.operator, sleep=wait)
    assert (sum(waited_s), done.waited_ms) == (waited_ms / 1000, waited_ms)
    assert done.taken == (lasting,)
    world.settle(60.0)


def test_a_claim_is_deleted_only_after_the_wait(world: World) -> None:
    """
    A forced release deletes a claim only after the wait. Until then, the session that owns the claim might still exist.
    """
    partition = world.partitions()[0]
    owner = world.layout.owner(partition)
    world.consumers[0].kill()
    world.consumers[1].kill()
    world.run_for(2 * SESSION_TIMEOUT_MS / 1000)
    world.operator.create(owner, b"gone-0")
    there: list[float] = []

    def wait(duration_s: float) -> None:
        world.run_for(duration_s)
        assert owner in world.ensemble.tree.znodes
        there.append(duration_s)

    done = plan_release(world.operator, world.group, "gone", wait_ms=1_000).apply(world.operator, sleep=wait)
    assert sum(there) == 1.0
    assert done.taken == (partition,)
    assert owner not in world.ensemble.tree.znodes


def test_a_commit_during_a_release_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A commit waits for a release in progress. Both writes expect the version that the member has read, so the member
    would mistake the first write for another writer's.
    """
    consumer = world.consumers[0]
    process_some(world, consumer)
    release, commits = OwnerZnodes.release, list[asyncio.Task[frozenset[TopicPartition]]]()

    async def releasing(owner_znodes: OwnerZnodes, partitions: Collection[TopicPartition]) -> Releases:
        commits.append(asyncio.ensure_future(consumer.member.commit_on_session()))
        return await release(owner_znodes, partitions)

    monkeypatch.setattr(OwnerZnodes, "release", releasing)
    consumer.leave()
    world.timeline.run_until(lambda: consumer.closed, 10.0)
    assert commits[0].result() == frozenset()
    stored = [world.history.stored(partition) for partition in world.partitions()]
    assert stored == [world.history.processed(partition) for partition in world.partitions()]
    assert any(stored)
    assert consumer.metrics.total("commits_superseded") == 0
