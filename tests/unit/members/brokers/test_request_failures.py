"""What a member logs about requests that it repeats."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.backoff import Backoff
from kiel_groups.group.member_state import CoordinatorCode as C
from kiel_groups.group.member_state import GroupRequest
from kiel_groups.members.brokers.request_failures import CREATION_S, RequestFailures
from kiel_groups.members.brokers.transport import FindError
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.group_requests import JoinGroupRequest, SyncGroupRequest
from kiel_groups.zookeeper import tasks as slow_step
from tests.helpers.scripted_coordinator import FIND, MemberBench
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return the messages of failed requests at one level."""
    return [each.message for each in caplog.records if "could not" in each.message and each.levelno == level]


async def test_a_coordinator_that_is_being_created_is_no_warning_at_first(caplog: pytest.LogCaptureFixture) -> None:
    """
    A new cluster creates the topic of the offsets when the first member joins. That is information for 10 seconds, and
    a warning afterwards. Once the member has joined, a missing coordinator is a warning at once.
    """
    caplog.set_level(logging.INFO)
    bench = MemberBench()
    finds = bench.transport.script[FIND]
    finds.extend([C.NOT_AVAILABLE] * 1_000_000)
    joining = asyncio.ensure_future(bench.member.start())
    await eventually(lambda: bench.trace.count("find") > 3, "several questions for the coordinator")
    message = "group g: could not find its coordinator: no coordinator; retrying"
    assert (logged(caplog, logging.INFO), logged(caplog, logging.WARNING)) == ([message], [])
    bench.runtime.pass_s(CREATION_S)
    await eventually(lambda: logged(caplog, logging.WARNING), "a warning")
    before = bench.trace.count("find")
    await eventually(lambda: bench.trace.count("find") > before + 3, "more questions for the coordinator")
    assert (logged(caplog, logging.INFO), logged(caplog, logging.WARNING)) == ([message], [message])
    finds.clear()
    await joining
    caplog.clear()
    finds.append(C.NOT_AVAILABLE)
    await bench.beat(C.NOT_COORDINATOR)
    await eventually(lambda: message in logged(caplog, logging.WARNING), "a warning at once")
    assert not logged(caplog, logging.INFO)
    await bench.member.close()


async def test_brokers_that_do_not_answer_are_a_warning_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Only a coordinator that is starting is expected at a first join."""
    caplog.set_level(logging.INFO)
    bench = MemberBench()
    bench.transport.script[FIND].append(FindError("no broker answers"))
    await bench.member.start()
    assert logged(caplog, logging.WARNING) == ["group g: could not find its coordinator: no broker answers; retrying"]
    await bench.member.close()


async def test_failures_that_go_on_are_repeated_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    """The lines after the first one say how often the request has failed, and since when."""
    bench = MemberBench()
    failures = RequestFailures("g", bench.metrics, bench.runtime, "find its coordinator")
    for _ in range(240):
        failures.note_code(GroupRequest.SYNC, error_code(C.UNKNOWN))
        bench.runtime.pass_s(1)
    lines = logged(caplog, logging.WARNING)
    assert [line.partition(": group g: SyncGroup")[0] for line in lines] == [
        "group g: could not sync",
        "group g: could not sync, 61 times in 60 s",
        "group g: could not sync, 181 times in 180 s",
    ]
    assert all("a group whose metadata and assignments exceed its message.max.bytes" in line for line in lines)
    caplog.clear()
    failures.forget()
    failures.note_code(GroupRequest.JOIN, error_code(C.UNKNOWN))
    assert ["message.max.bytes" in line for line in logged(caplog, logging.WARNING)] == [False]


async def test_a_coordinator_that_fails_each_sync_is_asked_less_and_less_often() -> None:
    """It grants each join, so that the members would otherwise join again without a pause that grows."""
    bench = MemberBench()
    asked: list[int] = []

    class Pauses(Backoff):
        def delay_s(self, failures: int) -> float:
            asked.append(failures)
            return 0.001

    bench.member._pauses = Pauses(0.001, 0.001)
    bench.transport.script[SyncGroupRequest].extend([C.UNKNOWN] * 5)
    await bench.member.start()
    assert asked == [1, 2, 3, 4, 5]
    await bench.member.close()


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (
            JoinGroupRequest,
            "group g: this member has waited 0 s for the answer to its join: other members may not have given their"
            " assignments back yet",
        ),
        (
            SyncGroupRequest,
            "group g: this member has waited 0 s for its assignment: leader m-1 may not have assigned yet",
        ),
    ],
)
async def test_a_join_or_a_sync_that_waits_is_warned_of(
    request_: type, line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of a member that waits for others says so, and names what it may wait for."""
    monkeypatch.setattr(slow_step, "FIRST_S", 0.01)
    bench = MemberBench()
    answer = asyncio.Event()
    bench.transport.script[request_].append(answer)
    joining = asyncio.ensure_future(bench.member.start())
    await eventually(lambda: line in [record.message for record in caplog.records], "a warning")
    answer.set()
    await joining
    await bench.member.close()
