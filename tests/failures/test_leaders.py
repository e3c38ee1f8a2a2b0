"""Leaders that die or freeze in the middle of a publication: whoever follows finishes it, and nobody else can."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import DONE, PUBLISHING
from kiel_groups.group.znodes.history import HistoryEntry
from tests.helpers.member_program import Program
from tests.helpers.members import Member
from tests.helpers.trial import RECOVERY_S, Trial, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

#: Transactions of the publication that a second member's join brings about: it begins, two slices follow, it ends.
BEGUN, ONE_SLICE, ALL_SLICES = 1, 2, 3


async def candidate(tried: Trial, **told: Any) -> Program:
    """A leader that is no member, in a process of its own."""
    program = tried.program("candidate", **told)
    program.wait_for_lines(1)
    await eventually(lambda: tried.client.get_children(tried.layout.election), "it stands for election", RECOVERY_S)
    return program


@asynccontextmanager
async def publishing(
    cluster: Cluster, unique: Unique, ends: str, after: int
) -> AsyncIterator[tuple[Trial, Program, Member, Member]]:
    """A leader that is no member, and two members; it ends itself when the second joins."""
    async with trial(cluster, unique) as tried:
        leader = await candidate(tried, ends=ends, after=after)
        await tried.produce()
        first = await tried.join()
        await tried.has(first, tried.partitions)
        yield tried, leader, first, await tried.join()


async def test_leader_killed_between_two_slice_batches(cluster: Cluster, unique: Unique) -> None:
    """The next leader makes the same plan: it writes what is missing, under a later generation, and ends it."""
    async with publishing(cluster, unique, "KILL", ONE_SLICE) as (tried, leader, first, second):
        await leader.has_died()
        half, written = tried.group_state(), tried.assignments()
        assert half.state == PUBLISHING
        gaining, losing = str(second.consumer.member_id), str(first.consumer.member_id)
        assert written[gaining].generation == half.generation > written[losing].generation
        assert len(first.partitions(tried.topic)) == tried.partitions, "who loses has not been told yet"
        whole = await tried.pointer_is(lambda group_state: group_state.state == DONE, "the publication is finished")
        await tried.nothing_is_lost()
        assert whole.generation == half.generation + 1
        assert tried.assignments()[gaining] == written[gaining], "what was written already is not written again"
        assert tried.assignments()[losing].generation == whole.generation
        assert first.lost_partitions == second.lost_partitions == []


async def test_leader_lost_after_its_last_slice_plan_unchanged(cluster: Cluster, unique: Unique) -> None:
    """Nothing is left to be written but the end, which the next leader writes; members had no need of it."""
    async with publishing(cluster, unique, "KILL", ALL_SLICES) as (tried, leader, first, second):
        await leader.has_died()
        half, written = tried.group_state(), tried.assignments()
        assert half.state == PUBLISHING
        assert {each.generation for each in written.values()} == {half.generation}
        await tried.balanced()
        whole = await tried.pointer_is(lambda group_state: group_state.state == DONE, "the publication is finished")
        assert whole.generation == half.generation + 1
        assert tried.assignments() == written
        assert first.consumer.is_leader or second.consumer.is_leader
        await tried.nothing_is_lost()


@pytest.mark.parametrize("after", [0, BEGUN, ONE_SLICE, ALL_SLICES])
async def test_two_leaders_overlapping_and_two_plans_wanting_one_generation(
    cluster_39: Cluster, unique: Unique, after: int
) -> None:
    """A leader stops before a write, another one publishes, and the first goes on: its write is refused."""
    async with publishing(cluster_39, unique, "STOP", after) as (tried, stopped, first, second):
        await stopped.has_stopped()
        stopped_id = stopped.lines[0]
        await tried.pointer_is(
            lambda group_state: group_state.state == DONE and group_state.leader != stopped_id,
            "somebody else publishes",
        )
        await tried.balanced()
        await eventually(lambda: first.consumer.settled and second.consumer.settled, "all is settled", RECOVERY_S)
        before, version = tried.assignments(), tried.client.exists(tried.layout.group_state).version
        candidates = tried.client.get_children(tried.layout.election)
        stopped.process.send_signal(signal.SIGCONT)
        await eventually(
            lambda: len(tried.client.get_children(tried.layout.election)) > len(candidates), "it stands again"
        )
        assert tried.client.exists(tried.layout.group_state).version == version
        assert tried.assignments() == before
        await tried.nothing_is_lost()
        past = [f"{tried.layout.history}/{name}" for name in tried.client.get_children(tried.layout.history)]
        generations = [HistoryEntry.parse(tried.client.get(path)[0], path).generation for path in past]
        assert len(generations) == len(set(generations))


async def test_leader_change_during_a_grace_period(cluster: Cluster, unique: Unique) -> None:
    """The next leader keeps the place of a static member that is away, too: its return moves nothing."""
    async with trial(cluster, unique) as tried:
        leader = await candidate(tried)
        stays, goes = await tried.join(instance_id="stays"), await tried.join(instance_id="goes")
        await tried.balanced()
        before, held = tried.assignments(), tried.owners()
        await tried.group.leave(goes)
        await eventually(
            lambda: tried.assignments()["goes"].away_since_ms is not None, "its absence is known", RECOVERY_S
        )
        leader.close()
        metrics = stays.consumer.metrics
        await eventually(lambda: metrics.latency("allocator").count, "another one leads, and has planned", RECOVERY_S)
        await tried.join(instance_id="goes")
        await tried.balanced()
        assert {slot: each.partitions for slot, each in tried.assignments().items()} == {
            slot: each.partitions for slot, each in before.items()
        }
        kept = {number: tried.owners()[number] for number in stays.partitions(tried.topic)}
        assert kept.items() <= held.items()
        assert stays.lost_partitions == []
        await tried.nothing_is_lost()
