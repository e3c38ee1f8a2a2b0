"""The heartbeats of a member: their times, what their answers renew, and the end of their thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.members.brokers.coordinator import BeatTarget, CoordinatorHeartbeat
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext
from kiel_groups.members.brokers.transport import BeatAnswer
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.model import GenerationToken
from kiel_groups.wire.group_requests import HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.manual_runtime import ManualRuntime
from tests.helpers.waiting import eventually_blocking, run_ready_tasks

pytestmark = pytest.mark.unit

TOKEN = GenerationToken(5, "m")


class Bench:
    """The heartbeats of a member with an interval of 1 s and a session of 6 s. Their answers are those of a test."""

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.manual = ManualRuntime()
        self.runtime = runtime or self.manual
        self.metrics = Metrics()
        self.sent: list[tuple[float, int, object]] = []
        #: The answer to each request; None: the test answers later by ``unanswered``.
        self.answer: int | Exception | None = 0
        self.unanswered: list[Callable[[BeatAnswer], None]] = []
        #: The answer to syncs, if it differs.
        self.sync_answer: int | None = None
        self.reports: list[tuple[BeatTarget, BeatAnswer]] = []
        self.is_closed = False
        context = CoordinatedContext(
            group=GroupConfig(group="g"),
            timing=CoordinatorConfig(session_timeout_ms=6_000, heartbeat_interval_ms=1_000),
            transport=cast(Any, self),
            versions=GroupVersions((0, 9)),
            metrics=self.metrics,
            runtime=self.runtime,
        )
        self.heartbeat = CoordinatorHeartbeat(context, lambda *report: self.reports.append(report))

    def beat(self, coordinator: int, request: object, timeout_s: float, answered: Callable[[BeatAnswer], None]) -> None:
        assert timeout_s == 1.0
        self.sent.append((self.runtime.boot_time_s() - 1_000, coordinator, request))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            self.unanswered.append(answered)
        elif self.sync_answer is not None and isinstance(request, SyncGroupRequest):
            answered(BeatAnswer(self.sync_answer))
        else:
            answered(BeatAnswer(self.answer))

    def close_beats(self) -> None:
        self.is_closed = True

    def target(self, coordinator: int = 1) -> BeatTarget:
        return BeatTarget(coordinator, GenerationGate(TOKEN, 6_000, self.runtime.boot_time_s()))

    def times(self) -> list[float]:
        return [at_s for at_s, _, _ in self.sent]


async def test_heartbeats_are_an_interval_apart() -> None:
    """The first one comes an interval after the join, and each has the generation and the id of its membership."""
    bench = Bench()
    bench.heartbeat.follow(bench.target())
    bench.manual.pass_s(3.5)
    assert bench.times() == [1, 2, 3]
    assert bench.sent[0] == (1, 1, HeartbeatRequest("g", 5, "m"))


async def test_a_late_heartbeat_does_not_move_the_next_ones() -> None:
    """They stay at multiples of the interval after the join, as those of other members; missed ones are left out."""
    bench = Bench()
    bench.heartbeat.follow(bench.target())
    bench.manual.sleep_s(1.25)
    bench.manual.pass_s(1)
    assert bench.times() == [1.25, 2]
    bench.manual.sleep_s(2)
    bench.manual.pass_s(1.75)
    assert bench.times() == [1.25, 2, 4.25, 5, 6]


async def test_a_member_whose_lease_is_over_asks_for_its_assignment() -> None:
    """The stable group's answer opens the gate again, until half a session after the question."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.answer = 16
    bench.manual.pass_s(2.5)
    bench.answer = 0
    assert not target.gate.is_open(1_003)
    bench.manual.pass_s(0.5)
    assert bench.sent[-1] == (3, 1, SyncGroupRequest("g", 5, "m", {}))
    assert target.gate.deadline_s == 1_006
    bench.manual.pass_s(1)
    assert bench.sent[-1] == (4, 1, HeartbeatRequest("g", 5, "m"))
    await run_ready_tasks()
    assert [answer.code for _, answer in bench.reports] == [16, 16, 0, 0]


async def test_a_coordinator_that_loads_its_log_does_not_open_a_gate() -> None:
    """It accepts every heartbeat, of members that it has removed, too; it grants no sync."""
    bench = Bench()
    target = bench.target()
    target.gate._deadline_s = 0
    bench.sync_answer = 27
    bench.heartbeat.follow(target)
    bench.manual.pass_s(2.5)
    sync, beat = SyncGroupRequest("g", 5, "m", {}), HeartbeatRequest("g", 5, "m")
    assert [request for _, _, request in bench.sent] == [sync, beat, sync, beat, sync, beat]
    assert not target.gate.is_open(bench.runtime.boot_time_s())


