"""The supervisor of a process's sessions: the pauses between joins, and the time limit of its close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.errors import (
    AuthorizationError,
    ClosedError,
    CredentialsError,
    ForeignMemberError,
    KielGroupsError,
    NoZooKeeperError,
    SessionLostError,
)
from kiel_groups.members.zookeeper import group_session as session_supervisor
from kiel_groups.members.zookeeper.group_session import SessionSupervisor
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit


def process(**settings: Any) -> ProcessContext:
    config, zookeeper = GroupConfig(group="g", **settings), ZooKeeperConfig(hosts="127.0.0.1:1")
    return ProcessContext(config, zookeeper, Metrics(), Runtime())


class Session:
    """A session that is over at once, or that leaves and closes as slowly as its server answers."""

    member_id = "m"

    def __init__(self, *, is_over: bool = False, leaves: bool = True, closes: bool = True) -> None:
        self.session = SimpleNamespace(ended="over", abandoned=False)
        self.over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self._leaves, self._closes = leaves, closes
        self.is_closing = False
        if is_over:
            self.over.set_result(None)

    async def leave(self) -> None:
        if not self._leaves:
            await asyncio.Event().wait()
        await self.close()

    def close(self) -> asyncio.Future[object]:
        self.is_closing = True
        closed = asyncio.get_running_loop().create_future()
        if self._closes:
            closed.set_result(None)
        return closed

    async def close_within(self, limit: CloseLimit) -> None:
        try:
            async with limit.timeout():
                await self.close()
        except TimeoutError:
            self.session.abandoned = True


def supervised(
    context: ProcessContext,
    begin: Callable[[float], Awaitable[Any]],
    on_failure: Callable[[KielGroupsError], None],
) -> SessionSupervisor[Any]:
    """Return a supervisor whose sessions are those that ``begin`` returns."""
    supervisor: SessionSupervisor[Any] = SessionSupervisor(context, cast(Any, None), on_failure)
    supervisor._open_and_join = begin  # type: ignore[method-assign,assignment]
    return supervisor


@pytest.mark.parametrize("first", [True, False])
async def test_joins_are_repeated_with_growing_pauses(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """The first pause is ``retry_backoff_ms``; each one varies by half, so that members do not join together."""
    pauses, tries = list[float](), list[int]()
    sleep = asyncio.sleep

    async def begin(by_s: float) -> Any:
        tries.append(1)
        if len(tries) == 1 and not first:
            return Session(is_over=True)
        if len(tries) < 9:
            raise SessionLostError("the server is busy") if first else NoZooKeeperError("no server answers")
        return Session()

    async def note(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(session_supervisor.asyncio, "sleep", note)
    supervisor = supervised(process(retry_backoff_ms=40), begin, lambda error: None)
    await supervisor.start()
    async with asyncio.timeout(5.0):
        while len(tries) < 9:
            await sleep(0)
    await supervisor.close()
    expected = [0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.0]
    assert len(pauses) == len(expected)
    assert all(0.5 * most <= pause <= 1.5 * most for pause, most in zip(pauses, expected, strict=True))
    assert len({round(pause / most, 6) for pause, most in zip(pauses, expected, strict=True)}) > 1, "there is no jitter"


@pytest.mark.parametrize(
    "error",
    [AuthorizationError("no right", path="/a", right="read"), CredentialsError("no such ACL"), None],
    ids=["right", "acl", "lost"],
)
async def test_the_pauses_grow_if_one_session_after_another_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: KielGroupsError | None
) -> None:
    """Each session may deliver records that the next one delivers again. A lost session is replaced at once."""
    pauses, sessions = list[float](), list[Session]()
    sleep = asyncio.sleep

    async def begin(by_s: float) -> Any:
        sessions.append(Session())
        if len(sessions) < 5:
            sessions[-1].over.set_result(error)
        return sessions[-1]

    async def note(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(session_supervisor.asyncio, "sleep", note)
    supervisor = supervised(process(retry_backoff_ms=40), begin, lambda error: None)
    await supervisor.start()
    async with asyncio.timeout(5.0):
        while len(sessions) < 5:
            await sleep(0)
    await supervisor.close()
    # A pause after each refusal, and the first pause of each join.
    expected = [0.04] * 4 if error is None else [0.04, 0.04, 0.08, 0.04, 0.16, 0.04, 0.32, 0.04]
    assert len(pauses) == len(expected)
    assert all(0.5 * most <= pause <= 1.5 * most for pause, most in zip(pauses, expected, strict=True))


@pytest.mark.parametrize("first", [True, False])
async def test_an_error_that_no_retry_can_heal_is_raised_once(first: bool) -> None:
    """The first join raises it; of a later one, ``on_failure`` is notified. Neither is tried again."""
    tries, failures = list[int](), list[KielGroupsError]()
    error = ForeignMemberError("a member of kiel")

    async def begin(by_s: float) -> Any:
        tries.append(1)
        if len(tries) == 1 and not first:
            return Session(is_over=True)
        raise error

    supervisor = supervised(process(retry_backoff_ms=1), begin, failures.append)
    if first:
        with pytest.raises(ForeignMemberError):
            await supervisor.start()
        assert (len(tries), failures) == (1, [])
        return
    await supervisor.start()
    await eventually(lambda: failures, "the error is reported")
    await asyncio.sleep(0.05)
    assert (len(tries), failures) == (2, [error])
    await supervisor.close()


@pytest.mark.parametrize("first", [True, False])
async def test_each_cause_of_failed_joins_is_logged_once(caplog: pytest.LogCaptureFixture, first: bool) -> None:
    """All failures are counted. A cause is logged again after another one, or a success; a bug has a traceback."""
    busy, lost, bug = SessionLostError("busy"), SessionLostError("lost"), SessionLostError("a bug")
    if not first:
        busy, lost, bug = cast(Any, (NoZooKeeperError("busy"), NoZooKeeperError("lost"), RuntimeError("a bug")))
    outcomes = [busy, busy, lost, lost, lost, busy, bug, bug, None]
    plan = [] if first else [None]
    plan += [*outcomes, bug, None]
    sessions = list[Session]()

    async def begin(by_s: float) -> Any:
        error = plan.pop(0)
        if error is not None:
            raise error
        sessions.append(Session(is_over=len(plan) > 0))
        return sessions[-1]

    context = process(retry_backoff_ms=1)
    supervisor = supervised(context, begin, lambda error: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_supervisor, "LONGEST_JOIN_PAUSE_S", 0.002)
        await supervisor.start()
        await eventually(lambda: not plan and sessions[-1] is supervisor.current, "it has joined")
    await supervisor.close()
    failed = [record for record in caplog.records if "could not join" in record.message]
    assert [record.message.split(": ")[2].partition(";")[0] for record in failed] == [
        "busy",
        "lost",
        "busy",
        "a bug",
        "a bug",
    ]
    assert [record.exc_info is not None for record in failed] == [False, False, False, not first, not first]
    assert context.metrics.total("joins_failed") == 9


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("closes", [True, False])
async def test_a_close_ends_by_its_limit(leaves: bool, closes: bool) -> None:
    """A part of the limit is left to the close of the session. What the server does not answer is abandoned."""
    session = Session(leaves=leaves, closes=closes)

    async def begin(by_s: float) -> Any:
        return session

    supervisor = supervised(process(), begin, lambda error: None)
    await supervisor.start()
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    async with asyncio.timeout(5.0):
        await supervisor.close(CloseLimit(0.2))
    took_s = now_s() - began_s
    assert took_s < 4.0
    assert session.session.abandoned is not closes
    if closes:
        assert (took_s >= 0.1) is not leaves, "a member that can leave in order waits for nothing"


async def test_a_close_ends_a_join_and_the_closes_of_lost_sessions() -> None:
    """Neither a session that still joins, nor lost ones that no server closes, hold the close beyond its limit."""
    tries = list[int]()

    async def begin(by_s: float) -> Any:
        tries.append(1)
        if len(tries) == 1:
            return Session(is_over=True, closes=False)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    supervisor = supervised(process(retry_backoff_ms=1), begin, lambda error: None)
    await supervisor.start()
    await eventually(lambda: len(tries) == 2, "another session joins")
    async with asyncio.timeout(5.0):
        await supervisor.close(CloseLimit(0.1))
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()] == []


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_close_that_is_cancelled_closes_the_session(turns: int) -> None:
    """The session does not leave in order then, and the close does not wait for it."""
    session = Session(leaves=False, closes=False)

    async def begin(by_s: float) -> Any:
        return session

    supervisor = supervised(process(), begin, lambda error: None)
    await supervisor.start()
    closing = asyncio.ensure_future(supervisor.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not session.is_closing
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert session.is_closing


async def test_a_start_beside_a_close_is_refused() -> None:
    """The session that has joined meanwhile is closed."""
    session, joined = Session(), asyncio.Event()

    async def begin(by_s: float) -> Any:
        await joined.wait()
        return session

    supervisor = supervised(process(), begin, lambda error: None)
    starting = asyncio.ensure_future(supervisor.start())
    await asyncio.sleep(0)
    await supervisor.close()
    joined.set()
    with pytest.raises(ClosedError, match="group g: closed while it was joining"):
        await starting
    assert session.is_closing
