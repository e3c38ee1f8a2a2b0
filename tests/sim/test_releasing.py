"""Releases: by the member itself, and by force, of one that lives and of one that does not run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

import pytest

from kiel_groups.admin.force_release import force_release
from kiel_groups.coordination.member.owner_znodes import OwnerZnodes, Releases
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.model import TopicPartition
from tests.sim.test_interrupted_commits import process_some
from tests.sim.world import SESSION_TIMEOUT_MS, World, at_rest

pytestmark = pytest.mark.sim


@pytest.fixture
def world() -> Iterator[World]:
    """A group of two at rest."""
    with at_rest(members=2, topics=(4,)) as made:
        yield made


def test_nothing_is_taken_from_a_member_that_stops(world: World) -> None:
    """It finds its znode gone, and joins anew; what is owned anew meanwhile is not touched."""
    consumer = world.consumers[0]
    member_id, held = consumer.member.member_id or "", sorted(consumer.flowing)
    done = force_release(world.operator, world.group, member_id, sleep=world.run_for)
    assert done.owned == tuple(held)
    assert 0 < done.waited_ms < SESSION_TIMEOUT_MS / 2, "it stops at its next heartbeat, and nobody waits longer"
    assert done.taken == ()
    world.settle(60.0)
    assert consumer.member.member_id != member_id
    assert consumer.metrics.total("partitions_lost") == len(held)


@pytest.mark.parametrize(("asked_ms", "waited_ms"), [(0, SESSION_TIMEOUT_MS), (2 * SESSION_TIMEOUT_MS,) * 2])
def test_a_member_has_its_session_timeout_however_short_the_wait(world: World, asked_ms: int, waited_ms: int) -> None:
    """A claim that goes before its gate is shut would have two owners; a longer wait is nobody's harm."""
    consumer = world.consumers[0]
    member_id, lasting = consumer.member.member_id or "", TopicPartition("lasting", 0)
    world.operator.create(world.layout.owner(lasting), encode_owner(member_id), makepath=True)
    waited_s: list[float] = []

    def wait(duration_s: float) -> None:
        waited_s.append(duration_s)
        world.run_for(duration_s)

    done = force_release(world.operator, world.group, member_id, wait_ms=asked_ms, sleep=wait)
    assert (sum(waited_s), done.waited_ms) == (waited_ms / 1000, waited_ms)
    assert done.taken == (lasting,)
    world.settle(60.0)


def test_a_claim_is_taken_when_no_gate_can_be_open_any_more(world: World) -> None:
    """An owner znode that nobody deletes, as of a session that a server keeps, goes after the wait, not before."""
    partition = world.partitions()[0]
    owner = world.layout.owner(partition)
    world.consumers[0].kill()
    world.consumers[1].kill()
    world.run_for(2 * SESSION_TIMEOUT_MS / 1000)
    world.operator.create(owner, b"gone-0")
    there: list[float] = []

    def wait(duration_s: float) -> None:
        world.run_for(duration_s)
        assert owner in world.ensemble.truth.znodes
        there.append(duration_s)

    done = force_release(world.operator, world.group, "gone", wait_ms=1_000, sleep=wait)
    assert sum(there) == 1.0
    assert done.taken == (partition,)
    assert owner not in world.ensemble.truth.znodes


def test_a_commit_during_a_release_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both expect the version that they have seen: who comes second would take the first for somebody else."""
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
    stored = [world.ledger.stored(partition) for partition in world.partitions()]
    assert stored == [world.ledger.processed(partition) for partition in world.partitions()]
    assert any(stored)
    assert consumer.metrics.total("commits_superseded") == 0
