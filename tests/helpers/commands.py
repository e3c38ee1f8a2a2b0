"""Run this project's programs as processes, as users do, and wait for their output."""

from __future__ import annotations

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self
from unittest.mock import patch

from kiel_groups.cli import app
from kiel_groups.cli.terminal import termination

__all__ = [
    "REPOSITORY",
    "Running",
    "at_a_terminal",
    "environment",
    "kiel_groups",
    "kiel_groups_here",
    "logging_of_a_command",
]

REPOSITORY = Path(__file__).parents[2]

#: How long a process may take to start, to do the next step, or to end, on a busy machine, in seconds.
_PATIENCE_S = 60.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored. Processes that the tests start would inherit this setting.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def kiel_groups(*arguments: str, folder: Path | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``kiel-groups`` in ``folder`` until it ends."""
    command = [sys.executable, "-m", "kiel_groups", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def kiel_groups_here(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """
    Run ``kiel-groups`` in this process until it ends: most of a short command's time is the start of another process.

    If an event loop runs in this thread, the command gets a thread of its own, where it can run a loop. Log records of
    a test's own event loop are not the command's. The command handles no signals. Meanwhile, ``folder`` is the working
    folder of the whole process.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(arguments, folder)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_here, arguments, folder).result()


#: The commands of several threads run in turn, because a process has one standard output, logging and environment.
_TURN = threading.Lock()


def _run_here(arguments: tuple[str, ...], folder: Path | None) -> subprocess.CompletedProcess[str]:
    # Some commands write to the descriptor, which only a file has.
    with ExitStack() as stack:
        stack.enter_context(_TURN)
        out, err = (stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(2))
        stack.enter_context(chdir(folder or Path.cwd()))
        stack.enter_context(patch.object(termination, "_SIGNALS", ()))
        with redirect_stdout(out), redirect_stderr(err), logging_of_a_command(), _environment_of_a_command():
            status = app.run(arguments)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


@contextmanager
def logging_of_a_command() -> Iterator[None]:
    """Restore the logging of the test run after a command in this process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    levels = {logger.name: logger.level for logger in _loggers()}
    root.handlers[:] = []  # basicConfig(force=True) would close pytest's handlers
    # Meanwhile, members of the test may run on the main thread, and on threads that they have started.
    others = {*threading.enumerate()} - {threading.current_thread()}
    add, last = root.addHandler, logging.lastResort
    assert last is not None

    def is_of_command(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in others

    def add_handler(handler: logging.Handler) -> None:
        handler.addFilter(is_of_command)
        add(handler)

    last.addFilter(is_of_command)
    try:
        with patch.object(root, "addHandler", add_handler):
            yield
    finally:
        last.removeFilter(is_of_command)
        root.level, root.handlers[:] = level, handlers
        for logger in _loggers():
            logger.setLevel(levels.get(logger.name, logging.NOTSET))


@contextmanager
def _environment_of_a_command() -> Iterator[None]:
    """Restore the variables that an option has set for all parts of the process. Other threads read the rest."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _loggers() -> list[logging.Logger]:
    # A logger that has not been asked for by its own name is a placeholder for its children.
    return [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]


def environment() -> dict[str, str]:
    """Return the environment for a process of this project."""
    # With PYTHONPATH, Python finds the checkout from any folder, even if it is not installed.
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}


def at_a_terminal(words: list[str], **variables: str) -> bytes:
    """
    Run a command on a pseudo-terminal, with ``variables`` in its environment, and return its output.

    The exit status must be 0.
    """
    ours, theirs = pty.openpty()
    env = {key: value for key, value in environment().items() if key != "NO_COLOR"} | {"TERM": "xterm"} | variables
    with subprocess.Popen(words, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        got = b""
        try:
            while data := os.read(ours, 65536):
                got += data
        except OSError:
            assert process.wait(30) == 0  # The command has closed the terminal.
        finally:
            os.close(ours)
    return got


class Running:
    """
    A process, of Python by default, that is killed at the end of its ``with`` block.

    Threads collect the lines of its output and errors. The process reads this process's standard input, or its own one,
    which the caller ends, if ``typed``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        program: str = sys.executable,
        *,
        typed: bool = False,
    ) -> None:
        self.process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE if typed else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._grown = threading.Condition()
        pairs = ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in pairs]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            with self._grown:
                lines.append(line.rstrip("\n"))
                self._grown.notify_all()

    def wait_for_lines(self, count: int, timeout_s: float = _PATIENCE_S) -> list[str]:
        """Wait until the process has printed ``count`` lines, and return all lines so far."""
        with self._grown:
            assert self._grown.wait_for(lambda: len(self.lines) >= count, timeout_s), (self.lines, self.errors)
            return list(self.lines)

    def wait_for_error(self, beginning: str, timeout_s: float = _PATIENCE_S) -> None:
        """Wait for a line on standard error that starts with ``beginning``."""

        def is_printed() -> bool:
            return any(line.startswith(beginning) for line in self.errors)

        with self._grown:
            assert self._grown.wait_for(is_printed, timeout_s), (self.lines, self.errors)

    def end(self, number: int, timeout_s: float = _PATIENCE_S) -> int:
        """Send the signal ``number``, wait until the process has ended, and return its exit status."""
        self.process.send_signal(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = _PATIENCE_S) -> int:
        """Wait until the process and its output have ended, and return the exit status."""
        status = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(5)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
