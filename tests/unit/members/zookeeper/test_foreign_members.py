"""The leader's alarm about foreign members is raised once in each term, and never after the term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.monitors import ForeignMemberMonitor
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
JAVA = "g_java-1-abcdef01"


class ForeignMemberSession:
    """
    A session with a Java consumer. ``began`` is set when the monitor reads children; the answer waits for
    ``may_answer``.
    """

    def __init__(self) -> None:
        self.may_answer, self.began = asyncio.Event(), asyncio.Event()
        self.checks = 0

    async def children(self, path: str, watcher: Callable[[], None] | None = None) -> list[str]:
        self.checks += watcher is not None and path == LAYOUT.ids
        self.began.set()
        await self.may_answer.wait()
        return [JAVA] if path == LAYOUT.ids else []

    async def exists_many(self, paths: list[str]) -> list[Node]:
        return [Node(b"", 0, 5, 5, 7) for _ in paths]


async def other_tasks_end() -> None:
    """Wait until all other tasks have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


class MonitoredGroup:
    """A group with one Java consumer, and the monitor that reports it."""

    def __init__(self) -> None:
        self.session, self.metrics = ForeignMemberSession(), Metrics()
        tasks = TaskSet(lambda error: pytest.fail(repr(error)))
        self.monitor = ForeignMemberMonitor(session_context(self.session, tasks=tasks, metrics=self.metrics))

    @property
    def gauge(self) -> float | None:
        return {name: value for name, _, value in self.metrics.samples()}.get("foreign_members")


async def test_each_term_has_one_alarm_and_its_own_gauge(caplog: pytest.LogCaptureFixture) -> None:
    """
    In each of its terms, a leader logs one alarm about foreign members and sets the gauge to their number. Between two
    terms, the gauge is 0.
    """
    group = MonitoredGroup()
    group.session.may_answer.set()
    for term in (1, 2):
        group.monitor.start()
        await other_tasks_end()
        assert group.gauge == 1
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * term
        group.monitor.stop()
        assert group.gauge == 0


async def test_a_check_that_ends_after_the_resignation_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """
    A check that ends after the leader's resignation reports nothing, because the next leader reports foreign members.
    """
    group = MonitoredGroup()
    group.monitor.start()
    await group.session.began.wait()
    group.monitor.stop()
    group.session.may_answer.set()
    await other_tasks_end()
    assert (group.gauge, caplog.records) == (None, [])


async def test_a_leader_that_is_elected_again_during_a_check_checks_again() -> None:
    """
    A leader that resigns and is elected again during a check starts another check, because the first one may have read
    an outdated state.
    """
    group = MonitoredGroup()
    group.monitor.start()
    await group.session.began.wait()
    group.monitor.stop()
    group.monitor.start()
    group.session.may_answer.set()
    await other_tasks_end()
    assert (group.gauge, group.session.checks) == (1, 2)
