"""
The base class of embedded servers: start, stop, kill, pause, restart and wipe a server process.

The blocking work runs on threads, so a server belongs to no event loop. Its coroutine methods may be awaited on one
loop after another, and ``with`` works without a loop. A lock allows one method of a server at a time.
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
from typing import ClassVar, ParamSpec, Self, TypeVar

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
_PORT_TAKEN = b"Address already in use"


async def in_thread(blocking: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """
    Run a blocking call on a thread. If the caller is cancelled, wait for the end of the call, and then raise
    CancelledError.
    """
    call = asyncio.ensure_future(asyncio.to_thread(blocking, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # The call may be starting a server. The caller can stop that server only if the start has ended.
        await asyncio.wait({call})
        call.exception()  # If the exception is not retrieved, asyncio logs that.
        raise


class Startable(ABC):
    """A context manager with a blocking start and a blocking, repeatable close, for ``with`` and ``async with``."""

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
    """
    One server process on loopback ports. Its data is kept until the server is wiped or closed.

    Args:
        name: The name of the server in messages, and of its folder.
        port: The port for clients. 0 lets the system choose one.
    """

    #: How many ports a server of this class has beside the one for clients. The system chooses them.
    _FURTHER_PORTS: ClassVar[int] = 0

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self._wanted_ports = (port, *(0,) * self._FURTHER_PORTS)
        self._lock = threading.RLock()
        self._ports: list[ReservedPort] = []
        self._folder: Path | None = None
        self._kept: Path | None = None
        self._process: ChildProcess | None = None
        self._was_ready = False

    @property
    def port(self) -> int:
        """The port for clients, which stays the same across restarts."""
        return self._port_number(0)

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """The folder of configuration, data and log."""
        if self._folder is None:
            raise ServerError(f"{self.name} has no folder before its first start")
        return self._folder

    @property
    def log(self) -> Path:
        """The log file, which has the output since the first start."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._alive().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.status is None

    def keep_in(self, folder: Path) -> None:
        """
        Use this folder for configuration, data and log, and keep it at the close. Call this before the first start.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = folder

    async def start(self) -> None:
        """
        Start the server on its data, and return when it is ready for clients.

        Raises:
            ServerError: The server runs already, its process has ended (the message has the end of its log), or it was
                not ready in time.
        """
        await in_thread(self._start)

    async def stop(self) -> None:
        """Stop the server with SIGTERM, or with SIGKILL after 15 s. Do nothing if it does not run."""
        await in_thread(self._stop)

    async def kill(self) -> None:
        """Kill the server with SIGKILL, and return when its process has ended."""
        await in_thread(self._kill)

    async def restart(self) -> None:
        """Stop the server with SIGTERM, then start it on the same data and port."""
        await in_thread(self._restart)

    async def wipe(self) -> None:
        """Delete the server's data. Raise ServerError if the server runs."""
        await in_thread(self._wipe)

    def pause(self) -> None:
        """
        Freeze the server with SIGSTOP. Its connections stay open, but it answers nothing after this call has returned.
        """
        self._alive().freeze()

    def resume(self) -> None:
        """Continue a paused server with SIGCONT."""
        self._alive().send(signal.SIGCONT)

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration for the current port and folder, and return the command that runs the server."""

    @abstractmethod
    def _readiness(self) -> AbstractContextManager[Callable[[], bool]]:
        """Provide, during one start, a function that returns whether the server is ready for clients."""

    def _data(self) -> list[Path]:
        return [self.folder / "data"]

    def _start(self) -> None:
        with self._lock:
            if self.is_running:
                raise ServerError(f"{self.name} runs already, as process {self.pid}")
            self._folder = self._folder or self._kept or server_folder(self.name)
            with self._readiness() as serves:
                # If a port is taken, only a server whose port the system chose can get another one.
                tries = _PORT_TRIES if 0 in self._wanted_ports else 1
                for attempt in range(1, tries + 1):
                    self._reserve_ports()
                    log_start = self.log.stat().st_size if self.log.exists() else 0
                    self._process = ChildProcess(self._command(), log=self.log, folder=self.folder)
                    if self._became_ready(self._process, serves, log_start, last_attempt=attempt == tries):
                        self._was_ready = True
                        return
                    self._retry_ports()

    def _became_ready(
        self, process: ChildProcess, serves: Callable[[], bool], log_start: int, *, last_attempt: bool
    ) -> bool:
        """Wait until the server is ready. Return False if a port was taken and another attempt should follow."""
        deadline = time.monotonic() + _START_LIMIT_S
        while not process.wait(_POLL_S):
            if serves():
                return True
            if time.monotonic() > deadline:
                process.kill()
                raise ServerError(
                    f"{self.name} did not serve within {_START_LIMIT_S:g} s; its log ends:\n{self._tail()}"
                )
        if _PORT_TAKEN in self._logged(log_start) and not last_attempt:
            return False
        raise ServerError(f"{self.name} ended at its start with status {process.status}; its log ends:\n{self._tail()}")

    def _reserve_ports(self) -> None:
        for wanted in self._wanted_ports[len(self._ports) :]:
            self._ports.append(ReservedPort(wanted))

    def _release_ports(self) -> None:
        for port in self._ports:
            port.release()
        self._ports.clear()

    def _retry_ports(self) -> None:
        """
        Prepare a retry after another process took a port. Wait if the server was ready on these ports before. If not,
        choose other ports.
        """
        if self._was_ready:
            time.sleep(0.5)
        else:
            self._release_ports()

    def _port_number(self, index: int) -> int:
        if len(self._ports) <= index:
            raise ServerError(f"{self.name} has no port before its first start")
        return self._ports[index].number

    def _stop(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.terminate(_STOP_LIMIT_S)

    def _kill(self) -> None:
        # Do not acquire the lock: this call must also end a start that hangs and holds the lock.
        if self._process is not None:
            self._process.kill()

    def _restart(self) -> None:
        with self._lock:
            self._stop()
            self._start()

    def _wipe(self) -> None:
        with self._lock:
            if self.is_running:
                raise ServerError(f"{self.name} runs, as process {self.pid}; stop it before its data is wiped")
            for data in self._data():
                shutil.rmtree(data, ignore_errors=True)

    def _close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.terminate(_CLOSE_LIMIT_S)
            if self._folder is not None and self._folder != self._kept:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            self._release_ports()
            self._was_ready = False

    def _alive(self) -> ChildProcess:
        if self._process is None or self._process.status is not None:
            raise ServerError(f"{self.name} does not run")
        return self._process

    def _logged(self, since_byte: int) -> bytes:
        """Return what the log has from this position on."""
        with self.log.open("rb") as log:
            log.seek(since_byte)
            return log.read()

    def _tail(self) -> str:
        return log_tail(self.log)
