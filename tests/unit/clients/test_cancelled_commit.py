"""A commit whose caller is cancelled."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients.connected_consumer import ConnectedConsumer
from kiel_groups.errors import SessionLostError
from kiel_groups.model import TopicPartition
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


async def test_a_commit_completes_although_its_caller_is_cancelled() -> None:
    """
    A commit completes although its caller is cancelled. Otherwise, a later release would attribute the offset of the
    unfinished commit to another writer.
    """
    started, answered, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Member:
        async def commit_on_session(self, metadata: str) -> frozenset[TopicPartition]:
            started.set()
            await answered.wait()
            done.set()
            return frozenset()

    settings = SimpleNamespace(group=SimpleNamespace(group="g"))
    waiting = ConnectedConsumer.commit_shielded(cast(Any, SimpleNamespace(member=Member(), _settings=settings)))
    await started.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    answered.set()
    async with asyncio.timeout(5.0):
        await done.wait()
    assert waiting.cancelled()


@pytest.mark.parametrize(("error", "has_trace"), [(SessionLostError("over"), False), (RuntimeError("a bug"), True)])
@pytest.mark.parametrize("chosen", [False, True])
async def test_the_failure_of_a_commit_whose_caller_was_cancelled_is_one_line(
    caplog: pytest.LogCaptureFixture, error: Exception, chosen: bool, has_trace: bool
) -> None:
    """
    A close cancels the automatic commit in flight. If that fails afterwards, one line says so, with a traceback only
    for an error that is not expected; no result counts as one that the application did not await.
    """
    started, answered = asyncio.Event(), asyncio.Event()

    class Member:
        async def commit_on_session(self, _: object) -> frozenset[TopicPartition]:
            started.set()
            await answered.wait()
            raise error

        commit_chosen = commit_on_session

    group = SimpleNamespace(member=Member(), _settings=SimpleNamespace(group=SimpleNamespace(group="g")))
    if chosen:
        waiting = ConnectedConsumer.commit_chosen_shielded(cast(Any, group), {})
    else:
        waiting = ConnectedConsumer.commit_shielded(cast(Any, group))
    await started.wait()
    waiting.cancel()
    answered.set()
    await run_ready_tasks()
    gc.collect()
    [record] = caplog.records
    what = "a commit of chosen offsets" if chosen else "a commit"
    assert record.getMessage() == f"group g: {what} failed after its caller was cancelled: {error}"
    assert (record.levelname, record.exc_info is not None) == ("WARNING", has_trace)
