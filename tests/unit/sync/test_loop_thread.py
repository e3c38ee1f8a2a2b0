"""An event loop on its own thread: which callers may wait for it, and how their wait ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from kiel_groups.errors import ClosedError, ConfigError
from kiel_groups.sync import LoopThread
from kiel_groups.sync.loop_thread import _begin
from tests.helpers.forks import assert_refused_in_fork

pytestmark = pytest.mark.unit


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with LoopThread("test", instead="await it") as running:
        yield running


class Endless:
    """A coroutine function that waits until it is cancelled, and records its start and its cancellation."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def answer() -> int:
    """Return a result."""
    return 42


async def running_thread() -> threading.Thread:
    """Return the thread that the coroutine runs on."""
    return threading.current_thread()


async def fail() -> None:
    """Raise an error."""
    raise KeyError("its own")


def test_run_returns_the_result_of_a_coroutine_on_another_thread(thread: LoopThread) -> None:
    """
    ``run()`` returns the result of a coroutine. All coroutines run on one daemon thread, which the first call starts.
    """
    assert thread.run(answer()) == 42
    runner = thread.run(running_thread())
    assert runner is thread.run(running_thread()) is not threading.current_thread()
    assert runner.daemon


def test_a_call_after_a_thread_that_did_not_start_starts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer at its limit of threads refuses one; the next call must not wait for a loop that does not run."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = LoopThread("test", instead="await it")
    coroutine = answer()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.run(coroutine)
    coroutine.close()
    assert thread._thread is None
    with thread:
        assert thread.run(answer()) == 42


def test_run_raises_the_error_of_the_coroutine(thread: LoopThread) -> None:
    """
    ``run()`` raises the error of the coroutine, even a TimeoutError, unchanged. The loop continues after the error.
    """

    async def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(KeyError, match="its own"):
        thread.run(fail())
    with pytest.raises(TimeoutError, match="its own"):
        thread.run(late(), timeout_s=30)
    assert thread.run(answer()) == 42


def test_a_coroutine_that_exceeds_its_time_is_cancelled(thread: LoopThread) -> None:
    """A coroutine that exceeds its time is cancelled, and the caller gets a TimeoutError."""
    endless = Endless()
    with pytest.raises(TimeoutError, match=r"test: not done within 0\.05 s"):
        thread.run(endless(), timeout_s=0.05)
    thread.run(answer())
    # On a busy computer, the coroutine may not have started. In that case, it never starts.
    assert not endless.started.is_set() or endless.cancelled.wait(30)


def test_a_call_by_a_coroutine_is_refused(thread: LoopThread) -> None:
    """
    A call by a coroutine is refused, because it would block the coroutine's loop. The error says what to use. The given
    coroutine is closed, so that Python does not warn.
    """
    work = answer()

    async def coroutine() -> None:
        thread.run(work)

    with pytest.raises(ConfigError, match=r"an event loop runs in this thread.*; await it"):
        asyncio.run(coroutine())
    with pytest.raises(RuntimeError, match="cannot reuse already awaited"):
        work.send(None)


def test_a_call_on_the_loop_itself_is_refused(thread: LoopThread) -> None:
    """A call by a coroutine on the loop's own thread is refused, because it would wait forever."""

    async def within() -> None:
        thread.run(answer())

    with pytest.raises(ConfigError, match="an event loop runs in this thread"):
        thread.run(within())


