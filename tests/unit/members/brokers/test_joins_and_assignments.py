"""The joins of a member, and the assignments that they bring: their order, their errors, and what delays them."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import (
    AllocatorError,
    BrokerConnectionError,
    ConfigError,
    GroupConfigError,
    KielGroupsError,
    NoBrokersError,
    ProtocolError,
    SessionLostError,
)
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.members.brokers import member as held_assignment
from kiel_groups.members.brokers.transport import FindError
from kiel_groups.metrics import Latency
from kiel_groups.model import TopicPartition
from kiel_groups.wire.group_requests import JoinGroupRequest, SyncGroupRequest
from kiel_groups.wire.offsets import OffsetFetchRequestV1
from tests.helpers.scripted_coordinator import FIND, MemberBench
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

C = CoordinatorCode
SILENCE = BrokerConnectionError("broker 1: the connection broke")
READ = OffsetFetchRequestV1("g", (TopicPartition("t", 0),))

REJOIN = ("assign", "sync", "complete")
AGAIN = ("join m-1", *REJOIN)
ANEW = ("join anew", *REJOIN)


# Joins


async def test_the_time_of_a_join_has_its_failed_tries() -> None:
    """A join lasts from its decision to the assignment, however many requests it takes."""
    bench = MemberBench()
    found, granted = asyncio.Event(), asyncio.Event()
    bench.transport.script[FIND].append(found)
    bench.transport.script[JoinGroupRequest].extend([C.LOADING, granted])
    bench.member.request_rejoin()
    await bench.traced("find")
    bench.runtime.pass_s(1)
    found.set()
    await eventually(lambda: bench.trace.count("join anew") == 2, "the second try")
    bench.runtime.pass_s(2)
    granted.set()
    await bench.traced("complete")
    assert bench.metrics.latency("join") == Latency(1, 3, 3)
    await bench.member.close()


async def test_the_time_of_a_join_counts_from_the_removal() -> None:
    """A member that the coordinator has removed joins at once; how long it was a member does not count."""
    bench = await MemberBench().joined()
    bench.runtime.pass_s(100)
    granted = asyncio.Event()
    bench.transport.script[JoinGroupRequest].append(granted)
    bench.trace.clear()
    await bench.beat(C.UNKNOWN_MEMBER)
    await bench.traced("join anew")
    bench.runtime.pass_s(2)
    granted.set()
    await bench.traced("complete")
    assert bench.metrics.latency("join") == Latency(2, 2, 2)
    await bench.member.close()


async def test_the_time_of_a_join_that_follows_another_begins_after_it() -> None:
    """A join that is asked for during another one takes effect after it, and both are measured."""
    bench = await MemberBench().joined()
    first, second = asyncio.Event(), asyncio.Event()
    bench.transport.script[SyncGroupRequest].extend([first, second])
    bench.member.request_rejoin()
    await bench.traced("sync")
    bench.runtime.pass_s(1)
    bench.member.request_rejoin()
    bench.runtime.pass_s(2)
    first.set()
    await eventually(lambda: bench.trace.count("sync") == 2, "the second join")
    bench.runtime.pass_s(4)
    second.set()
    await eventually(lambda: bench.trace.count("complete") == 2, "the second assignment")
    assert bench.metrics.latency("join") == Latency(3, 7, 4)
    await bench.member.close()


async def test_a_leader_sends_all_assignments() -> None:
    """The leader's sync has the assignment of each member; a follower's sync has none."""
    bench = await MemberBench().joined()
    assert [dict(each.assignments) for each in bench.transport.sent if isinstance(each, SyncGroupRequest)] == [
        {"m-1": b"assignment of topics"}
    ]
    assert bench.member.leads
    bench.transport.leader = "other"
    bench.member.request_rejoin()
    await bench.traced("complete")
    assert not bench.member.leads
    assert bench.transport.sent[-1].assignments == {}
    await bench.member.close()


async def test_an_assignment_that_cannot_be_read_is_left_and_the_member_joins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A foreign leader's mistake stops no member. It proves its membership without an assignment meanwhile, and joins
    again after a pause that grows, until it can read what it gets.
    """
    monkeypatch.setattr(held_assignment, "FIRST_REJOIN_S", 0.1)
    bench = MemberBench()
    bench.hooks.completing = ProtocolError("the assignment of this member has one byte")
    await bench.member.start()
    assert not bench.member.need_rejoin
    await bench.beat()
    assert bench.trace == ["find", "join anew", *REJOIN, "beat"]
    await eventually(lambda: bench.trace.count("complete") == 2, "the second try")
    bench.hooks.completing = None
    await eventually(lambda: bench.trace.count("complete") == 3, "the third try")
    assert bench.trace[6:] == ["prepare", *AGAIN, "prepare", *AGAIN]
    assert bench.metrics.counter("assignments_unreadable") == 2
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert [each.partition("; joining")[2][:11] for each in errors] == [" again in 0", " again in 0"]
    assert "leader m-1 has sent an assignment that cannot be read: the assignment of this member has one" in errors[0]
    await bench.member.close()
    assert bench.failures == []


