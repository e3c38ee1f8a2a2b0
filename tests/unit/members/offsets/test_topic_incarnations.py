"""After a watch on a topic has fired, commits wait until the member has checked whether the topic was created again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.errors import SessionLostError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


class Topics:
    """A session with one topic. Reads wait for ``may_answer``."""

    def __init__(self) -> None:
        self.czxid = 1
        self.reads = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.errors: list[BaseException] = []
        self.tracker = OffsetTracker()
        self.incarnations = TopicIncarnations(cast(Any, self), TaskSet(self.errors.append), self.tracker)
        self._announced: list[tuple[str, int]] = []
        self.incarnations.on_recreated = lambda *announced: self._announced.append(announced)

    async def exists(self, _path: str, _watcher: object) -> object:
        self.reads += 1
        await self.may_answer.wait()
        return SimpleNamespace(czxid=self.czxid)

    @property
    def created(self) -> list[tuple[str, int]]:
        """The topics that were announced as recreated, in order; the next call returns later ones only."""
        announced, self._announced = self._announced, []
        return announced

    async def recreate(self) -> None:
        """Follow the topic, create it again, and start a check, which waits for ``may_answer``."""
        await self.incarnations.follow({"t"})
        self.may_answer.clear()
        self.czxid = 2
        self.incarnations.recheck()


async def test_catch_up_waits_for_a_check_in_progress() -> None:
    """``catch_up`` waits for a check in progress, and starts no second one."""
    topics = Topics()
    await topics.recreate()
    waiting = asyncio.ensure_future(topics.incarnations.catch_up())
    await run_ready_tasks()
    assert not waiting.done()
    topics.may_answer.set()
    await asyncio.wait_for(waiting, 5)
    assert topics.created == [("t", 2)]
    assert topics.reads == 2


async def test_offsets_of_the_old_log_are_not_stored_after_a_check() -> None:
    """A write that waited for ``catch_up`` is decided right after it, before any partition is restarted."""
    topics, partition = Topics(), TopicPartition("t", 0)
    await topics.incarnations.follow({"t"})
    topics.tracker.claim([partition], topics.incarnations.creation("t"))
    assert topics.tracker.may_store(partition)
    topics.czxid = 2
    topics.incarnations.recheck()
    await topics.incarnations.catch_up()
    assert not topics.tracker.may_store(partition)


async def test_a_check_whose_caller_is_cancelled_is_repeated() -> None:
    """A check is repeated if its caller, such as a commit, is cancelled during the check."""
    topics = Topics()
    await topics.incarnations.follow({"t"})
    topics.may_answer.clear()
    topics.czxid = 2
    checking = asyncio.ensure_future(topics.incarnations.catch_up())
    topics.incarnations._hinted.add("t")
    await run_ready_tasks()
    checking.cancel()
    await asyncio.wait({checking})
    topics.may_answer.set()
    await run_ready_tasks()
    assert topics.created == [("t", 2)]
    assert not topics.errors


async def test_a_failed_check_is_repeated() -> None:
    """
    A failed check raises its error to the caller, and the next call repeats it. Without this, the next commit would be
    sent unchecked.
    """
    topics = Topics()
    await topics.incarnations.follow({"t"})
    exists = topics.exists

    async def failing(*_: object) -> object:
        topics.exists = exists  # type: ignore[method-assign]
        raise ConnectionError("an unexpected answer")

    topics.exists = failing  # type: ignore[method-assign]
    topics.czxid = 2
    topics.incarnations._hinted.add("t")
    with pytest.raises(ConnectionError):
        await topics.incarnations.catch_up()
    await topics.incarnations.catch_up()
    assert topics.created == [("t", 2)]


async def test_a_failed_check_on_a_lost_session_is_not_repeated() -> None:
    """A failed check is not repeated on a lost session, where each check would fail at once, in a busy loop."""
    topics = Topics()
    await topics.incarnations.follow({"t"})
    before = topics.reads

    async def lost(*_: object) -> object:
        topics.reads += 1
        raise SessionLostError("the session is over")

    topics.exists = lost  # type: ignore[method-assign]
    topics.incarnations.recheck()
    await run_ready_tasks(50)
    assert topics.reads == before + 1
    # The topic is still unchecked.
    with pytest.raises(SessionLostError):
        await topics.incarnations.catch_up()
    assert not topics.errors


async def test_a_check_that_is_garbage_collected_is_not_repeated() -> None:
    """
    A check that is garbage-collected is not repeated. When the simulator collects the coroutines of a killed process, a
    repeated check would be collected as well, in an endless loop.
    """
    topics = Topics()
    await topics.incarnations.follow({"t"})
    topics.may_answer.clear()
    topics.incarnations._hinted.add("t")
    checking = topics.incarnations.catch_up()
    checking.send(None)
    await run_ready_tasks()
    checking.close()
    await run_ready_tasks()
    assert topics.reads == 2