async def test_a_membership_that_has_ended_during_the_question_is_asked_for_no_more() -> None:
    """The refusal of its sync is followed by nothing, and the next membership has heartbeats."""
    bench = Bench()
    target = bench.target()
    target.gate._deadline_s = 0
    bench.answer = None
    bench.heartbeat.follow(target)
    bench.manual.pass_s(0.1)
    bench.heartbeat.follow(bench.target(2))
    bench.unanswered[0](BeatAnswer(27))
    bench.manual.pass_s(1.5)
    assert [type(request) for _, _, request in bench.sent] == [SyncGroupRequest, HeartbeatRequest]
    await run_ready_tasks()
    assert bench.reports == []


async def test_nothing_is_sent_for_a_membership_that_has_just_ended() -> None:
    """The event loop shuts the gate before it tells the thread that there is no membership."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    target.gate.shut()
    bench.manual.pass_s(5)
    assert bench.sent == []


async def test_nothing_is_sent_without_a_membership() -> None:
    """The thread starts with the first membership, and rests while there is none."""
    bench = Bench()
    bench.heartbeat.follow(None)
    assert bench.manual.tickers[0].due_s is None
    bench.heartbeat.follow(bench.target())
    bench.heartbeat.follow(None)
    bench.manual.pass_s(300)
    assert bench.sent == []


async def test_the_timer_is_reset_by_a_join_and_by_a_discovery() -> None:
    """A new generation, or another coordinator, is beaten for an interval later; the same target changes nothing."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.manual.pass_s(0.9)
    bench.heartbeat.follow(target)
    bench.manual.pass_s(0.2)
    assert bench.times() == [1]
    bench.heartbeat.follow(bench.target(2))
    bench.manual.pass_s(1)
    assert [(round(at_s, 3), node) for at_s, node, _ in bench.sent] == [(1, 1), (2.1, 2)]


async def test_a_lease_that_is_over_is_confirmed_at_once_but_not_in_a_loop() -> None:
    """A coordinator that refuses each heartbeat, and is named again at once, is asked at the usual interval."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.manual.sleep_s(3)
    bench.heartbeat.follow(None)
    bench.heartbeat.follow(target)
    bench.manual.pass_s(0)
    assert bench.times() == [3]
    target.gate._deadline_s = 0
    bench.answer = bench.sync_answer = 16
    for _ in range(20):
        bench.heartbeat.follow(None)
        bench.heartbeat.follow(target)
        bench.manual.pass_s(0.1)
    # A refused sync is followed by a heartbeat.
    assert [round(at_s, 1) for at_s in bench.times()] == [3, 4, 4, 5, 5]


@pytest.mark.parametrize("code", [14, 15, 22, 27])
async def test_only_success_renews_the_lease(code: int) -> None:
    """The lease counts from the sending of a heartbeat that was answered 0. Each answer is reported on the loop."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.manual.pass_s(1)
    assert target.gate.confirmed_s == 1_001
    bench.answer = code
    bench.manual.pass_s(1)
    assert target.gate.confirmed_s == 1_001
    assert bench.reports == []
    await run_ready_tasks()
    assert bench.reports == [(target, BeatAnswer(0)), (target, BeatAnswer(code))]
    assert bench.metrics.counter("heartbeats", code=str(code)) == 1
    assert bench.metrics.latency("heartbeat").count == 2


async def test_a_late_answer_counts_from_the_sending() -> None:
    """While a heartbeat has no answer, no other one is sent; the next one follows the answer at once if it is due."""
    bench = Bench()
    bench.answer = None
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.manual.pass_s(2.5)
    assert bench.times() == [1]
    bench.unanswered[0](BeatAnswer(0))
    assert target.gate.confirmed_s == 1_001
    bench.manual.pass_s(0)
    assert bench.times() == [1, 2.5]


async def test_an_answer_for_a_former_membership_is_reported_as_such() -> None:
    """The answer has the membership that it was asked for, and renews no other one."""
    bench = Bench()
    bench.answer = None
    former, next_ = bench.target(), BeatTarget(1, GenerationGate(GenerationToken(6, "m"), 6_000, 1_000))
    bench.heartbeat.follow(former)
    bench.manual.pass_s(1)
    bench.heartbeat.follow(next_)
    bench.unanswered[0](BeatAnswer(0))
    await run_ready_tasks()
    assert bench.reports == [(former, BeatAnswer(0))]
    assert next_.gate.confirmed_s == 1_000


