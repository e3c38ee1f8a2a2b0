"""When a member asks for the partitions of the topics that it may have to assign."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import NoBrokersError
from kiel_groups.members.brokers.assignment_planner import AssignmentPlanner
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.group_requests import JoinGroupRequest
from tests.helpers.coordinated_consumer import P0, ConsumerBench
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit


async def test_a_leader_asks_while_the_coordinator_answers_its_join() -> None:
    """The partitions are known when the join is answered, so the assignment waits for no further request."""
    bench, joining = ConsumerBench(), asyncio.Event()
    bench.transport.script[JoinGroupRequest].append(joining)
    start = asyncio.create_task(bench.member.start())
    await eventually(lambda: bench.topics.reasons == ["join"], "the partitions are asked for")
    joining.set()
    await start
    await bench.traced("assigned t:0, t:1")
    assert bench.topics.reasons == ["join"]
    await bench.member.close()


async def test_an_assignment_waits_for_the_answer() -> None:
    """A join that is answered earlier than the request for partitions is followed by no second request."""
    bench = ConsumerBench()
    bench.topics.failure = answer = asyncio.Event()
    start = asyncio.create_task(bench.member.start())
    await eventually(lambda: bench.topics.reasons == ["join"], "the partitions are asked for")
    await run_ready_tasks()
    assert not any(entry.startswith("sync") for entry in bench.trace)
    answer.set()
    await start
    assert bench.topics.reasons == ["join"]
    await bench.member.close()


async def test_each_join_asks_anew() -> None:
    """A leader never assigns the partitions that it has learned for an earlier join."""
    bench = await ConsumerBench().joined()
    bench.topics.counts["t"] = 1
    await bench.member.resubscribe()
    await bench.traced("assigned t:0")
    assert bench.topics.reasons == ["join", "join"]
    await bench.member.close()


@pytest.mark.parametrize("other", ["is not subscribed to by the leader", "was missing", "could not be read"])
async def test_what_a_join_did_not_bring_is_asked_for(other: str) -> None:
    """The leader asks for the members' topics itself if its earlier question leaves one of them open."""
    bench = ConsumerBench()
    planner = AssignmentPlanner(bench.context, bench.member._hooks._assignors, bench.topics)
    if other == "could not be read":
        bench.topics.failure = NoBrokersError()
    await planner.ask_ahead(["t"] if other == "is not subscribed to by the leader" else ["t", "u"])
    bench.topics.failure = None
    bench.topics.counts["u"] = 1
    planned = await planner.plan(JoinedGroup("range", "m", {"m": ConsumerSubscription(("t", "u")).encode()}))
    assert ConsumerAssignment.parse(planned["m"], "the assignment").partitions == {"t": (0, 1), "u": (0,)}
    assert bench.topics.reasons == ["join", "assignment"]
    await planner.ask_ahead(["t"])
    await planner.plan(JoinedGroup("range", "m", {"m": ConsumerSubscription(("t", "u")).encode()}))
    assert bench.topics.reasons == ["join", "assignment", "join"], "the topics of the other members are known now"


async def test_a_member_that_another_one_leads_does_not_ask() -> None:
    """Only the first join and those of a leader ask; a member that becomes the leader asks when it assigns."""
    bench = ConsumerBench()
    bench.transport.leader = "m-2"
    bench.assign(P0)
    await bench.joined()
    assert bench.topics.reasons == ["join"]
    bench.transport.leader, bench.transport.assignment = "m-1", None
    await bench.member.resubscribe()
    await bench.traced("assigned t:0, t:1")
    assert bench.topics.reasons == ["join", "assignment"]
    await bench.member.close()