async def test_another_rebalance_ends_the_wait_for_an_assignment_that_can_be_read() -> None:
    """The member joins with the others. The close does not wait either."""
    bench = MemberBench()
    bench.hooks.completing = ProtocolError("the assignment of this member has one byte")
    await bench.member.start()
    await bench.traced("complete")
    bench.trace.clear()
    await bench.beat(C.REBALANCE_IN_PROGRESS)
    assert await bench.settled(["beat", "prepare", *AGAIN]) == ("beat", "prepare", *AGAIN)
    async with asyncio.timeout(5.0):
        await bench.member.close()


async def test_an_error_of_the_assignor_reaches_the_caller_of_the_join() -> None:
    """A leader whose assignor fails leaves the group before its caller gets the error: no member waits for it."""
    bench = MemberBench()
    bench.hooks.assigning = AllocatorError("the assignor raised")
    with pytest.raises(AllocatorError, match="the assignor raised"):
        await bench.member.start()
    await bench.member.close()
    assert bench.trace == ["find", "join anew", "assign", "failed AllocatorError", "leave m-1"]


async def test_an_error_of_the_metadata_stops_the_member() -> None:
    """What the program cannot say of its subscription is not repeated as if the coordinator had not answered."""
    bench = MemberBench()

    class Failing:
        def __iter__(self) -> None:
            raise ConfigError("the topic does not fit")

    bench.hooks.offers = Failing()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="the topic does not fit"):
        await bench.member.start()
    await bench.member.close()


async def test_a_request_that_cannot_be_encoded_stops_the_member() -> None:
    """A subscription that does not fit the protocol would fail in the same way at each try."""
    bench = MemberBench()
    bench.transport.script[JoinGroupRequest].append(ConfigError("too long for the protocol"))
    with pytest.raises(ConfigError, match="too long"):
        await bench.member.start()
    assert bench.trace == ["find", "join anew", "failed ConfigError"]
    await bench.member.close()


@pytest.mark.parametrize("script", [FIND, JoinGroupRequest])
async def test_a_group_that_cannot_be_reached_is_an_error_in_time(script: object) -> None:
    """If no broker names the coordinator, or the coordinator answers no join, the caller of a join gets an error."""
    bench = MemberBench(find_timeout_ms=20)
    bench.transport.script[script].extend([FindError("no broker answers")] * 1_000)
    with pytest.raises(NoBrokersError, match="no broker answers"):
        await bench.member.start()
    await bench.member.close()


async def test_a_refusal_names_what_is_to_be_changed() -> None:
    """The errors of a refused join name the assignors that were offered, or the bounds of the session timeout."""
    bench = MemberBench()
    bench.transport.script[JoinGroupRequest].append(C.INCONSISTENT_PROTOCOL)
    with pytest.raises(GroupConfigError, match="it offers range, and the members"):
        await bench.member.start()
    bench = MemberBench()
    bench.transport.script[JoinGroupRequest].append(C.INVALID_SESSION_TIMEOUT)
    with pytest.raises(ConfigError, match=r"session_timeout_ms: 6000 given.*group.max.session.timeout.ms \(30,000"):
        await bench.member.start()


