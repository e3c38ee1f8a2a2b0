"""Which owner znodes a leader reads, and when it reads them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper import monitors as ownership_monitor
from kiel_groups.members.zookeeper.monitors import OwnershipMonitor
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
PARTITIONS = [TopicPartition("t", number) for number in range(6)]


class Owners:
    """A session with one owner for each partition. ``checks`` lists the partitions of each read."""

    def __init__(self, checks: int) -> None:
        self.owners = {LAYOUT.owner(partition): encode_owner("m") for partition in PARTITIONS}
        self.checks: list[list[int]] = []
        self.enough = asyncio.Event()
        self._most = checks

    async def children(self, path: str) -> list[str]:
        return [str(partition.partition) for partition in PARTITIONS]

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self.checks.append([int(path.rpartition("/")[2]) for path in paths])
        if len(self.checks) == self._most:
            self.enough.set()
        return [Node(self.owners[path], 0, 1, 1, 1) for path in paths]


def monitor_of(session: Owners, tasks: TaskSet, metrics: Metrics | None = None, limit_ms: int = 0) -> OwnershipMonitor:
    """Return a monitor that raises an alarm for mismatches that last ``limit_ms``."""
    monitor = OwnershipMonitor(session_context(session, tasks=tasks, metrics=metrics))
    monitor._limit_s = limit_ms / 1000
    return monitor


async def test_mismatches_are_read_in_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Each check reads the owners that mismatched before, and some of the other owners in turn. So an alarm need not wait
    until all owners were read.
    """
    monkeypatch.setattr(ownership_monitor, "MOST_OWNERS", 2)
    session, failures = Owners(checks=4), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    monitor = monitor_of(session, tasks)
    monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    async with asyncio.timeout(5.0):
        await session.enough.wait()
    monitor.stop()
    await tasks.cancel()
    assert session.checks[:4] == [[0, 1], [0, 2, 3], [0, 4, 5], [0, 1]]
    assert not failures


async def test_the_alarm_gauges_are_0_after_the_resignation() -> None:
    """
    After the leader's resignation, the alarm gauges are 0: a process that no longer leads must not export old alarms.
    """
    session, metrics, failures = Owners(checks=3), Metrics(), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    monitor = monitor_of(session, tasks, metrics)

    def gauges() -> dict[str, float]:
        return {name: value for name, _, value in metrics.samples()}

    monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    async with asyncio.timeout(5.0):
        await session.enough.wait()
    assert gauges()["partitions_wrongly_owned"] == 1
    monitor.stop()
    await tasks.cancel()
    assert [gauges()[kind] for kind in ownership_monitor.KINDS] == [0, 0, 0]
    assert not failures


async def test_a_problem_is_logged_once_each_time_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    """A problem that has passed, and comes back, is news: the alarms do not work meanwhile."""
    session, failures = Owners(checks=1), list[BaseException]()
    error, children = CoordinationError("no right to read"), session.children
    outcomes = [error, error, None, error]

    async def sometimes(path: str) -> list[str]:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome
        return await children(path)

    session.children = sometimes  # type: ignore[method-assign]
    tasks = TaskSet(failures.append)
    monitor = monitor_of(session, tasks, limit_ms=600_000)
    monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m"])
    logged = []
    while outcomes:
        await monitor._check(monitor._timer)
        logged.append(len(caplog.records))
    assert logged == [1, 1, 1, 2]
    monitor.stop()
    await tasks.cancel()
    assert not failures


async def test_mismatches_from_before_a_resignation_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A mismatch found before a resignation does not count in the next term, because the leader does not know whether it
    lasted in between.
    """
    session, metrics, failures = Owners(checks=2), Metrics(), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    monitor = monitor_of(session, tasks, metrics, limit_ms=600_000)
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    await monitor._check(monitor._timer)
    monitor.stop()
    monkeypatch.setattr(loop, "time", lambda: now_s + 700.0)
    monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    await monitor._check(monitor._timer)
    assert len(session.checks) == 2
    assert metrics.total("ownership_alarms") == 0
    monitor.stop()
    await tasks.cancel()
    assert not failures


async def test_a_leader_that_is_elected_again_during_a_check_has_one_timer() -> None:
    """A check of a former term schedules no further check. With two timers, each alarm would be counted twice."""
    session, failures = Owners(checks=1), list[BaseException]()
    tasks = TaskSet(failures.append)
    monitor = monitor_of(session, tasks)
    began, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    check, answer = monitor._check, session.get_many

    async def delayed(paths: Sequence[str]) -> list[Node | None]:
        began.set()
        await may_end.wait()
        return await answer(paths)

    async def recorded(timer: asyncio.TimerHandle | None) -> None:
        await check(timer)
        ended.set()

    session.get_many = delayed  # type: ignore[method-assign]
    monitor._check = recorded  # type: ignore[method-assign]
    async with asyncio.timeout(5.0):
        monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m"])
        await began.wait()
        monitor.stop()
        monitor._limit_s = 600.0
        monitor.expect(dict.fromkeys(PARTITIONS, "m"), ["m"])
        timer = monitor._timer
        may_end.set()
        await ended.wait()
    assert timer is not None
    assert monitor._timer is timer
    assert not timer.cancelled()
    monitor.stop()
    await tasks.cancel()
    assert not failures
