"""
Run an event loop on a thread of its own, for programs without an event loop.

``run`` blocks its caller until a coroutine has ended on that loop. Tasks on the loop continue between the calls, so
that a member can send heartbeats and release partitions while the program is busy.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: How long ``stop`` waits for running tasks, in seconds, since a program that was asked to exit must exit.
STOP_S = 5.0

#: How long a wait may last before Python checks for signals, in seconds: a signal that arrives just before a thread
#: starts to wait for a lock does not interrupt that wait.
SIGNAL_S = 0.5


class LoggedFuture(concurrent.futures.Future[_Result]):
    """A future whose outcome no caller has to retrieve. An error that is never retrieved is logged."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._unseen: BaseException | None = None

    def set_exception(self, exception: BaseException | None) -> None:
        self._unseen = exception
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> _Result:
        try:
            return super().result(timeout)
        finally:
            self._unseen = None if self.done() else self._unseen

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._unseen = None if self.done() else self._unseen

    def __del__(self) -> None:
        if self._unseen is not None:
            log.error("%s: a call failed, and its outcome was not retrieved", self._name, exc_info=self._unseen)


class LoopThread:
    """
    An event loop on a daemon thread. The first call that needs the loop starts the loop.

    Several threads may use the object at once. A fork of the process has neither the thread nor its tasks. In the fork,
    calls raise ClosedError, and the program must create another LoopThread.

    Args:
        name: Part of the thread's name, and of error texts.
        instead: What a coroutine should use instead of this class, for the text of an error.
        on_failure: Called on the loop's thread once an exception has ended the loop. The call comes before the loop's
            tasks are cancelled, because a task may never end.
    """

    def __init__(
        self,
        name: str = "sync",
        instead: str = "await the coroutine itself",
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        self._name = name
        self._instead = instead
        self._on_failure = on_failure
        self._pid = os.getpid()
        # The lock is reentrant: a signal handler or a finalizer may call this object while its own thread has the lock.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._stopped = False
        #: The exception that ended the loop, such as the SystemExit of a deserializer.
        self._failure: BaseException | None = None
        #: The futures that callers wait for. When the loop ends, it cancels them, even if their work has not started.
        self._waiting: set[concurrent.futures.Future[Any]] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """
        Start the loop, unless it runs already.

        Raises:
            ClosedError: The loop was stopped, or belongs to the parent process of this fork.
        """
        self._check_process()
        with self._lock:
            self._running()

    def run(self, work: Coroutine[Any, Any, _Result], timeout_s: float | None = None) -> _Result:
        """
        Run a coroutine on the loop, and wait for its end.

        If Ctrl-C or the timeout ends the wait, cancel the coroutine.

        Args:
            work: The coroutine. If the coroutine cannot be run, this method closes it.
            timeout_s: Seconds to wait, or None for no limit.

        Returns:
            The result of the coroutine.

        Raises:
            TimeoutError: The coroutine did not end within ``timeout_s``.
            ConfigError: An event loop runs in this thread, and the wait would block it.
            ClosedError: The loop was stopped before or during the call, or belongs to the parent process of this fork,
                or the coroutine was cancelled.
        """
        try:
            return self.call(lambda: work, timeout_s)
        except KielGroupsError:
            # If the coroutine was started, it has ended, and this does nothing.
            work.close()
            raise

    def call(self, function: Callable[[], Coroutine[Any, Any, _Result]], timeout_s: float | None = None) -> _Result:
        """
        Call a function on the loop, run the coroutine that it returns, and wait for its end, as ``run`` does.

        Since the coroutine is created on the loop, an early Ctrl-C leaves no coroutine that was never awaited.
        """
        # The future exists before the work starts, so that a Ctrl-C at any moment has a future to cancel.
        outcome: concurrent.futures.Future[_Result] = concurrent.futures.Future()
        ended = threading.Lock()
        ended.acquire()
        outcome.add_done_callback(lambda _: ended.release())
        try:
            self._check_process()
            check_no_loop_runs(self._instead)
            with self._lock:
                loop = self._running()
                self._waiting.add(outcome)
                self._schedule(loop, _begin, function, outcome)
            return self._result(outcome, ended, timeout_s)
        except BaseException:
            outcome.cancel()
            raise
        finally:
            self._waiting.discard(outcome)

    def begin(self, function: Callable[[], Coroutine[Any, Any, _Result]]) -> LoggedFuture[_Result]:
        """
        Call a function that creates a coroutine, and run the coroutine, both on the loop. Do not wait for the
        coroutine's end.

        Returns:
            The outcome. A cancellation of the future cancels the coroutine. If the program never retrieves the
            coroutine's error, the future logs the error.

        Raises:
            ClosedError: The loop was stopped, or belongs to the parent process of this fork.
        """
        outcome: LoggedFuture[_Result] = LoggedFuture(self._name)
        self._check_process()
        with self._lock:
            loop = self._running()
            self._waiting.add(outcome)
            outcome.add_done_callback(self._waiting.discard)
            self._schedule(loop, _begin, function, outcome)
        return outcome

    def _result(
        self, outcome: concurrent.futures.Future[_Result], ended: threading.Lock, timeout_s: float | None
    ) -> _Result:
        """
        Wait until ``ended`` is released, and return the result of ``outcome``.

        The methods of a future would acquire its condition, which the loop needs. If a signal handler interrupted one
        of them and waited for the loop, neither would ever end.
        """
        ends_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not ended.acquire(timeout=max(0, min(ends_s - time.monotonic(), SIGNAL_S))):
            if time.monotonic() >= ends_s:
                raise TimeoutError(f"{self._name}: not done within {timeout_s:g} s")
        try:
            return outcome.result()
        except concurrent.futures.CancelledError:
            why = "closed before this was done" if self._failure is None else self._ended_by()
            raise ClosedError(f"{self._name}: {why}") from self._failure

    def call_soon(self, function: Callable[[], object]) -> None:
        """
        Call a function on the loop soon, without waiting for it. Start the loop if needed.

        Raises:
            ClosedError: The loop was stopped, or belongs to the parent process of this fork.
        """
        self._check_process()
        with self._lock:
            self._schedule(self._running(), function)

    def _schedule(self, loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop soon. Raise ClosedError if a signal handler has stopped the loop meanwhile."""
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._running()
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Schedule a function on the loop, without waiting for it. Do nothing if the loop does not run."""
        if self.forked:
            return
        with self._lock:
            if self._loop is not None and not self._stopped:
                self._loop.call_soon_threadsafe(function)

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the process that created this object."""
        return os.getpid() != self._pid

    @property
    def stopped(self) -> bool:
        """Whether the loop has ended or is about to end, by ``stop`` or by an exception."""
        return self._stopped

    @property
    def failed(self) -> bool:
        """Whether an exception has ended the loop, such as the SystemExit of a deserializer."""
        return self._failure is not None

    def stop_unless_started(self) -> bool:
        """Stop the loop if no call has started it, and return whether this is so. Another thread may call meanwhile."""
        if self.forked:
            return False
        with self._lock:
            self._stopped = self._stopped or self._thread is None
            return self._thread is None

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """
        Stop the loop: cancel its tasks, and make waiting callers raise ClosedError.

        A further call only waits for the thread. A call in a fork of the process does nothing.

        Args:
            timeout_s: Seconds to wait for the thread. If the thread has not ended after this time, this method logs an
                error, and leaves the thread running.

        Returns:
            Whether the thread has ended or was never started. False in a fork, and in a call on the thread itself.
        """
        if self.forked:
            return False
        with self._lock:
            first, self._stopped = not self._stopped, True
            thread = self._thread
            if first and self._loop is not None:
                self._loop.call_soon_threadsafe(self._end.set)
        if thread is None:
            return True
        if thread is threading.current_thread():
            return False
        thread.join(timeout_s)
        if thread.is_alive():
            log.error("%s: its event loop has not ended within %g s; leaving its thread running", self._name, timeout_s)
        return not thread.is_alive()

    # ------------------------------------------------------------------ the thread

    def _check_process(self) -> None:
        if self.forked:
            raise ClosedError(
                f"{self._name} belongs to process {self._pid}, and this is a fork of it, number {os.getpid()}, without"
                " its threads and connections; make another one here"
            )

    def _ended_by(self) -> str:
        return f"its event loop was ended by {self._failure!r}; make another one"

    def _running(self) -> asyncio.AbstractEventLoop:
        """
        Return the loop, and start it if needed. Raise ClosedError if the loop has ended. The caller holds the lock.
        """
        if self._failure is not None:
            raise ClosedError(f"{self._name}: {self._ended_by()}") from self._failure
        if self._stopped:
            raise ClosedError(f"{self._name} was closed; make another one")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run_loop, name=f"kiel-groups-{self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the limit of threads, or an interpreter that ends
                self._loop.close()
                self._loop = None
                raise
            self._thread = thread
        return self._loop

    def _run_loop(self) -> None:
        assert self._loop is not None
        loop = self._loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                try:
                    runner.run(self._end.wait())
                except BaseException as error:
                    # This happens before the runner cancels the tasks and closes the loop: the callers need the reason,
                    # and a further call must not reach a loop that is about to be closed.
                    with self._lock:
                        self._failure, self._stopped = error, True
                    self._call_on_failure()
                    raise
        except BaseException:
            log.exception("%s: its event loop has failed; further calls raise ClosedError", self._name)
        finally:
            # Without the lock: the thread that waits for this one may have it, below a signal handler. A caller that
            # adds its future later finds the loop closed.
            self._stopped = True
            for future in list(self._waiting):
                future.cancel()

    def _call_on_failure(self) -> None:
        try:
            if self._on_failure is not None:
                self._on_failure()
        except BaseException:
            log.exception("%s: not everything was ended together with its event loop", self._name)


def _begin(function: Callable[[], Coroutine[Any, Any, _Result]], outcome: concurrent.futures.Future[_Result]) -> None:
    """On the loop, start the coroutine that a thread waits for, unless the thread has stopped waiting."""
    work = function()
    if outcome.cancelled():
        work.close()
        return
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    outcome.add_done_callback(lambda _: _cancel(task, loop))
    task.add_done_callback(lambda _: _settle(outcome, task))
    if outcome.cancelled():
        # The thread has stopped waiting since the first check. A function that it posts later must not find the work
        # done.
        task.cancel()


def _settle(outcome: concurrent.futures.Future[_Result], task: asyncio.Task[_Result]) -> None:
    if task.cancelled():
        outcome.cancel()
        return
    error = task.exception()
    if not outcome.set_running_or_notify_cancel():
        # The caller has been cancelled; drop the result.
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _cancel(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancel a task whose caller has stopped waiting. Do nothing if the task has ended or the loop is closed."""
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


def check_no_loop_runs(instead: str) -> None:
    """
    Check that a wait in this thread blocks no event loop, except the loop of a notebook.

    A wait may block the loop of a notebook's kernel, because that loop does no work while a cell runs.

    Args:
        instead: What a coroutine should do instead of the call, for the text of the error.

    Raises:
        ConfigError: An event loop runs in this thread, outside of a notebook.
    """
    # ``get_running_loop`` would raise an exception for each record of a producer.
    if asyncio._get_running_loop() is not None and not _in_notebook():
        raise ConfigError(f"an event loop runs in this thread, and would be blocked while this waits; {instead}")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