def test_a_cell_of_a_notebook_may_wait(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A cell of a notebook may wait, although the kernel runs it on an event loop, because the kernel awaits nothing while
    the cell runs.
    """
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


def test_ctrl_c_ends_the_wait_and_cancels_the_coroutine(thread: LoopThread) -> None:
    """
    Ctrl-C ends the main thread's wait, and cancels the coroutine. The loop continues, so that clients can be closed.
    """
    endless = Endless()

    def interrupt() -> None:
        endless.started.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert endless.cancelled.wait(30)
    assert thread.run(answer()) == 42


def test_ctrl_c_before_the_wait_cancels_the_coroutine(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the coroutine has started, but before the caller waits for it, cancels the coroutine, too."""
    endless = Endless()
    monkeypatch.setattr(thread, "_result", lambda *_: endless.started.wait(30) and signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        thread.run(endless())
    assert endless.cancelled.wait(30)


def test_a_stop_cancels_the_coroutines_of_waiting_callers() -> None:
    """
    A stop cancels the coroutines of waiting callers, which get an error. Later calls are refused, and a second stop
    does nothing.
    """
    thread = LoopThread("test")
    endless = Endless()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            thread.run(endless())
        except ClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert endless.started.wait(30)
    thread.stop()
    waiting.join(30)
    assert [str(error) for error in errors] == ["test: closed before this was done"]
    assert endless.cancelled.is_set()
    with pytest.raises(ClosedError, match="test was closed; make another one"):
        thread.run(answer())
    thread.stop()


def test_a_stop_waits_for_a_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    """
    A stop waits for a bounded time and then logs a line, so a callback that blocks the loop cannot delay the end of the
    program.
    """
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


def test_a_stop_of_an_unused_loop_ends_at_once() -> None:
    """A stop of an unused loop ends at once, because no thread was started."""
    thread = LoopThread("unused")
    thread.stop()
    assert "kiel-groups-unused" not in [each.name for each in threading.enumerate()], "no thread was started"
    with pytest.raises(ClosedError):
        thread.start()


def test_a_call_in_a_fork_of_the_process_is_refused(thread: LoopThread) -> None:
    """
    A call in a fork of the process is refused. The fork lacks the thread, so the call would wait forever. A stop in the
    fork does not affect the parent's thread.
    """
    thread.run(answer())
    assert_refused_in_fork(thread.stop, lambda: thread.run(answer()))
    assert thread.run(answer()) == 42


def test_threads_share_one_loop(thread: LoopThread) -> None:
    """Threads share one loop, and each calling thread gets its own result."""
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


def test_work_does_not_begin_if_its_caller_gives_up_at_the_start(thread: LoopThread) -> None:
    """
    A caller may give up while the loop creates its task. What it posts after that must not find the work begun.
    """
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")

    outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

    def give_up(loop: asyncio.AbstractEventLoop, coroutine: Any) -> asyncio.Task[Any]:
        outcome.cancel()
        return asyncio.Task(coroutine, loop=loop)

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(give_up)
        _begin(work, outcome)
        loop.set_task_factory(None)

    thread.run(begin())
    thread.run(asyncio.sleep(0))
    assert begun == []


@pytest.mark.parametrize("error", [None, RuntimeError("of the function"), SystemExit("of the function")])
def test_a_function_is_called_after_an_exit_has_ended_the_loop(error: BaseException | None) -> None:
    """The call is on the loop's thread, before tasks are cancelled. Whatever it raises, the thread ends."""
    called: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            called.append("cancelled")

    async def leave() -> None:
        raise SystemExit("its own")

    def on_failure() -> None:
        called.append(threading.current_thread().name)
        if error is not None:
            raise error

    thread = LoopThread("test", on_failure=on_failure)
    waiting = thread.begin(waits)
    with pytest.raises(SystemExit, match="its own"):
        thread.run(leave())
    assert thread.stop()
    assert called == ["kiel-groups-test", "cancelled"]
    assert waiting.cancelled()
    in_order = LoopThread("test", on_failure=on_failure)
    in_order.start()
    in_order.stop()
    assert len(called) == 2, "it is only for exceptions"


def test_calls_of_a_loop_that_an_exit_has_ended_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A SystemExit ends the loop. From then on, calls raise a ClosedError that names it, also while the tasks of the loop
    are being cancelled. So do calls that were waiting.
    """
    thread, cancelling, proceed = LoopThread("test"), threading.Event(), threading.Event()
    endless = Endless()
    refused: list[BaseException] = []

    def wait() -> None:
        try:
            thread.run(endless())
        except ClosedError as error:
            refused.append(error)

    async def leave() -> None:
        raise SystemExit("its own")

    close = asyncio.Runner.close

    def close_late(runner: asyncio.Runner) -> None:
        cancelling.set()
        proceed.wait(30)
        close(runner)

    monkeypatch.setattr(asyncio.Runner, "close", close_late)
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert endless.started.wait(30)
    assert not thread.failed
    leaving = thread.begin(leave)
    assert cancelling.wait(30)
    with pytest.raises(ClosedError, match=r"test: its event loop was ended by SystemExit\('its own'\); make another"):
        thread.run(answer(), timeout_s=5)
    assert thread.failed
    proceed.set()
    assert isinstance(leaving.exception(30), SystemExit)
    waiting.join(30)
    thread.stop()
    with pytest.raises(ClosedError, match="ended by SystemExit"):
        thread.run(answer())
    assert ["ended by SystemExit" in str(error) for error in refused] == [True]


def test_a_signal_handler_that_stops_the_loop_within_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's thread does not wait for the lock of the interrupted call, which raises ClosedError."""
    loop = LoopThread()
    loop.start()
    running = loop._running

    def interrupted() -> asyncio.AbstractEventLoop:
        found = running()
        assert loop.stop(5)
        return found

    monkeypatch.setattr(loop, "_running", interrupted)
    with pytest.raises(ClosedError, match="was closed"):
        loop.call_soon(lambda: None)
