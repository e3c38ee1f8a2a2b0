"""What a member logs about requests that it repeats."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kiel_groups.clients.coordinator.group_transport import FindError
from kiel_groups.clients.coordinator.request_failures import CREATION_S
from kiel_groups.group.coordinated.coordinator_codes import CoordinatorCode as C
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