async def test_a_join_waits_for_the_answer_to_a_request_about_offsets() -> None:
    """No join is sent while a commit or a read of offsets is under way, and one is sent when that is answered."""
    bench = await MemberBench().joined()
    answered = asyncio.Event()
    bench.transport.script[OffsetFetchRequestV1].append(answered)
    reading = asyncio.ensure_future(bench.send(GroupRequest.FETCH, READ, 5))
    await bench.traced("read offsets")
    bench.member.request_rejoin()
    await bench.traced("prepare")
    await run_ready_tasks()
    assert bench.trace == ["read offsets", "prepare"]
    answered.set()
    await reading
    assert await bench.settled(("read offsets", "prepare", *AGAIN)) == ("read offsets", "prepare", *AGAIN)
    await bench.member.close()


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_a_request_that_is_given_up_does_not_delay_a_join(end: str) -> None:
    """A request counts as under way until its end, whether that is an answer, an error or a cancellation."""
    bench = await MemberBench().joined()
    bench.transport.script[OffsetFetchRequestV1].append(asyncio.Event())
    reading = asyncio.ensure_future(bench.send(GroupRequest.FETCH, READ, 0.01 if end == "failed" else 60))
    await bench.traced("read offsets")
    if end == "cancelled":
        reading.cancel()
    with pytest.raises(asyncio.CancelledError if end == "cancelled" else KielGroupsError):
        await reading
    bench.member.request_rejoin()
    await bench.traced("complete")
    await bench.member.close()


async def test_a_commit_needs_a_known_coordinator() -> None:
    """While the coordinator is looked for, a commit fails at once; a read asks for the coordinator itself."""
    bench = await MemberBench().joined()
    bench.transport.script[FIND].append(asyncio.Event())
    await bench.beat(C.NOT_COORDINATOR)
    with pytest.raises(SessionLostError, match="the group's coordinator is not known at the moment"):
        await bench.send(GroupRequest.COMMIT, READ, 5)
    await bench.send(GroupRequest.FETCH, READ, 5)
    assert bench.trace == ["beat", "find", "find", "read offsets"]
    await bench.member.close()


async def test_a_former_member_reads_offsets_from_the_present_coordinator() -> None:
    """A member that was given up has no heartbeat to tell it of another coordinator, so it asks before each read."""
    bench = await MemberBench().joined()
    bench.member.given_up()
    await bench.send(GroupRequest.FETCH, READ, 5)
    assert bench.trace == ["lost", "find", "read offsets"]
    await bench.member.close()


# The assignment


async def test_a_new_subscription_during_a_join_takes_effect_after_it() -> None:
    """The assignment of the join is given back, and the opening of its partitions cancelled, before the next join."""
    bench = MemberBench()
    bench.hooks.completing = asyncio.Event()
    joined = asyncio.Event()
    bench.transport.script[JoinGroupRequest].append(joined)
    starting = asyncio.ensure_future(bench.member.start())
    await bench.traced("join anew")
    bench.member.request_rejoin()
    bench.member.request_rejoin()
    joined.set()
    await starting
    expected = ("find", *ANEW, "complete cancelled", "prepare", *AGAIN)
    assert await bench.settled(expected) == expected
    await bench.member.close()


async def test_a_rebalance_cancels_the_opening_of_partitions() -> None:
    """A program that still opens its partitions stops doing so before they are given back."""
    bench = MemberBench()
    bench.hooks.completing = asyncio.Event()
    await bench.joined()
    await bench.beat(C.REBALANCE_IN_PROGRESS)
    expected = ("beat", "complete cancelled", "prepare", *AGAIN)
    assert await bench.settled(expected) == expected
    await bench.member.close()


async def test_removal_cancels_what_the_program_is_doing() -> None:
    """A program that opens or gives back partitions stops doing so, because another member may have them."""
    bench = MemberBench()
    bench.hooks.preparing = asyncio.Event()
    await bench.joined()
    gate = bench.member.gate
    assert gate is not None
    await bench.beat(C.REBALANCE_IN_PROGRESS)
    await bench.traced("prepare")
    await bench.beat(C.UNKNOWN_MEMBER)
    expected = ("beat", "prepare", "beat", "lost", "prepare cancelled", *ANEW)
    assert sorted(await bench.settled(expected)) == sorted(expected)
    assert gate.is_shut
    assert bench.metrics.counter("memberships_lost") == 1
    bench.hooks.preparing = None
    await bench.member.close()


