"""A leader's eye on foreign members: what it says of one term is no news of the next, and none of a term that ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import pytest

from kiel_groups.coordination.leader.foreign_members import ForeignMemberMonitor
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Node, Session
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
JAVA = "g_java-1-abcdef01"


class OneStranger:
    """A session that sees a Java consumer, as soon as ``may_answer`` is set; ``looks`` counts those that ``began``."""

    def __init__(self) -> None:
        self.may_answer, self.began = asyncio.Event(), asyncio.Event()
        self.looks = 0

    async def children(self, path: str, watcher: Callable[[], None] | None = None) -> list[str]:
        self.looks += watcher is not None and path == LAYOUT.ids
        self.began.set()
        await self.may_answer.wait()
        return [JAVA] if path == LAYOUT.ids else []

    async def exists_many(self, paths: list[str]) -> list[Node]:
        return [Node(b"", 0, 5, 5, 7) for _ in paths]


async def ended() -> None:
    """All other tasks have."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


class Watched:
    """A watch of the group on such a session."""

    def __init__(self) -> None:
        self.session, self.metrics = OneStranger(), Metrics()
        tasks = TaskSet(lambda error: pytest.fail(repr(error)))
        self.watch = ForeignMemberMonitor(cast("Session", self.session), LAYOUT, tasks, self.metrics)

    @property
    def gauge(self) -> float | None:
        return {name: value for name, _, value in self.metrics.samples()}.get("foreign_members")


async def test_each_term_tells_anew_and_leaves_no_gauge(caplog: pytest.LogCaptureFixture) -> None:
    """The alarm is raised once a term; between terms this process counts no foreigners."""
    watched = Watched()
    watched.session.may_answer.set()
    for term in (1, 2):
        watched.watch.start()
        await ended()
        assert watched.gauge == 1
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * term
        watched.watch.stop()
        assert watched.gauge == 0


async def test_a_look_that_a_resignation_overtook_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """What it finds is the next leader's to tell."""
    watched = Watched()
    watched.watch.start()
    await watched.session.began.wait()
    watched.watch.stop()
    watched.session.may_answer.set()
    await ended()
    assert (watched.gauge, caplog.records) == (None, [])


async def test_who_leads_again_during_a_look_looks_again() -> None:
    """The look under way may have seen the group as it was; another follows it."""
    watched = Watched()
    watched.watch.start()
    await watched.session.began.wait()
    watched.watch.stop()
    watched.watch.start()
    watched.session.may_answer.set()
    await ended()
    assert (watched.gauge, watched.session.looks) == (1, 2)
