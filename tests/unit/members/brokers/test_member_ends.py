"""The end of a member: its close, the watchdog, and its log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kiel_groups.errors import (
    AllocatorError,
    BrokerConnectionError,
    ClosedError,
    ConfigError,
    KielGroupsError,
    SessionLostError,
)
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.members.brokers.coordinator import BeatTarget
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.model import GenerationToken, TopicPartition
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.group_requests import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest
from kiel_groups.wire.offsets import OffsetFetchRequestV1
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.leftovers import Leftovers
from tests.helpers.scripted_coordinator import FIND, MemberBench
from tests.helpers.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.unit

C = CoordinatorCode
SILENCE = BrokerConnectionError("broker 1: the connection broke")
READ = OffsetFetchRequestV1("g", (TopicPartition("t", 0),))

REJOIN = ("assign", "sync", "complete")
AGAIN = ("join m-1", *REJOIN)
ANEW = ("join anew", *REJOIN)


# The close


async def test_a_close_gives_back_and_leaves() -> None:
    """A close prepares, leaves in one attempt, and ends the heartbeat's thread with its connection."""
    bench = await MemberBench().joined()
    await bench.member.close()
    bench.runtime.pass_s(0)
    assert bench.trace == ["prepare", "leave m-1"]
    assert bench.transport.is_beat_closed
    assert all(ticker.ended for ticker in bench.runtime.tickers)
    with pytest.raises(ClosedError, match="group g: the member has left"):
        await bench.member.ensure_active()


