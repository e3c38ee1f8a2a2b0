"""A watch on a topic fires: the member looks whether the topic was created again, and commits wait for that look."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.errors import SessionLostError

pytestmark = pytest.mark.unit


class Topics:
    """What a session tells of one topic, when it is told to; and who looks at it."""

    def __init__(self) -> None:
        self.czxid = 1
        self.looks = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.errors: list[BaseException] = []
        self.heard: list[tuple[str, int]] = []
        self.watch = TopicIncarnations(cast(Any, self), TaskSet(self.errors.append))
        self.watch.on_recreated = lambda *created: self.heard.append(created)

    async def exists(self, _path: str, _watcher: object) -> object:
        self.looks += 1
        await self.answers.wait()
        return SimpleNamespace(czxid=self.czxid)

    async def recreated(self) -> None:
        """It is followed, created again, and about to be looked at."""
        await self.watch.follow({"t"})
        self.answers.clear()
        self.czxid = 2
        self.watch.look_again()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_catches_up_waits_for_the_look_of_somebody_else() -> None:
    topics = Topics()
    await topics.recreated()
    waiting = asyncio.ensure_future(topics.watch.catch_up())
    await turns()
    assert not waiting.done()
    topics.answers.set()
    await asyncio.wait_for(waiting, 5)
    assert topics.heard == [("t", 2)]
    assert topics.looks == 2


async def test_a_look_whose_caller_is_interrupted_is_made_again() -> None:
    """A commit that is cancelled may have been the one that looked."""
    topics = Topics()
    await topics.watch.follow({"t"})
    topics.answers.clear()
    topics.czxid = 2
    looking = asyncio.ensure_future(topics.watch.catch_up())
    topics.watch._hinted.add("t")
    await turns()
    looking.cancel()
    await asyncio.wait({looking})
    topics.answers.set()
    await turns()
    assert topics.heard == [("t", 2)]
    assert not topics.errors


async def test_a_look_that_fails_is_made_again() -> None:
    """Whoever waited for it is told; and as nobody would look otherwise, the next commit would go out unasked."""
    topics = Topics()
    await topics.watch.follow({"t"})
    exists = topics.exists

    async def failing(*_: object) -> object:
        topics.exists = exists  # type: ignore[method-assign]
        raise ConnectionError("an answer that nobody expected")

    topics.exists = failing  # type: ignore[method-assign]
    topics.czxid = 2
    topics.watch._hinted.add("t")
    with pytest.raises(ConnectionError):
        await topics.watch.catch_up()
    await topics.watch.catch_up()
    assert topics.heard == [("t", 2)]


async def test_a_look_on_a_lost_session_is_not_made_again() -> None:
    """A look that fails starts another one. On a lost session it does not: each would fail at once, in a busy loop."""
    topics = Topics()
    await topics.watch.follow({"t"})
    before = topics.looks

    async def lost(*_: object) -> object:
        topics.looks += 1
        raise SessionLostError("the session is over")

    topics.exists = lost  # type: ignore[method-assign]
    topics.watch.look_again()
    for _ in range(10):
        await turns()
    assert topics.looks == before + 1
    # What was not looked at is not taken for looked at either.
    with pytest.raises(SessionLostError):
        await topics.watch.catch_up()
    assert not topics.errors


async def test_a_look_that_is_thrown_away_starts_no_other() -> None:
    """A process was killed, and what it was about is collected: the next one would be thrown away as well, for ever."""
    topics = Topics()
    await topics.watch.follow({"t"})
    topics.answers.clear()
    topics.watch._hinted.add("t")
    looking = topics.watch.catch_up()
    looking.send(None)
    await turns()
    looking.close()
    await turns()
    assert topics.looks == 2
