"""
A child process that dies with its parent, also after kill −9 of the parent.

``setpriv --pdeathsig KILL`` asks the kernel for that. The signal follows the *thread* that started the child, not the
process, so each child is started by a thread of its own that then waits for it, and so lives as long as the child.
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
    One running child; its output is appended to ``log``.

    It has a session of its own, so that a Ctrl-C at the terminal reaches the parent only, which then stops it in order.

    Raises:
        ServerError: The command cannot be run.
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
            target=self._live, args=(tied, log, folder, started), name=f"parent of {folder.name}", daemon=True
        ).start()
        self._process = started.result()

    def _live(self, command: Sequence[str], log: Path, folder: Path, started: Future[subprocess.Popen[bytes]]) -> None:
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
        """The exit status, minus the signal's number where one ended it; None while the process lives."""
        return self._process.returncode if self._exited.is_set() else None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True when it has ended."""
        return self._exited.wait(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where the process has ended."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop it (SIGSTOP) and return when none of its threads runs any more, some milliseconds later."""
        self.send(signal.SIGSTOP)
        with suppress(ChildProcessError):  # It has ended, and its thread has seen it.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """End it at once (SIGKILL, which a stopped process obeys too) and wait until it is gone."""
        self.send(signal.SIGKILL)
        self._exited.wait()

    def terminate(self, timeout_s: float) -> None:
        """Ask it to end (SIGTERM, after SIGCONT should it be stopped); kill it where it does not within the time."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        if not self.wait(timeout_s):
            self.kill()


def log_tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented for an error message."""
    try:
        with log.open(encoding="utf-8", errors="replace") as content:
            return "".join(f"  | {line.rstrip()}\n" for line in deque(content, lines)).rstrip("\n")
    except OSError as error:
        return f"  (no log: {error})"
