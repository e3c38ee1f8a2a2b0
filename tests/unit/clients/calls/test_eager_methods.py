"""Client methods that start when they are called, before they are awaited."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tornado.ioloop import IOLoop

from kiel_groups.clients.calls.eager_methods import connect_or_close, starts_at_call

pytestmark = pytest.mark.unit


class Worker:
    """A class with a method that starts when it is called."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @starts_at_call
    async def work(self, name: str) -> str:
        await asyncio.sleep(0)
        if name == "bad":
            raise ValueError("it went wrong")
        self.done.append(name)
        return name


async def test_a_call_that_is_cancelled_before_its_first_step_leaves_nothing_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Python would warn of a coroutine that was made and never awaited."""
    # What earlier tests have left behind may warn when it is collected.
    gc.collect()
    recwarn.clear()
    worker = Worker()
    call = worker.work("cancelled")
    call.cancel()
    await asyncio.wait({call})
    gc.collect()
    assert (worker.done, list(recwarn)) == ([], [])


async def test_a_started_method_works_without_being_awaited() -> None:
    """
    A method that starts at its call runs to its end even if its future is dropped. Awaiting the future returns the
    result.
    """
    worker = Worker()
    worker.work("dropped")
    assert await worker.work("awaited") == "awaited"
    assert worker.done == ["dropped", "awaited"]


async def test_a_failure_is_logged_if_its_future_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """
    A failure of a started method is logged once if its future is dropped. A failure that was raised to a caller is not
    logged.
    """
    # Collect the garbage of earlier tests first, because collecting it may log, too.
    gc.collect()
    caplog.clear()
    worker = Worker()
    with pytest.raises(ValueError, match="it went wrong"):
        await worker.work("bad")
    gc.collect()
    assert not caplog.records
    await asyncio.wait([worker.work("bad")])
    # The task's last callbacks run after the one that ends wait().
    await asyncio.sleep(0)
    gc.collect()

    assert [(r.name, "Worker.work failed" in r.message) for r in caplog.records] == [
        ("kiel_groups.clients.calls.eager_methods", True)
    ]


def test_a_started_method_may_be_called_before_the_loop_runs() -> None:
    """A method that is called before the Tornado loop runs starts when the loop runs."""
    loop = IOLoop(make_current=True)
    try:
        early = Worker().work("early")
        assert not early.done()
        assert loop.run_sync(lambda: early) == "early"
    finally:
        loop.close(all_fds=True)


async def test_an_entry_that_is_cancelled_closes_its_client() -> None:
    """The connect has just ended in this case, and ``__aexit__`` is not called."""
    connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    closed = list[str]()

    class Client:
        def connect(self) -> asyncio.Future[None]:
            return connected

        async def close(self) -> None:
            closed.append("closed")

    entering = asyncio.ensure_future(connect_or_close(Client()))
    await asyncio.sleep(0)
    connected.set_result(None)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert closed == ["closed"]
