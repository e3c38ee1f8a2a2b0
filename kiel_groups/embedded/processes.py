"""
Run server processes on loopback ports. The processes end with their parent.

Blocking work runs on threads, so a server belongs to no event loop. The coroutine methods of a server may be awaited on
different loops, and ``with`` needs no loop. A lock serializes the start, stop, restart and close of a server. A kill
does not wait for the lock.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, ParamSpec, Self, TypeVar

from kiel_groups.errors import ServerError

# A child process that the kernel kills when its parent dies, even by kill -9.
#
# ``setpriv --pdeathsig KILL`` asks the kernel for this. The signal is sent when the *thread* that started the child
# ends, not when the process ends. So a separate thread starts each child and then waits for the child's end.


class ChildProcess:
    """
    Starts and controls a child process. The child's output is appended to ``log``; its working folder is ``folder``.

    The child has its own session, so Ctrl-C on the terminal reaches only the parent. The kernel kills the child when
    the parent ends.

    Raises:
        ServerError: The command cannot be run, or ``setpriv`` is not installed.
    """

    def __init__(self, command: Sequence[str], *, log: Path, folder: Path) -> None:
        if shutil.which("setpriv") is None:
            raise ServerError(
                "'setpriv' was not found; it ties servers to their parent (Debian: apt install util-linux)"
            )
        started: Future[subprocess.Popen[bytes]] = Future()
        self._exited = threading.Event()
        tied = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        threading.Thread(
            target=self._run, args=(tied, log, folder, started), name=f"parent of {folder.name}", daemon=True
        ).start()
        self._process = started.result()

    def _run(self, command: Sequence[str], log: Path, folder: Path, started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(  # nosec B603 # the commands are servers that this package knows, no shell
                    command,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            started.set_exception(ServerError(f"{command[0]} cannot be run: {error}"))
            return
        started.set_result(process)
        process.wait()
        self._exited.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """
        The exit status of the process, or None while the process runs.

        If a signal has ended the process, the status is the negative number of the signal.
        """
        return self._process.returncode if self._exited.is_set() else None

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the end of the process, and return whether it has ended."""
        return self._exited.wait(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Suspend the process with SIGSTOP, and return when all its threads are suspended, or when it has ended."""
        self.send(signal.SIGSTOP)
        with suppress(ChildProcessError):  # The process has ended, and its thread has already waited for it.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, even if it is suspended, and wait for its end."""
        self.send(signal.SIGKILL)
        self._exited.wait()

    def terminate(self, timeout_s: float) -> None:
        """
        End the process with SIGTERM, or with SIGKILL if it still runs after ``timeout_s``. Return when it has ended.

        Also send SIGCONT, so that a suspended process receives SIGTERM.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        if not self.wait(timeout_s):
            self.kill()


def log_tail(log: Path) -> str:
    """
    Return the last 15 lines of a log, indented for an error message. If the log cannot be read, return the reason.
    """
    try:
        with log.open(encoding="utf-8", errors="replace") as content:
            return "".join(f"  | {line.rstrip()}\n" for line in deque(content, 15)).rstrip("\n")
    except OSError as error:
        return f"  (no log: {error})"


# Advisory locks on files. The kernel releases a lock when the process that holds it ends.


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """
    Hold the lock of ``path`` during the block. Wait while another process or thread holds the lock.

    Create the file and its folder if they are missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_lock(path: Path) -> IO[str] | None:
    """
    Lock ``path`` without waiting, and return the open file. Return None if another holder has the lock.

    The lock is released when the file is closed.
    """
    handle = path.open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


class ReservedPort:
    """
    Reserves a port of 127.0.0.1 for a server, so that the system gives the port to no other process.

    A socket is bound to the port, but does not listen. So connections are refused while the server is down. The server
    can bind and listen beside the socket, because both set SO_REUSEADDR. The system uses the port neither for another
    server's bind to port 0, nor as the source port of a connection. Without the reservation, a client that retries the
    port of a dead server might get that port as its own source port, and connect to itself.

    Args:
        number: The port. 0 lets the system choose a port.

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
        """Release the port, so that other processes can use it."""
        self._socket.close()


def accepts(port: int) -> bool:
    """Return whether a process accepts a connection on this port of 127.0.0.1, within a second."""
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
    """
    Return the path of this user's folder for temporary files of servers. The returned folder contains a folder for each
    run.
    """
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
    """
    Create an empty folder for one server, and return its path.

    At the end of this process, the folder is removed with the folder of the run.

    Raises:
        ServerError: The folder of all runs belongs to another user.
    """
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_run.folder()))


class _Run:
    """Manages the folder of this process (its run). The folder is created when it is first needed."""

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
    Run a blocking call on a thread, and return its result.

    If the caller is cancelled, wait for the end of the call, drop its result, and raise CancelledError.
    """
    call = asyncio.ensure_future(asyncio.to_thread(blocking, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # The call may be stopping a server. The caller must not continue before the server has ended.
        await asyncio.wait({call})
        call.exception()  # If the exception is not retrieved, asyncio logs that.
        raise


class Startable(ABC):
    """
    The base class of context managers that start servers and close them, for ``with`` and ``async with``.

    The close also runs if the start fails, and may run repeatedly.
    """

    @abstractmethod
    def _start(self) -> None: ...

    def _kill(self) -> None:  # noqa: B027
        """Kill the processes that are starting. Do not wait for ``_start``, which then fails."""

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
            await self._run_start(self._start)
        except BaseException:
            await in_thread(self._close)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await in_thread(self._close)

    async def _run_start(self, start: Callable[[], None]) -> None:
        """
        Run a blocking start on a thread.

        If the caller is cancelled, kill the processes that are starting, and raise CancelledError when ``start`` has
        ended.
        """
        call = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            # Repeat the kill: the start may not have its process yet, or may start further ones.
            while not call.done():
                await in_thread(self._kill)
                await asyncio.wait({call}, timeout=_POLL_S)
            call.exception()  # If the exception is not retrieved, asyncio logs that.
            raise


class Server(Startable):
    """
    Runs one server process on loopback ports. The server's data is kept across restarts, until the server is closed.

    Args:
        name: The name of the server in messages, and of its folder.
        port: The port for clients. 0 lets the system choose a port.
        further_ports: How many other ports the server has. The system chooses these ports.
    """

    def __init__(self, name: str, port: int = 0, *, further_ports: int = 0) -> None:
        self.name = name
        self._wanted_ports = (port, *(0,) * further_ports)
        self._lock = threading.RLock()
        self._ports: list[ReservedPort] = []
        self._folder: Path | None = None
        self._kept: Path | None = None
        self._process: ChildProcess | None = None
        self._was_ready = False
        #: The size of the log when the process was last started.
        self._log_start = 0

    @property
    def port(self) -> int:
        """The port for clients. The port stays the same across restarts. Raise ServerError before the first start."""
        return self._port_number(0)

    @property
    def address(self) -> str:
        """The address for clients, as ``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def folder(self) -> Path:
        """The folder of configuration, data and log. Raise ServerError before the first start."""
        if self._folder is None:
            raise ServerError(f"{self.name} has no folder before its first start")
        return self._folder

    @property
    def log(self) -> Path:
        """The path of the log file. The file has the output of all starts."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The process id of the running server. Raise ServerError if the server does not run."""
        return self._alive().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists. A paused server is running, too."""
        return self._process is not None and self._process.status is None

    def keep_in(self, folder: Path) -> None:
        """
        Use this folder for configuration, data and log, and keep it at the close. Create the folder if it is missing.

        The caller must call this method before the first start.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = folder

    async def start(self) -> None:
        """
        Start the server on its data, and return when it is ready for clients. If the caller is cancelled, kill the
        server.

        Raises:
            ServerError: The server runs already, its port is in use, its process has ended, or the server was not ready
                within 60 s. In the latter two cases, the text has the end of the log.
        """
        await self._run_start(self._start)

    async def stop(self) -> None:
        """
        Stop the server with SIGTERM, or with SIGKILL after 15 s, and return when its process has ended.

        Do nothing if the server does not run.
        """
        await in_thread(self._stop)

    async def kill(self) -> None:
        """Kill the server with SIGKILL, and return when its process has ended. A kill also ends a start that hangs."""
        await in_thread(self._kill)

    async def restart(self) -> None:
        """Stop the server as ``stop`` does, then start it on the same data and port as ``start`` does."""
        await self._run_start(self._restart)

    def pause(self) -> None:
        """
        Suspend the server with SIGSTOP. After this call, the server answers nothing, but its connections stay open.

        Raises:
            ServerError: The server does not run.
        """
        self._alive().freeze()

    def resume(self) -> None:
        """Continue a paused server with SIGCONT. Raise ServerError if the server does not run."""
        self._alive().send(signal.SIGCONT)

    @abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration for the current port and folder, and return the command that runs the server."""

    @abstractmethod
    def _readiness(self) -> AbstractContextManager[Callable[[], bool]]:
        """
        Return a context manager for the duration of one start.

        The context manager provides a function that returns whether the server is ready for clients.
        """

    def _start(self) -> None:
        with self._lock:
            if self.is_running:
                raise ServerError(f"{self.name} runs already, as process {self.pid}")
            self._folder = self._folder or self._kept or server_folder(self.name)
            with self._readiness() as serves:
                # If a port is taken, only a server whose port the system chose can get another one.
                tries = _PORT_TRIES if 0 in self._wanted_ports else 1
                for attempt in range(1, tries + 1):
                    for wanted in self._wanted_ports[len(self._ports) :]:
                        self._ports.append(ReservedPort(wanted))
                    self._log_start = self.log.stat().st_size if self.log.exists() else 0
                    self._process = ChildProcess(self._command(), log=self.log, folder=self.folder)
                    if self._became_ready(self._process, serves, last_attempt=attempt == tries):
                        self._was_ready = True
                        return
                    # Another process took a port. It may be our own former process, if these are the server's ports.
                    if self._was_ready:
                        time.sleep(0.5)
                    else:
                        self._release_ports()

    def _became_ready(self, process: ChildProcess, serves: Callable[[], bool], *, last_attempt: bool) -> bool:
        """
        Wait until the server is ready, and return True. Return False if a port was in use and an attempt is left.

        Raises:
            ServerError: The process has ended, or the server was not ready within 60 s.
        """
        deadline = time.monotonic() + _START_LIMIT_S
        while not process.wait(_POLL_S):
            if serves():
                return True
            if time.monotonic() > deadline:
                process.kill()
                raise ServerError(
                    f"{self.name} did not serve within {_START_LIMIT_S:g} s; its log ends:\n{log_tail(self.log)}"
                )
        if _PORT_TAKEN in self._logged() and not last_attempt:
            return False
        raise ServerError(
            f"{self.name} ended at its start with status {process.status}; its log ends:\n{log_tail(self.log)}"
        )

    def _release_ports(self) -> None:
        for port in self._ports:
            port.release()
        self._ports.clear()

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

    def _logged(self) -> bytes:
        """Return the output of the process since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()
