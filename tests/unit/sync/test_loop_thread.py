"""A loop on a thread of its own: who may wait for it, and how the waiting ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator

import pytest

from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.sync import LoopThread

pytestmark = pytest.mark.unit


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with LoopThread("test", instead="await it") as running:
        yield running


class Endless:
    """A coroutine that ends only by being cancelled, and says when it began and how it ended."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def answer() -> int:
    """Some work."""
    return 42


async def where() -> threading.Thread:
    """The thread that a coroutine runs on."""
    return threading.current_thread()


async def fail() -> None:
    """Work that fails."""
    raise KeyError("its own")


def test_it_returns_what_the_coroutine_returns_from_another_thread(thread: LoopThread) -> None:
    """One daemon thread runs everything, and it starts by itself."""
    assert thread.run(answer()) == 42
    home = thread.run(where())
    assert home is thread.run(where()) is not threading.current_thread()
    assert home.daemon


def test_it_raises_what_the_coroutine_raises(thread: LoopThread) -> None:
    """An error passes through, and the loop goes on; also a TimeoutError of the coroutine's own."""

    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(KeyError, match="its own"):
        thread.run(fail())
    with pytest.raises(TimeoutError, match="its own"):
        thread.run(late(), timeout_s=30)
    assert thread.run(answer()) == 42


def test_what_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    """The caller is told after the time that it gave, and nothing runs on behind its back."""
    endless = Endless()
    with pytest.raises(TimeoutError, match=r"test: not done within 0\.05 s"):
        thread.run(endless(), timeout_s=0.05)
    thread.run(answer())
    # On a busy machine it may not even have begun; then it never does.
    assert not endless.began.is_set() or endless.cancelled.wait(30)


def test_a_coroutine_is_refused_and_told_what_to_use(thread: LoopThread) -> None:
    """It would block its own loop; the work is closed, not left behind unawaited."""
    work = answer()

    async def coroutine() -> None:
        thread.run(work)

    with pytest.raises(ConfigError, match=r"an event loop runs in this thread.*; await it"):
        asyncio.run(coroutine())
    with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
        work.send(None)


def test_what_runs_on_the_loop_itself_cannot_wait_for_it(thread: LoopThread) -> None:
    """It would wait for ever."""

    async def within() -> None:
        thread.run(answer())

    with pytest.raises(ConfigError, match="an event loop runs in this thread"):
        thread.run(within())


def test_a_cell_of_a_notebook_may_wait(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel runs a loop around each cell, which awaits nothing meanwhile."""
    notebook = types.ModuleType("IPython")
    shell = types.SimpleNamespace(kernel=object())
    notebook.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)

    async def cell() -> int:
        return thread.run(answer())

    assert asyncio.run(cell()) == 42
    del shell.kernel
    with pytest.raises(ConfigError, match="an event loop runs in this thread"):
        asyncio.run(cell())


def test_ctrl_c_ends_the_waiting_and_cancels_the_work(thread: LoopThread) -> None:
    """The signal is heard while the main thread waits, and the loop is there for what is to be closed."""
    endless = Endless()

    def interrupt() -> None:
        endless.began.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert endless.cancelled.wait(30)
    assert thread.run(answer()) == 42


def test_ctrl_c_at_the_moment_of_the_call_leaves_nothing_behind(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the begin of the work and the begin of the waiting, too, it is cancelled."""
    endless = Endless()
    monkeypatch.setattr(thread, "_result", lambda *_: endless.began.wait(30) and signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert endless.cancelled.wait(30)


def test_stopping_tells_whoever_waits() -> None:
    """Their coroutines are cancelled; what comes later is refused; stopping again does nothing."""
    thread = LoopThread("test")
    endless = Endless()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            thread.run(endless())
        except ClosedError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert endless.began.wait(30)
    thread.stop()
    waiting.join(30)
    assert [str(error) for error in told] == ["test: closed before this was done"]
    assert endless.cancelled.is_set()
    with pytest.raises(ClosedError, match="test was closed; make another one"):
        thread.run(answer())
    thread.stop()


def test_stopping_waits_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    """Work that blocks the loop cannot hold up the end of the program; the log says so."""
    thread, blocked, release = LoopThread("test"), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(60)

    thread.start()
    thread.post(block)
    assert blocked.wait(30)
    thread.stop(timeout_s=0.05)
    assert "test: its event loop has not ended within 0.05 s; leaving its thread running" in caplog.text
    release.set()


def test_a_loop_that_was_never_needed_is_stopped_at_once() -> None:
    """Nothing was started for it."""
    before = threading.active_count()
    thread = LoopThread("test")
    thread.stop()
    assert threading.active_count() == before
    with pytest.raises(ClosedError):
        thread.start()


def test_a_fork_of_the_process_is_told(thread: LoopThread) -> None:
    """It has no such thread and would wait for ever; stopping there leaves the parent's alone."""
    thread.run(answer())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            thread.stop()
            thread.run(answer())
        except ClosedError as error:
            status = 0 if f"belongs to process {os.getppid()}, and this is a fork of it" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.run(answer()) == 42


def test_many_threads_use_one_loop(thread: LoopThread) -> None:
    """Each gets its own answer."""
    answers: list[int] = []

    async def echo(number: int) -> int:
        await asyncio.sleep(0)
        return number

    def ask(number: int) -> None:
        answers.append(thread.run(echo(number)))

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(30)
    assert sorted(answers) == list(range(20))