async def test_a_failure_of_the_transport_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A bug would otherwise stop the heartbeats unnoticed. The next one is sent an interval later."""
    bench = Bench()
    bench.heartbeat.follow(bench.target())
    bench.answer = ValueError("a bug")
    bench.manual.pass_s(1)
    bench.answer = 0
    bench.manual.pass_s(1)
    assert bench.times() == [1, 2]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "group g: the heartbeat failed"
    ]


async def test_a_stop_ends_the_thread_and_its_connection() -> None:
    """After a stop nothing is sent, and a caller that waits for the end returns at once."""
    bench = Bench()
    bench.heartbeat.follow(bench.target())
    bench.heartbeat.stop()
    bench.manual.pass_s(5)
    assert bench.sent == []
    assert bench.is_closed
    assert bench.manual.tickers[0].ended
    bench.heartbeat.wait_ended(60)


async def test_the_thread_leaves_before_it_stops() -> None:
    """A leave request that is asked for before the stop is sent, once; heartbeats end."""
    bench = Bench()
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.heartbeat.leave(1, "m")
    bench.heartbeat.stop()
    bench.manual.pass_s(5)
    assert [request for _, _, request in bench.sent] == [LeaveGroupRequest("g", "m")]
    assert bench.is_closed


async def test_a_thread_that_has_sent_no_heartbeat_leaves() -> None:
    """A member that leaves during its first join has no assignment, so its thread starts for the leave request."""
    bench = Bench()
    bench.heartbeat.leave(1, "m")
    bench.heartbeat.stop()
    bench.manual.pass_s(5)
    assert [(broker, request) for _, broker, request in bench.sent] == [(1, LeaveGroupRequest("g", "m"))]
    assert bench.manual.tickers[0].ended
    assert bench.is_closed


async def test_an_interpreter_that_exits_starts_no_thread_to_leave() -> None:
    """The leave request is not sent, and the end of the process is not disturbed."""
    bench = Bench()
    (ticker,) = bench.manual.tickers

    def start() -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    ticker.start = start  # type: ignore[method-assign]
    bench.heartbeat.leave(1, "m")
    bench.heartbeat.stop()
    bench.heartbeat.wait_ended(60)
    assert bench.sent == []


async def test_a_leave_follows_a_heartbeat_under_way() -> None:
    """The connection has one request at a time, so the leave request waits for the answer to the heartbeat."""
    bench = Bench()
    bench.answer = None
    target = bench.target()
    bench.heartbeat.follow(target)
    bench.manual.pass_s(1)
    bench.heartbeat.leave(1, "m")
    bench.manual.pass_s(0)
    assert len(bench.sent) == 1
    bench.unanswered[0](BeatAnswer(27))
    bench.manual.pass_s(0)
    assert bench.sent[1][2] == LeaveGroupRequest("g", "m")


def test_a_closed_loop_ends_the_membership(caplog: pytest.LogCaptureFixture) -> None:
    """A client that was left without a close does not keep its partitions: the thread leaves, and ends."""
    bench: list[Bench] = []

    async def start() -> None:
        bench.append(Bench())
        bench[0].heartbeat.follow(bench[0].target())

    asyncio.run(start())
    bench[0].manual.pass_s(1)
    assert [request for _, _, request in bench[0].sent] == [LeaveGroupRequest("g", "m")]
    assert bench[0].manual.tickers[0].ended
    assert bench[0].is_closed
    assert "the event loop was closed before its client; leaving the group" in caplog.text


def test_an_answer_after_the_end_of_the_loop_is_dropped() -> None:
    """The thread survives an answer that it cannot report any more."""
    bench: list[Bench] = []

    async def start() -> None:
        bench.append(Bench())
        bench[0].answer = None
        bench[0].heartbeat.follow(bench[0].target())
        bench[0].manual.pass_s(1)

    asyncio.run(start())
    bench[0].unanswered[0](BeatAnswer(0))
    bench[0].manual.pass_s(60)
    assert bench[0].manual.tickers[0].ended


async def test_heartbeats_continue_beside_a_blocked_loop() -> None:
    """An application that blocks the event loop keeps its lease; the answers are reported when the loop is free."""
    bench = Bench(Runtime())
    bench.heartbeat._interval_s = 0.01
    target = bench.target()
    before_s = target.gate.confirmed_s
    bench.heartbeat.follow(target)
    eventually_blocking(lambda: len(bench.sent) >= 3, "three heartbeats")
    assert target.gate.confirmed_s > before_s
    assert bench.reports == []
    bench.heartbeat.stop()
    await run_ready_tasks()
    assert len(bench.reports) >= 2
    bench.heartbeat.wait_ended(5)
    eventually_blocking(
        lambda: "kiel-groups-heartbeat" not in [thread.name for thread in threading.enumerate()], "the thread has ended"
    )
