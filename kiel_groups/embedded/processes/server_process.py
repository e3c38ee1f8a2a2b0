"""
The base class of embedded servers: start, stop, kill, pause, restart and wipe a server process.

The blocking work runs on threads, so a server belongs to no event loop. Its coroutine methods may be awaited on one
loop after another, and ``with`` works without a loop. A lock allows one method of a server at a time.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, ClassVar, ParamSpec, Self, TypeVar

from kiel_groups.embedded.processes.child_process import ChildProcess, log_tail
from kiel_groups.embedded.processes.file_lock import file_lock, try_lock
from kiel_groups.errors import ServerError

__all__ = [
    "ReservedPort",
    "accepts",
    "server_folder",
    "runs_folder",
    "made_runs_folder",
    "Server",
    "Startable",
    "in_thread",
]


class ReservedPort:
    """
    A port that the system gives to no other process while the server is down.

    The socket is bound but does not listen. So a client is refused, as by a dead server, and the server can bind and
    listen beside the socket, because both set SO_REUSEADDR. The system uses the port neither for another server's bind
    to port 0, nor as the source port of an outgoing connection. Without this, a client that retries a dead server's
    port might get that port as its own source port, and connect to itself.

    Args:
        number: The port. 0 lets the system choose one.

    Raises:
        ServerError: Another process uses the port, or the port requires privileges (below 1024).
    """

    def __init__(self, number: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", number))
        except OSError as error:
            self._socket.close()
            raise ServerError(f"port {number} of 127.0.0.1 cannot be had: {error.strerror}; choose another") from error
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back to the system."""
        self._socket.close()


def accepts(port: int) -> bool:
    """Return whether a process listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Folders for the data of servers: one for each run, in the system's folder for temporary files.
#
# A run holds the lock of its folder until its process ends. So the next run recognizes and removes the folders of runs
# that were killed.


_LOCK = "lock"
_RUN = "run-"


def runs_folder() -> Path:
    """Return this user's folder, which contains a folder for each run."""
    return Path(tempfile.gettempdir()) / f"kiel-groups-{os.getuid()}"


def made_runs_folder() -> Path:
    """
    Return ``runs_folder()``. Create the folder if it is missing, so that other users cannot read it.

    Raises:
        ServerError: The folder belongs to another user.
    """
    runs = runs_folder()
    runs.mkdir(mode=0o700, exist_ok=True)
    if runs.stat().st_uid != os.getuid():
        raise ServerError(f"{runs} belongs to another user; remove it, or set TMPDIR to a folder of your own")
    return runs


def server_folder(name: str) -> Path:
    """Create and return an empty folder for one server. It is removed with the run's folder when this process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_run.folder()))


class _Run:
    """The folder of this process, created when the first server needs it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: IO[str] | None = None

    def folder(self) -> Path:
        runs = made_runs_folder()
        # One lock for all runs: without it, another run could remove the folder before it is locked.
        with file_lock(runs / _LOCK):
            if self._folder is None:
                _sweep(runs)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_RUN}{os.getpid()}-", dir=runs))
                self._lock = try_lock(self._folder / _LOCK)
                atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _sweep(runs: Path) -> None:
    for folder in runs.glob(f"{_RUN}*"):
        try:
            lock = try_lock(folder / _LOCK)
        except OSError:
            continue  # The run's own process is removing the folder at this moment.
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


_run = _Run()


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
