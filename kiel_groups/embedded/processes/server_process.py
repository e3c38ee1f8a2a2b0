"""
What every embedded server can do: start, stop, die, freeze, come back.

The work is blocking and done on threads, so a server belongs to no event loop: the coroutine methods may be awaited on
any loop, one after another, and ``with`` works where there is none. Methods of one server take turns.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from kiel_groups.embedded.processes.child_process import ChildProcess, log_tail
from kiel_groups.embedded.processes.ports import ReservedPort
from kiel_groups.embedded.processes.run_folder import server_folder
from kiel_groups.errors import ServerError

__all__ = ["Server", "Startable", "in_thread"]

P = ParamSpec("P")
R = TypeVar("R")

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 15.0
_CLOSE_LIMIT_S = 5.0
_POLL_S = 0.02
_PORT_TRIES = 5
_PORT_TAKEN = "Address already in use"


async def in_thread(blocking: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call on a thread; when cancelled, wait for its end before passing the cancellation on."""
    call = asyncio.ensure_future(asyncio.to_thread(blocking, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # A server half started would be nobody's: its owner is told only when there is something to stop.
        await asyncio.wait({call})
        call.exception()  # Looked at, so that asyncio does not report a failure that nobody can wait for any more.
        raise


class Startable(ABC):
    """A resource with a blocking start and a blocking, repeatable close, for ``with`` and ``async with``."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        try:
            await in_thread(self._start)
        except BaseException:
            await in_thread(self._close)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await in_thread(self._close)


class Server(Startable):
    """One server process on one loopback port, with data that stays until the server is wiped or closed."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self._wanted_port = port
        self._turn = threading.RLock()
        self._port: ReservedPort | None = None
        self._folder: Path | None = None
        self._kept: Path | None = None
        self._process: ChildProcess | None = None
        self._was_ready = False

    @property
    def port(self) -> int:
        """The port, the same through every restart."""
        if self._port is None:
            raise ServerError(f"{self.name} has no port before its first start")
        return self._port.number

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """Its configuration, data and log."""
        if self._folder is None:
            raise ServerError(f"{self.name} has no folder before its first start")
        return self._folder

    @property
    def log(self) -> Path:
        """What the server wrote, of all its lives."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._alive().pid

    @property
    def is_running(self) -> bool:
        """Whether its process lives; a paused one does."""
        return self._process is not None and self._process.status is None

    def keep_in(self, folder: Path) -> None:
        """Have configuration, data and log in a folder that stays when the server is closed; before its first start."""
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = folder

    async def start(self) -> None:
        """
        Start it, on the data it has, and return when it serves.

        Raises:
            ServerError: It runs already, ended at once (the end of its log is in the message), or never served.
        """
        await in_thread(self._start)

    async def stop(self) -> None:
        """Stop it in order (SIGTERM; SIGKILL after 15 s); nothing happens where it does not run."""
        await in_thread(self._stop)

    async def kill(self) -> None:
        """End it with SIGKILL and return when the process is gone."""
        await in_thread(self._kill)

    async def restart(self) -> None:
        """Stop it in order, then start it on the same data and port."""
        await in_thread(self._restart)

    async def wipe(self) -> None:
        """Forget its data; it must not run."""
        await in_thread(self._wipe)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open, nothing is answered from the moment of the return."""
        self._alive().freeze()

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._alive().send(signal.SIGCONT)

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration for the present port and folder; the command that runs the server."""

    @abstractmethod
    def _readiness(self) -> AbstractContextManager[Callable[[], bool]]:
        """For the time of one start: a check whether a client would be served now; called until it says True."""

    def _data(self) -> list[Path]:
        return [self.folder / "data"]

    def _start(self) -> None:
        with self._turn:
            if self.is_running:
                raise ServerError(f"{self.name} runs already, as process {self.pid}")
            self._folder = self._folder or self._kept or server_folder(self.name)
            with self._readiness() as serves:
                # A port that was asked for by its number, and is lost to somebody, has no substitute.
                tries = 1 if self._wanted_port else _PORT_TRIES
                for attempt in range(1, tries + 1):
                    self._port = self._port or ReservedPort(self._wanted_port)
                    self._process = ChildProcess(self._command(), log=self.log, folder=self.folder)
                    if self._became_ready(self._process, serves, last_attempt=attempt == tries):
                        self._was_ready = True
                        return
                    self._lose_port()

    def _became_ready(self, process: ChildProcess, serves: Callable[[], bool], *, last_attempt: bool) -> bool:
        """Wait until it serves; False where somebody else had its port and another attempt is due."""
        deadline = time.monotonic() + _START_LIMIT_S
        while not process.wait(_POLL_S):
            if serves():
                return True
            if time.monotonic() > deadline:
                process.kill()
                raise ServerError(
                    f"{self.name} did not serve within {_START_LIMIT_S:g} s; its log ends:\n{self._tail()}"
                )
        if _PORT_TAKEN in self._tail() and not last_attempt:
            return False
        raise ServerError(f"{self.name} ended at its start with status {process.status}; its log ends:\n{self._tail()}")

    def _lose_port(self) -> None:
        """Somebody was quicker: a new server moves on, one that clients know waits for its port."""
        assert self._port is not None
        if self._was_ready:
            time.sleep(0.5)
            return
        self._port.release()
        self._port = None

    def _stop(self) -> None:
        with self._turn:
            if self._process is not None:
                self._process.terminate(_STOP_LIMIT_S)

    def _kill(self) -> None:
        # Without waiting for a turn: a start that hangs may be ended this way too.
        if self._process is not None:
            self._process.kill()

    def _restart(self) -> None:
        with self._turn:
            self._stop()
            self._start()

    def _wipe(self) -> None:
        with self._turn:
            if self.is_running:
                raise ServerError(f"{self.name} runs, as process {self.pid}; stop it before its data is wiped")
            for data in self._data():
                shutil.rmtree(data, ignore_errors=True)

    def _close(self) -> None:
        with self._turn:
            if self._process is not None:
                self._process.terminate(_CLOSE_LIMIT_S)
            if self._folder is not None and self._folder != self._kept:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            if self._port is not None:
                self._port.release()
                self._port = None
            self._was_ready = False

    def _alive(self) -> ChildProcess:
        if self._process is None or self._process.status is not None:
            raise ServerError(f"{self.name} does not run")
        return self._process

    def _tail(self) -> str:
        return log_tail(self.log)