@pytest.mark.parametrize("answer", [*C, SILENCE], ids=str)
async def test_each_answer_to_a_leave_request(answer: int | Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The member leaves in one attempt. If the coordinator has not removed it, the log says that its session ends."""
    caplog.set_level(logging.INFO)
    bench = await MemberBench().joined()
    bench.transport.script[LeaveGroupRequest].append(answer)
    caplog.clear()
    async with asyncio.timeout(5):
        await bench.member.close()
    bench.runtime.pass_s(10)
    assert bench.trace == ["prepare", "leave m-1"]
    assert bench.member.token is None
    said = "the coordinator has not performed the leave" in caplog.text
    assert said is (answer not in (C.NO_ERROR, C.UNKNOWN_MEMBER))


async def test_a_close_waits_for_a_leave_request_after_an_error() -> None:
    """The error of a member is known before it has left; its close does not cut the leave request off."""
    bench = MemberBench()
    bench.hooks.assigning = AllocatorError("the assignor raised")
    answered = asyncio.Event()
    bench.transport.script[LeaveGroupRequest].append(answered)
    with pytest.raises(AllocatorError):
        await bench.member.start()
    closing = asyncio.ensure_future(bench.member.close())
    await run_ready_tasks()
    assert not closing.done()
    answered.set()
    await closing


@pytest.mark.parametrize("phase", ["find", "join anew", "assign", "sync"])
async def test_a_close_during_a_join(phase: str) -> None:
    """A close ends a search or a join at once; the member leaves if it has a generation."""
    bench = MemberBench()
    stuck = asyncio.Event()
    if phase == "assign":
        bench.hooks.assigning = stuck
    else:
        kinds = {"find": FIND, "join anew": JoinGroupRequest, "sync": SyncGroupRequest}
        bench.transport.script[kinds[phase]].append(stuck)
    before = Leftovers()
    bench.member.request_rejoin()
    await bench.traced(phase)
    await bench.member.close()
    assert bench.trace[bench.trace.index(phase) + 1 :] == ["leave m-1"] * (phase in ("assign", "sync"))
    await before.check(1, 1)


async def test_a_close_during_a_pause() -> None:
    """A member that waits for its next try has nothing to leave, and does not wait."""
    bench = MemberBench()
    bench.transport.script[FIND].extend([FindError("no broker answers")] * 20)
    before = Leftovers()
    bench.member.request_rejoin()
    await eventually(lambda: len(bench.trace) >= 3, "three tries")
    await bench.member.close()
    await before.check(1, 1)


async def test_a_close_during_a_drain_waits_for_it() -> None:
    """A close that comes during a rebalance leaves instead of joining again."""
    bench = MemberBench()
    bench.hooks.preparing = asyncio.Event()
    await bench.joined()
    bench.member.request_rejoin()
    await bench.traced("prepare")
    closing = asyncio.ensure_future(bench.member.close())
    await run_ready_tasks()
    assert not closing.done()
    bench.hooks.preparing.set()
    await closing
    assert bench.trace == ["prepare", "leave m-1"]


async def test_a_close_without_a_coordinator_looks_for_it_until_the_drain_ends() -> None:
    """The last commit needs the coordinator, so it is looked for; the leave request alone is not worth a search."""
    bench = MemberBench()
    bench.hooks.preparing = asyncio.Event()
    await bench.joined()
    bench.transport.script[FIND].extend([FindError("no broker answers")] * 3)
    await bench.beat(SILENCE)
    closing = asyncio.ensure_future(bench.member.close())
    await eventually(lambda: bench.trace.count("find") == 4, "the coordinator is looked for")
    bench.hooks.preparing.set()
    await closing
    assert bench.trace[-1] == "leave m-1"


async def test_a_bounded_close_leaves_without_the_application() -> None:
    """At the end of the limit, the partitions are lost and the member leaves, so that no other member waits for it."""
    bench = MemberBench()
    bench.hooks.preparing = asyncio.Event()
    await bench.joined()
    await bench.member.close(CloseLimit(0.05))
    assert bench.trace == ["prepare", "lost", "prepare cancelled", "leave m-1"]


async def test_a_bounded_close_does_not_wait_for_a_frozen_coordinator() -> None:
    """A leave request without an answer ends with the limit, and the heartbeat's thread tries once more."""
    bench = await MemberBench().joined()
    bench.transport.script[LeaveGroupRequest].append(asyncio.Event())
    before = Leftovers()
    async with asyncio.timeout(5):
        await bench.member.close(CloseLimit(0.05))
    bench.runtime.pass_s(0)
    assert bench.trace == ["prepare", "leave m-1", "leave m-1"]
    await before.check(1, 1)


async def test_a_close_that_is_cancelled_leaves_by_the_thread() -> None:
    """A caller that stops waiting leaves behind neither a member nor a task, nor a heartbeat."""
    bench = MemberBench()
    bench.hooks.preparing = asyncio.Event()
    before = Leftovers()
    await bench.joined()
    closing = asyncio.ensure_future(bench.member.close())
    await bench.traced("prepare")
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    bench.runtime.pass_s(0)
    assert sorted(bench.trace) == ["leave m-1", "lost", "prepare", "prepare cancelled"]
    assert all(ticker.ended for ticker in bench.runtime.tickers)
    await before.check(1, 1)


async def test_a_close_is_repeatable() -> None:
    """A second close does nothing, and neither does what comes after it."""
    bench = await MemberBench().joined()
    await bench.member.close()
    await bench.member.close()
    bench.member.request_rejoin()
    bench.member.given_up()
    await run_ready_tasks()
    assert bench.trace == ["prepare", "leave m-1"]


async def test_a_member_that_has_left_sends_nothing_more() -> None:
    """A commit that is answered after the close would otherwise look for the coordinator, to name the new owner."""
    bench = await MemberBench().joined()
    await bench.member.close()
    left = tuple(bench.trace)
    for kind in (GroupRequest.FETCH, GroupRequest.COMMIT):
        with pytest.raises(SessionLostError, match="this member has left the group"):
            await bench.send(kind, READ, 5)
    assert tuple(bench.trace) == left


async def test_a_member_without_a_loop_leaves_by_the_thread() -> None:
    """After a Ctrl-C no event loop runs: the heartbeat's thread sends the leave request."""
    bench = await MemberBench().joined()
    bench.member.abandon(0.0)
    bench.runtime.pass_s(0)
    assert bench.trace == ["leave m-1"]
    assert bench.transport.is_beat_closed


async def test_a_member_leaves_for_a_while() -> None:
    """Its program loses the assignment, and the member joins again when it is asked to, not before."""
    bench = await MemberBench().joined()
    bench.member.leave()
    bench.runtime.pass_s(10)
    await run_ready_tasks()
    assert sorted(bench.trace) == ["leave m-1", "lost"]
    assert bench.member.token is None
    bench.member.request_rejoin()
    await bench.traced("complete")
    assert bench.trace[2:] == [*ANEW]
    await bench.member.close()


# A member that is named first

NAMED = C.MEMBER_ID_REQUIRED


async def _waiting_with_an_id() -> tuple[MemberBench, asyncio.Event, asyncio.Task[None]]:
    """Return a member that the coordinator has named, and whose join with this id is not answered."""
    bench, late = MemberBench(), asyncio.Event()
    bench.transport.script[JoinGroupRequest].extend([NAMED, late])
    starting = asyncio.ensure_future(bench.member.start())
    await bench.traced("join m-named")
    assert bench.trace == ["find", "join anew", "join m-named"]
    bench.trace.clear()
    return bench, late, starting


async def test_a_member_that_is_named_first_joins_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    """The answer that names it is no failure: nothing is logged or counted, and no pause follows."""
    bench, late, starting = await _waiting_with_an_id()
    assert (bench.member.token, bench.member.leads) == (None, False)
    late.set()
    await bench.traced("complete")
    await starting
    assert bench.trace == [*REJOIN]
    assert bench.member.token == GenerationToken(1, "m-named")
    assert bench.metrics.total("group_requests_failed") == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    await bench.member.close()


async def test_a_member_that_is_named_again_and_again_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    """Only the first answer is no failure: a coordinator that never lets its member in does not keep it silent."""
    bench, late = MemberBench(), asyncio.Event()
    bench.transport.script[JoinGroupRequest].extend([NAMED, NAMED, late])
    starting = asyncio.ensure_future(bench.member.start())
    await eventually(lambda: bench.trace.count("join m-named") == 2, "the third join")
    assert bench.metrics.total("group_requests_failed") == 1
    assert [record.message for record in caplog.records if "MEMBER_ID_REQUIRED" in record.message] != []
    late.set()
    await starting
    await bench.member.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_member_that_is_named_first_leaves_during_its_first_join(is_cancelled: bool) -> None:
    """The coordinator need not wait for it until its session is over. The thread leaves for a cancelled close."""
    left = Leftovers()
    bench, _, starting = await _waiting_with_an_id()
    if is_cancelled:
        stuck = asyncio.Event()
        bench.transport.script[LeaveGroupRequest].append(stuck)
        closing = asyncio.ensure_future(bench.member.close())
        await bench.traced("leave m-named")
        closing.cancel()
        await asyncio.wait({closing})
        bench.runtime.pass_s(0)
        assert bench.trace == ["leave m-named"] * 2
        assert bench.transport.is_beat_closed
    else:
        await bench.member.close()
        assert bench.trace == ["leave m-named"]
    with pytest.raises(ClosedError):
        await starting
    await left.check(1, 1)


async def test_a_member_that_is_named_first_is_given_up_during_its_first_join() -> None:
    """The heartbeat's thread starts for the leave request, and beats after the next join."""
    bench, _, starting = await _waiting_with_an_id()
    bench.member.leave()
    bench.runtime.pass_s(0)
    assert bench.trace == ["leave m-named"]
    bench.member.request_rejoin()
    await bench.traced("complete")
    await starting
    assert bench.trace == ["leave m-named", *ANEW]
    await bench.beat()
    assert bench.trace[-1] == "beat"
    await bench.member.close()


async def test_a_first_join_that_crosses_the_leave_is_no_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator refuses the join of a member that leaves, before it answers the leave request."""
    bench, late, starting = await _waiting_with_an_id()
    leaving = asyncio.Event()
    bench.transport.script[LeaveGroupRequest].append(leaving)
    monkeypatch.setattr(
        bench.transport, "_joined", lambda *_: JoinGroupResponse(error_code(C.UNKNOWN_MEMBER), -1, "", "", "", {})
    )
    closing = asyncio.ensure_future(bench.member.close())
    await bench.traced("leave m-named")
    late.set()
    await run_ready_tasks()
    leaving.set()
    await closing
    with pytest.raises(ClosedError):
        await starting
    assert bench.trace == ["leave m-named"]
    assert bench.metrics.total("group_requests_failed") == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# The watchdog


async def test_the_watchdog_leaves_beside_a_blocked_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The heartbeat's thread leaves, nothing is logged, since the loop may hold the log's lock, and no beat follows."""
    bench = await MemberBench().joined()
    gate = bench.member.gate
    assert gate is not None
    caplog.clear()
    bench.member.give_up()
    assert not gate.is_open(bench.runtime.now_s)
    bench.runtime.pass_s(0)
    assert bench.trace == ["leave m-1"]
    assert caplog.records == []
    # An event before the loop hears of it must not start the heartbeats again.
    bench.member.note(GroupRequest.COMMIT, C.LOADING, GenerationToken(1, "m-1"))
    bench.runtime.pass_s(10)
    assert bench.trace == ["leave m-1"]
    bench.member.given_up()
    assert bench.trace == ["leave m-1", "lost"]
    bench.member.request_rejoin()
    await bench.traced("complete")
    assert bench.trace == ["leave m-1", "lost", *ANEW]
    await bench.member.close()


@pytest.mark.parametrize("phase", ["join", "assign", "sync"])
async def test_an_answer_to_a_join_that_was_given_up_is_void(phase: str) -> None:
    """What comes of a join after the watchdog has given it up does not reach the next one."""
    bench = await MemberBench().joined()
    late = asyncio.Event()
    if phase == "assign":
        bench.hooks.assigning = late
    else:
        bench.transport.script[JoinGroupRequest if phase == "join" else SyncGroupRequest].append(late)
    bench.member.request_rejoin()
    await bench.traced({"join": "join m-1"}.get(phase, phase))
    bench.member.given_up()
    bench.hooks.assigning = None
    bench.trace.clear()
    bench.hooks.completed.clear()
    bench.member.request_rejoin()
    await bench.traced("sync")
    late.set()
    await bench.traced("complete")
    await run_ready_tasks()
    assert bench.trace == list(ANEW)
    _, joined, _ = bench.hooks.completed[-1]
    assert joined.leader_id == bench.member.token.member_id  # type: ignore[union-attr]
    await bench.member.close()


async def test_an_assignor_that_fails_too_late_stops_nobody() -> None:
    """The error of an assignor for a join that was given up is void."""
    bench = await MemberBench().joined()
    late = asyncio.Event()

    async def perform(joined: object) -> dict[str, bytes]:
        await late.wait()
        raise AllocatorError("too late")

    usual, bench.hooks.perform_assignment = bench.hooks.perform_assignment, perform  # type: ignore[method-assign,assignment]
    bench.member.request_rejoin()
    await bench.traced("join m-1")
    await run_ready_tasks()
    bench.member.given_up()
    bench.hooks.perform_assignment = usual  # type: ignore[method-assign]
    bench.member.request_rejoin()
    await bench.traced("complete")
    late.set()
    await run_ready_tasks()
    assert bench.failures == []
    await bench.member.close()


# The log


async def test_a_failure_is_logged_once_until_the_membership_is_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    """A cause that repeats has one line; after an answered heartbeat, the same cause has a line again."""
    bench = await MemberBench().joined()
    caplog.clear()
    await bench.beat(SILENCE, SILENCE, C.NOT_COORDINATOR, C.NOT_COORDINATOR, 0, SILENCE)
    lines = [record.message for record in caplog.records if "could not" in record.message]
    silence, moved = (
        "group g: could not prove its membership: broker 1: the connection broke; retrying",
        "group g: could not prove its membership: group g: Heartbeat: NOT_COORDINATOR_FOR_CONSUMER (16)",
    )
    assert [line[: len(moved)] for line in lines] == [silence[: len(moved)], moved, silence[: len(moved)]]
    assert bench.metrics.counter("group_requests_failed", request="Heartbeat") == 5
    await bench.member.close()


@pytest.mark.parametrize("outage", [[SILENCE] * 6, [C.LOADING] * 6])
async def test_the_end_of_the_lease_is_logged_once(outage: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Its warning says that delivery has stopped; another says that it continues, and so it is after each outage."""
    bench = await MemberBench().joined()
    for _ in range(2):
        caplog.clear()
        await bench.beat(*outage[:2])
        assert "delivery has stopped" not in caplog.text
        await bench.beat(*outage[2:], 0, 0)
        lines = [record.message for record in caplog.records if "delivery" in record.message]
        assert [line.partition(":")[2].partition(":")[0] for line in lines] == [
            " delivery has stopped",
            " delivery continues",
        ]
    await bench.member.close()


async def test_delivery_continues_in_the_next_generation(caplog: pytest.LogCaptureFixture) -> None:
    """A member that was removed during the outage joins anew, with a lease of its own."""
    bench = await MemberBench().joined()
    await bench.beat(*[SILENCE] * 6, C.UNKNOWN_MEMBER)
    await bench.traced("complete")
    lines = [record.message for record in caplog.records if "delivery" in record.message]
    assert len(lines) == 2
    assert "delivery continues: the coordinator has confirmed the membership of m-2" in lines[1]
    await bench.member.close()


async def test_a_refusal_is_not_announced_as_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """A join that stops the member has one line, of its error."""
    bench = MemberBench()
    bench.transport.script[JoinGroupRequest].append(C.INVALID_GROUP)
    with pytest.raises(ConfigError):
        await bench.member.start()
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert lines[0].startswith("group g: this member stops: group: the coordinator refuses the name 'g'")


async def test_a_refused_search_is_not_announced_as_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator that is not named for good stops the member, with one line."""
    bench = MemberBench()
    bench.transport.script[FIND].append(C.INVALID_GROUP)
    with pytest.raises(ConfigError):
        await bench.member.start()
    assert [record.message[:28] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "group g: this member stops: "
    ]


@pytest.mark.parametrize("hook", ["completing", "preparing", "assigning"])
async def test_a_hook_that_raises_has_one_line_with_its_traceback(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    """The line that says that the member stops has the traceback of the program's own error, whatever the hook."""
    bench = await MemberBench().joined()
    caplog.clear()
    setattr(bench.hooks, hook, ValueError("broken"))
    bench.member.request_rejoin()
    await bench.traced("failed KielGroupsError")
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [line.message for line in lines] == ["group g: this member stops: group g: ValueError: broken"]
    assert lines[0].exc_text is not None
    assert "in _passed" in lines[0].exc_text
    await bench.member.close()


async def test_an_error_of_this_package_needs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Its text says what has happened."""
    bench = await MemberBench().joined()
    bench.hooks.assigning = AllocatorError("no capacity")
    bench.member.request_rejoin()
    await bench.traced("failed AllocatorError")
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [(line.message, line.exc_text) for line in lines] == [("group g: this member stops: no capacity", None)]
    await bench.member.close()


async def test_a_loss_that_raises_stops_the_member_after_the_step() -> None:
    """The other effects of the loss, such as the next join, are not left out; then the member leaves."""
    bench = await MemberBench().joined()

    def lost(gate: GenerationGate) -> None:
        raise ValueError("broken")

    bench.hooks.lost = lost  # type: ignore[method-assign]
    await bench.beat(C.UNKNOWN_MEMBER)
    await bench.traced("failed KielGroupsError")
    with pytest.raises(KielGroupsError, match="group g: ValueError: broken"):
        await bench.member.ensure_active()
    await bench.member.close()


async def test_a_member_that_is_given_up_when_it_is_about_to_join_does_not() -> None:
    """A join of the former membership that has not been sent yet is not sent any more."""
    bench = await MemberBench().joined()

    async def prepare(gate: GenerationGate) -> None:
        # Called after the join is decided, and before its task begins.
        asyncio.get_running_loop().call_soon(bench.member.given_up)

    bench.hooks.prepare = prepare  # type: ignore[method-assign]
    bench.member.request_rejoin()
    await run_ready_tasks()
    bench.member.request_rejoin()
    await bench.traced("complete")
    assert bench.trace == ["join anew", "assign", "sync", "complete"]
    await bench.member.close()


@pytest.mark.parametrize("answer", [C.UNKNOWN_MEMBER, SILENCE])
async def test_a_heartbeat_that_crosses_the_leave_is_no_failure(
    answer: int | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The coordinator has performed the leave before it got the heartbeat, and does not know the member any more."""
    bench = await MemberBench().joined()
    gate = bench.member.gate
    assert gate is not None
    left = asyncio.Event()
    bench.transport.script[LeaveGroupRequest].append(left)
    closing = asyncio.ensure_future(bench.member.close())
    await bench.traced("leave m-1")
    crossing = BeatAnswer(None, str(answer)) if isinstance(answer, Exception) else BeatAnswer(answer)
    bench.member._beat_answered(BeatTarget(1, gate), crossing)
    left.set()
    await closing
    bench.member._beat_answered(BeatTarget(1, gate), crossing)
    assert "could not prove its membership" not in caplog.text
    assert bench.metrics.total("group_requests_failed") == 0
