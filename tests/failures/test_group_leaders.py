"""Group leaders that die or freeze while they publish a plan, and allocators that hang."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import DONE, PUBLISHING
from kiel_groups.group.znodes.group_settings import HistoryEntry
from tests.helpers.checked_group import RECOVERY_S, CheckedGroup, checked_group
from tests.helpers.member_program import Program
from tests.helpers.members import Member
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

#: Transactions of the publication after a second member has joined: the group state, two assignments, the group state.
STARTED, ONE_ASSIGNMENT, ALL_ASSIGNMENTS = 1, 2, 3


async def start_candidate(checked: CheckedGroup, **options: Any) -> Program:
    """Start a candidate that is not a member, in a process of its own."""
    program = checked.program("candidate", **options)
    program.wait_for_lines(1)
    await eventually(
        lambda: checked.client.get_children(checked.layout.election), "it takes part in the election", RECOVERY_S
    )
    return program


@asynccontextmanager
async def publishing(
    cluster: Cluster, unique: Unique, ends: str, after: int
) -> AsyncIterator[tuple[CheckedGroup, Program, Member, Member]]:
    """
    Run a leader that is not a member, and two members. When the second member joins, the leader sends itself
    ``SIG<ends>`` after ``after`` transactions of the publication.
    """
    async with checked_group(cluster, unique) as checked:
        leader = await start_candidate(checked, ends=ends, after=after)
        await checked.produce()
        first = await checked.join()
        await checked.wait_for_partitions(first, checked.partitions)
        yield checked, leader, first, await checked.join()


async def test_a_leader_is_killed_between_two_writes_of_a_plan(cluster: Cluster, unique: Unique) -> None:
    """
    The next leader computes the same plan. It writes the missing assignments with a later generation and completes the
    publication. No partition is lost.
    """
    async with publishing(cluster, unique, "KILL", ONE_ASSIGNMENT) as (checked, leader, first, second):
        await leader.has_died()
        half, written = checked.group_state(), checked.assignments()
        assert half.state == PUBLISHING
        gaining, losing = str(second.consumer.member_id), str(first.consumer.member_id)
        assert written[gaining].generation == half.generation > written[losing].generation
        assert len(first.partitions(checked.topic)) == checked.partitions, (
            "the assignment that revokes partitions is not written yet"
        )
        leader.end_session()
        whole = await checked.wait_for_group_state(
            lambda group_state: group_state.state == DONE, "the publication is finished"
        )
        await checked.check_nothing_is_lost()
        assert whole.generation == half.generation + 1
        assert checked.assignments()[gaining] == written[gaining], "an assignment that was written is not written again"
        assert checked.assignments()[losing].generation == whole.generation
        assert first.lost_partitions == second.lost_partitions == []


async def test_a_leader_is_killed_after_the_last_assignment(cluster: Cluster, unique: Unique) -> None:
    """
    All assignments are written, and the members follow them without a leader. The next leader only marks the
    publication as done.
    """
    async with publishing(cluster, unique, "KILL", ALL_ASSIGNMENTS) as (checked, leader, first, second):
        await leader.has_died()
        half, written = checked.group_state(), checked.assignments()
        assert half.state == PUBLISHING
        assert {each.generation for each in written.values()} == {half.generation}
        await checked.balanced()
        leader.end_session()
        whole = await checked.wait_for_group_state(
            lambda group_state: group_state.state == DONE, "the publication is finished"
        )
        assert whole.generation == half.generation + 1
        assert checked.assignments() == written
        assert first.consumer.is_leader or second.consumer.is_leader
        await checked.check_nothing_is_lost()


@pytest.mark.parametrize("after", [0, STARTED, ONE_ASSIGNMENT, ALL_ASSIGNMENTS])
async def test_a_leader_freezes_and_another_one_publishes(cluster_39: Cluster, unique: Unique, after: int) -> None:
    """
    A leader freezes before a write, and another leader publishes. When the first leader is resumed, ZooKeeper refuses
    its write, and the first leader takes part in the next election. No generation is used twice.
    """
    async with publishing(cluster_39, unique, "STOP", after) as (checked, stopped, first, second):
        await stopped.has_stopped()
        stopped.end_session()
        stopped_id = stopped.lines[0]
        await checked.wait_for_group_state(
            lambda group_state: group_state.state == DONE and group_state.leader != stopped_id,
            "another leader publishes",
        )
        await checked.balanced()
        await eventually(lambda: first.consumer.settled and second.consumer.settled, "all is settled", RECOVERY_S)
        before, version = checked.assignments(), checked.client.exists(checked.layout.group_state).version
        candidates = checked.client.get_children(checked.layout.election)
        stopped.process.send_signal(signal.SIGCONT)
        await eventually(
            lambda: len(checked.client.get_children(checked.layout.election)) > len(candidates),
            "it takes part in the election again",
        )
        assert checked.client.exists(checked.layout.group_state).version == version
        assert checked.assignments() == before
        await checked.check_nothing_is_lost()
        past = [f"{checked.layout.history}/{name}" for name in checked.client.get_children(checked.layout.history)]
        generations = [HistoryEntry.parse(checked.client.get(path)[0], path).generation for path in past]
        assert len(generations) == len(set(generations))


async def test_the_leader_dies_while_a_static_member_is_away(cluster: Cluster, unique: Unique) -> None:
    """The next leader keeps the place of a static member that is away. When that member returns, no partition moves."""
    async with checked_group(cluster, unique) as checked:
        leader = await start_candidate(checked)
        stays, goes = await checked.join(instance_id="stays"), await checked.join(instance_id="goes")
        await checked.balanced()
        before, held = checked.assignments(), checked.owners()
        await checked.group.leave(goes)
        await eventually(lambda: checked.assignments()["goes"].away_since_ms is not None, "it is away", RECOVERY_S)
        leader.close()
        leader.end_session()
        metrics = stays.consumer.metrics
        await eventually(lambda: metrics.latency("allocator").count, "another leader has planned", RECOVERY_S)
        await checked.join(instance_id="goes")
        await checked.balanced()
        assert {slot: each.partitions for slot, each in checked.assignments().items()} == {
            slot: each.partitions for slot, each in before.items()
        }
        kept = {number: checked.owners()[number] for number in stays.partitions(checked.topic)}
        assert kept.items() <= held.items()
        assert stays.lost_partitions == []
        await checked.check_nothing_is_lost()


async def test_an_allocator_hangs(cluster_39: Cluster, unique: Unique) -> None:
    """
    After ``allocator_timeout_ms`` the leader stops waiting for the allocator. It keeps the last plan where that still
    fits, or else uses ``sticky``; the group state has the reason. Neither the group nor the process waits any longer.
    """
    released = threading.Event()

    def hanging(members: list[str], partitions: list[str]) -> Any:
        released.wait()

    settings = {"partition_allocator": hanging, "allocator_timeout_ms": 100, "reconcile_interval_ms": 60_000}
    async with checked_group(cluster_39, unique, partitions=2, **settings) as checked:
        await checked.join()
        await checked.balanced()
        assert "did not return within 0.1 s" in checked.group_state().fallback
    released.set()
