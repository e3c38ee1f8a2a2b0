"""Whose claims a leader looks at, and when again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from kiel_groups.coordination.leader import ownership_monitor
from kiel_groups.coordination.leader.ownership_monitor import OwnershipMonitor
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.group.znodes.contents import encode_owner
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
PARTITIONS = [TopicPartition("t", number) for number in range(6)]


class Owners:
    """Stands for a session: ``owners`` of all partitions; ``looks`` is which of them were read together."""

    def __init__(self, looks: int) -> None:
        self.owners = {LAYOUT.owner(partition): encode_owner("m") for partition in PARTITIONS}
        self.looks: list[list[int]] = []
        self.enough = asyncio.Event()
        self._most = looks

    async def children(self, path: str) -> list[str]:
        return [str(partition.partition) for partition in PARTITIONS]

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self.looks.append([int(path.rpartition("/")[2]) for path in paths])
        if len(self.looks) == self._most:
            self.enough.set()
        return [Node(self.owners[path], 0, 1, 1, 1) for path in paths]


async def test_what_is_suspicious_is_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn: where there are many, an alarm that is over, or not yet, must not wait for the next."""
    monkeypatch.setattr(ownership_monitor, "MOST_OWNERS", 2)
    session, failures = Owners(looks=4), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    looking = OwnershipMonitor(cast(Any, session), LAYOUT, tasks, Metrics(), 0.0)
    looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    async with asyncio.timeout(5.0):
        await session.enough.wait()
    looking.stop()
    await tasks.cancel()
    assert session.looks[:4] == [[0, 1], [0, 2, 3], [0, 4, 5], [0, 1]]
    assert not failures


async def test_who_does_not_lead_any_more_shows_no_alarms() -> None:
    """Its gauges would say for ever what was so when it resigned."""
    session, metrics, failures = Owners(looks=3), Metrics(), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    looking = OwnershipMonitor(cast(Any, session), LAYOUT, tasks, metrics, 0.0)

    def shown() -> dict[str, float]:
        return {name: value for name, _, value in metrics.samples()}

    looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    async with asyncio.timeout(5.0):
        await session.enough.wait()
    assert shown()["partitions_wrongly_owned"] == 1
    looking.stop()
    await tasks.cancel()
    assert [shown()[kind] for kind in ownership_monitor.KINDS] == [0, 0, 0]
    assert not failures


async def test_what_was_suspicious_before_it_resigned_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leads again much later has seen it once, and does not know that it has been so all the time."""
    session, metrics, failures = Owners(looks=2), Metrics(), list[BaseException]()
    session.owners[LAYOUT.owner(PARTITIONS[0])] = encode_owner("other")
    tasks = TaskSet(failures.append)
    looking = OwnershipMonitor(cast(Any, session), LAYOUT, tasks, metrics, 600.0)
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    await looking._look(looking._timer)
    looking.stop()
    monkeypatch.setattr(loop, "time", lambda: now_s + 700.0)
    looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m", "other"])
    await looking._look(looking._timer)
    assert len(session.looks) == 2
    assert metrics.total("ownership_alarms") == 0
    looking.stop()
    await tasks.cancel()
    assert not failures


async def test_who_leads_again_during_a_look_has_one_timer() -> None:
    """Each alarm would be counted twice: what was begun before it resigned leads to no further look."""
    session, failures = Owners(looks=1), list[BaseException]()
    tasks = TaskSet(failures.append)
    looking = OwnershipMonitor(cast(Any, session), LAYOUT, tasks, Metrics(), 0.0)
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    look, answer = looking._look, session.get_many

    async def held_up(paths: Sequence[str]) -> list[Node | None]:
        begun.set()
        await may_end.wait()
        return await answer(paths)

    async def looked(timer: asyncio.TimerHandle | None) -> None:
        await look(timer)
        ended.set()

    session.get_many = held_up  # type: ignore[method-assign]
    looking._look = looked  # type: ignore[method-assign]
    async with asyncio.timeout(5.0):
        looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m"])
        await begun.wait()
        looking.stop()
        looking._limit_s = 600.0
        looking.expect(dict.fromkeys(PARTITIONS, "m"), ["m"])
        timer = looking._timer
        may_end.set()
        await ended.wait()
    assert timer is not None
    assert looking._timer is timer
    assert not timer.cancelled()
    looking.stop()
    await tasks.cancel()
    assert not failures