@pytest.mark.parametrize("hook", ["completing", "preparing"])
async def test_an_error_of_a_hook_stops_the_member(hook: str) -> None:
    """A program that fails to open or to give back partitions is a member no more: it leaves, and its caller knows."""
    bench = MemberBench()
    setattr(bench.hooks, hook, ValueError("a bug"))
    bench.member.request_rejoin()
    await bench.traced("complete")
    bench.member.request_rejoin()
    await bench.traced("leave m-1")
    assert bench.trace[-3:] == ["failed KielGroupsError", "lost", "leave m-1"]
    assert str(bench.failures[0]) == "group g: ValueError: a bug"
    with pytest.raises(KielGroupsError, match="a bug"):
        await bench.member.ensure_active()
    await bench.member.close()


async def test_the_gate_follows_the_heartbeats() -> None:
    """
    An answered heartbeat renews the lease, one without an answer does not. After the end of the lease, the answer to a
    sync opens the gate again, and heartbeats follow.
    """
    bench = await MemberBench().joined()
    gate = bench.member.gate
    assert gate is not None
    for _ in range(3):
        await bench.beat(SILENCE)
        bench.trace.clear()
    assert not gate.is_open(bench.runtime.now_s)
    await bench.beat(0)
    assert gate.is_open(bench.runtime.now_s)
    assert bench.trace == ["sync"]
    await bench.beat(0)
    assert bench.trace == ["sync", "beat"]
    await bench.member.close()


@pytest.mark.parametrize("rebalance_timeout", [False, True])
async def test_a_drain_has_the_time_that_the_coordinator_waits(rebalance_timeout: bool) -> None:
    """
    With a rebalance timeout, heartbeats continue during a drain, and their answers renew the lease. Without an answer,
    the lease ends: the coordinator removes a silent member after its session, as ever. Without such a timeout, the
    coordinator counts no heartbeat until the join, so none is sent, and the lease bounds the drain.
    """
    bench = MemberBench(rebalance_timeout=rebalance_timeout, rebalance_timeout_ms=60_000)
    bench.hooks.preparing = asyncio.Event()
    await bench.joined()
    gate = bench.member.gate
    assert gate is not None
    confirmed_s = bench.runtime.now_s
    await bench.beat(C.REBALANCE_IN_PROGRESS)
    await bench.traced("prepare")
    assert gate.deadline_s == confirmed_s + 3 + rebalance_timeout
    bench.trace.clear()
    await bench.beat(C.REBALANCE_IN_PROGRESS)
    assert bench.trace == ["beat"] * rebalance_timeout
    assert gate.deadline_s == confirmed_s + 3 + 2 * rebalance_timeout
    await bench.beat(SILENCE)
    assert gate.deadline_s == confirmed_s + 3 + 2 * rebalance_timeout
    bench.hooks.preparing.set()
    await bench.traced("complete")
    await bench.member.close()


async def test_a_sync_that_took_long_is_followed_by_a_heartbeat() -> None:
    """The lease counts from the sending of the sync. If it is over, a heartbeat opens the gate at once."""
    bench = MemberBench()
    answered = asyncio.Event()
    bench.transport.script[SyncGroupRequest].append(answered)
    starting = asyncio.ensure_future(bench.member.start())
    await bench.traced("sync")
    bench.runtime.pass_s(4)
    answered.set()
    await starting
    gate = bench.member.gate
    assert gate is not None
    assert not gate.is_open(bench.runtime.now_s)
    bench.runtime.pass_s(0.01)
    assert gate.is_open(bench.runtime.now_s)
    await bench.member.close()


async def test_an_assignment_that_is_dropped_before_its_drain_begins_is_not_opened() -> None:
    """
    A process that was stopped learns in one step that it must join again, and that it is no member any more. Its
    partitions would be opened beside those of the next assignment (seed 190917905704).
    """
    bench = MemberBench()
    bench.hooks.completing = asyncio.Event()
    bench.member.request_rejoin()
    await bench.traced("complete")
    bench.member.request_rejoin()
    bench.member.given_up()
    await bench.traced("complete cancelled")
    assert bench.trace[bench.trace.index("complete") + 1 :][:2] == ["lost", "complete cancelled"]
    await bench.member.close()
