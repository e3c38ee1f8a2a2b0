"""
A child process that the kernel kills when its parent dies, even by kill -9.

``setpriv --pdeathsig KILL`` asks the kernel for this. The signal is sent when the *thread* that started the child ends,
not when the process ends. So a separate thread starts each child and then waits for the child's end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from kiel_groups.errors import ServerError

__all__ = ["ChildProcess", "log_tail"]


class ChildProcess:
    """
    A running child process, whose output is appended to ``log``.

    The child has its own session. So Ctrl-C on the terminal reaches only the parent, which then stops the child.

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
                process = subprocess.Popen(
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
        The exit status, minus the signal's number if a signal has ended the process, or None while the process runs.
        """
        return self._process.returncode if self._exited.is_set() else None

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the end of the process, and return whether it has ended."""
        return self._exited.wait(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP, and return when none of its threads runs, some milliseconds later."""
        self.send(signal.SIGSTOP)
        with suppress(ChildProcessError):  # The process has ended, and its thread has already waited for it.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, which also ends a stopped process, and wait for its end."""
        self.send(signal.SIGKILL)
        self._exited.wait()

    def terminate(self, timeout_s: float) -> None:
        """
        End the process with SIGTERM. Send SIGCONT, too, in case it is stopped. Kill it if it still runs after
        ``timeout_s``.
        """
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        if not self.wait(timeout_s):
            self.kill()


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, indented for an error message."""
    try:
        with log.open(encoding="utf-8", errors="replace") as content:
            return "".join(f"  | {line.rstrip()}\n" for line in deque(content, lines)).rstrip("\n")
    except OSError as error:
        return f"  (no log: {error})"
