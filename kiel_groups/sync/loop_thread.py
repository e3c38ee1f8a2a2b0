"""
An event loop on a thread of its own, for programs that have none.

Whoever calls ``run`` blocks until its coroutine has ended on that loop. What lives on the loop goes on in between:
heartbeats are sent and partitions handed over while the program is busy with something else.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from kiel_groups.errors import ClosedError, ConfigError, KielGroupsError

__all__ = ["LoopThread"]

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: How long ``stop`` waits for what still runs, in seconds: a program that was told to end must end.
STOP_S = 5.0


class LoopThread:
    """
    An event loop on a daemon thread, started when it is first needed.

    Several threads may use it at once. A fork of the process has neither the thread nor what lives on it, and is told
    so; it makes one of its own.

    Args:
        name: What the thread, and errors, call it.
        instead: What a coroutine is to use in place of this, for the error that it gets.
    """

    def __init__(self, name: str = "sync", instead: str = "await the coroutine itself") -> None:
        self._name = name
        self._instead = instead
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._stopped = False
        #: What callers wait for: where the loop ends before it has begun with it, nobody else would tell them.
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
        Have the loop run; once, however often it is called.

        Raises:
            ClosedError: It was stopped, or belongs to the process that this one is a fork of.
        """
        self._check_process()
        with self._lock:
            self._started()

    def run(self, work: Coroutine[Any, Any, _Result], timeout_s: float | None = None) -> _Result:
        """
        Run a coroutine on the loop, and wait for its end.

        When Ctrl-C, or the end of the time, cuts the waiting short, the coroutine is cancelled.

        Args:
            work: The coroutine; it is closed where it cannot be run.
            timeout_s: How long to wait; without it, as long as it takes.

        Returns:
            What the coroutine returns.

        Raises:
            TimeoutError: It had not ended in time. Any other error is the coroutine's own.
            ConfigError: An event loop runs in this thread, and would stand still meanwhile.
            ClosedError: The loop was stopped, before or meanwhile, or belongs to another process.
        """
        future = self._submit(work)
        try:
            return self._result(future, timeout_s)
        finally:
            self._waiting.discard(future)

    def _submit(self, work: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        try:
            self._check_process()
            check_no_loop_runs(self._instead)
            with self._lock:
                future = asyncio.run_coroutine_threadsafe(work, self._started())
                self._waiting.add(future)
        except KielGroupsError:
            work.close()
            raise
        return future

    def _result(self, future: concurrent.futures.Future[_Result], timeout_s: float | None) -> _Result:
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClosedError(f"{self._name}: stopped before this was done") from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"{self._name}: not done within {timeout_s:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, soon, without waiting for it; not at all where the loop was stopped."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._loop is not None and not self._stopped:
                self._loop.call_soon_threadsafe(function)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """
        End the loop: what still runs on it is cancelled, and whoever waits is told by a ClosedError.

        Calling it again does nothing, nor does calling it in a fork.

        Args:
            timeout_s: How long to wait for that; a thread that has not ended by then is left behind, as the log says.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            first, self._stopped = not self._stopped, True
            thread = self._thread
            if first and self._loop is not None:
                self._loop.call_soon_threadsafe(self._end.set)
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_s)
        if thread.is_alive():
            log.error("%s: its event loop has not ended within %g s; left behind", self._name, timeout_s)

    # ------------------------------------------------------------------ the thread

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"{self._name} belongs to process {self._pid}, and this is a fork of it, number {os.getpid()}, without"
                " its threads and connections; make another one here"
            )

    def _started(self) -> asyncio.AbstractEventLoop:
        """The running loop; call it with the lock held."""
        if self._stopped:
            raise ClosedError(f"{self._name} was stopped")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._live, name=f"kiel-groups-{self._name}", daemon=True)
            self._thread.start()
        return self._loop

    def _live(self) -> None:
        assert self._loop is not None
        loop = self._loop
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._end.wait())
        except BaseException:
            log.exception("%s: its event loop has ended", self._name)
        finally:
            with self._lock:
                self._stopped = True
                waiting = list(self._waiting)
            for future in waiting:
                future.cancel()


def check_no_loop_runs(instead: str) -> None:
    """
    Make sure that waiting here blocks no coroutine.

    A notebook's kernel runs a loop around every cell, and awaits nothing while the cell runs: that one may wait.

    Args:
        instead: What a coroutine is to do.

    Raises:
        ConfigError: An event loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not _in_notebook():
        raise ConfigError(f"an event loop runs in this thread, and would stand still while this waits; {instead}")


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
