"""Work on a loop thread that no caller waits for: its outcome, and the log line of an error that is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable

import pytest

from kiel_groups.errors import ClosedError
from kiel_groups.sync.loop_thread import LoggedFuture, LoopThread
from tests.helpers.waiting import eventually_blocking

pytestmark = pytest.mark.unit


async def fail() -> None:
    raise RuntimeError("a bug")


def failed(outcome: LoggedFuture[None]) -> None:
    with pytest.raises(RuntimeError):
        outcome.result(10.0)


def test_work_begins_without_a_wait() -> None:
    may_end = threading.Event()

    async def work() -> str:
        await asyncio.to_thread(may_end.wait, 10.0)
        return threading.current_thread().name

    with LoopThread() as thread:
        outcome = thread.begin(work)
        assert not outcome.done()
        may_end.set()
        assert outcome.result(10.0) == "kiel-groups-sync"


def test_the_end_of_the_loop_cancels_work() -> None:
    with LoopThread() as thread:
        outcome = thread.begin(asyncio.Event().wait)
    with pytest.raises(concurrent.futures.CancelledError):
        outcome.result(10.0)
    with pytest.raises(ClosedError):
        thread.begin(fail)


def test_a_cancelled_future_cancels_its_work() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread() as thread:
        outcome = thread.begin(work)
        thread.run(asyncio.sleep(0))
        assert outcome.cancel()
        assert ended.wait(10.0)


@pytest.mark.parametrize(
    ("retrieve", "lines"),
    [
        (lambda outcome: None, 1),
        (lambda outcome: outcome.exception(10.0), 0),
        (failed, 0),
    ],
)
def test_an_error_that_is_not_retrieved_is_logged(
    caplog: pytest.LogCaptureFixture, retrieve: Callable[[LoggedFuture[None]], object], lines: int
) -> None:
    with LoopThread("test") as thread:
        outcome = thread.begin(fail)
        eventually_blocking(outcome.done, "the work has failed")
        retrieve(outcome)
        del outcome
    eventually_blocking(lambda: len(caplog.records) >= lines, "the error is logged")
    found = [record.getMessage() for record in caplog.records]
    assert found == ["test: a call failed, and its outcome was not retrieved"] * lines
