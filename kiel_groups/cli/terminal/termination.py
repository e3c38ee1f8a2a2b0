"""End a command at a signal, with the exit status of that signal, or end its process at once."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from kiel_groups.cli.terminal.messages import FAILED

log = logging.getLogger(__name__)

#: The exit status of a process that a signal ended is this plus the number of the signal.
_SIGNALLED = 128

#: SIGHUP arrives when the terminal is closed, or the connection to its machine breaks.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: For how long after the first signal another one is the same one repeated, in seconds. ``timeout`` of coreutils sends
#: each signal twice: to its child, and to its process group.
_REPEATED_S = 0.05


class Termination:
    """
    Cancels the current task at the first SIGINT, SIGTERM or SIGHUP, or at ``end``. A second signal kills the process,
    unless it is the first one repeated. A signal that the process ignores, such as SIGHUP after ``nohup``, stays
    ignored.

    A second signal has this effect even if a callback blocks the event loop, so that the loop has not processed the
    first signal. ``status`` is the exit status, or None until the task is cancelled.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._task = asyncio.current_task()
        self._is_settled = False
        loop = asyncio.get_running_loop()
        for number in _handled():
            # The loop reads the number of the signal from its wake-up socket, and then calls ``_on_signal``.
            loop.add_signal_handler(number, self._on_signal, number)
            # Python calls this handler also while a callback blocks the loop. It replaces one of the loop that does
            # nothing, and for which the kernel restarts system calls: during a ``read``, Python would call no handler.
            signal.signal(number, _on_first)

    def end(self, number: int) -> None:
        """Cancel the task as if this signal had arrived. Do nothing after ``settle`` or an earlier cancellation."""
        if self.status is None and not self._is_settled and self._task is not None:
            self.status = _SIGNALLED + number
            self._task.cancel()

    def settle(self) -> None:
        """Never cancel the task from now on, because its work is done. A second signal still kills the process."""
        self._is_settled = True

    def _on_signal(self, number: int) -> None:
        _discard_lost_output()
        loop = asyncio.get_running_loop()
        for each in _handled():
            # This installs Python's own handler of SIGINT, which cancels all tasks and waits for them; one of them may
            # not end.
            loop.remove_signal_handler(each)
        _restore_defaults()
        self.end(number)


class BlockingTermination:
    """
    Sets the event ``asked`` at the first signal, for a command without an event loop. A second signal kills the
    process.

    ``status`` is the exit status, or None until the first signal.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.asked = threading.Event()
        for number in _handled():
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        _on_first()
        _discard_lost_output()
        self.status = _SIGNALLED + number
        self.asked.set()


def _handled() -> list[signal.Signals]:
    """Return the signals that the process does not ignore."""
    return [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]


def _on_first(*_: object) -> None:
    """Handle the first signal: ignore its repetitions, and then have the next signal kill the process."""
    for each in _handled():
        # Not SIG_IGN, which a program that a thread starts meanwhile would inherit.
        signal.signal(each, lambda number, frame: None)
    time.sleep(_REPEATED_S)
    _restore_defaults()


def _restore_defaults() -> None:
    for each in _handled():
        signal.signal(each, signal.SIG_DFL)


def _discard_lost_output() -> None:
    """
    Discard the output to a terminal that is closed, after which the signal SIGHUP comes.

    Each write to it fails, so that the last lines of a command would turn the status of the signal into a failure.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError, ValueError):  # There is no stream, or it has no file.
            continue
        try:
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno != errno.EIO:  # A full device is still reported.
                continue
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def end_process(status: int) -> NoReturn:
    """Flush logs and output, and end this process at once. Close no connection, and wait for no thread."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # The reader of the output may be gone.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def end_stuck_worker(works: Sequence[object]) -> NoReturn:
    """
    Log an error, and end the process with status 1 without closing its ZooKeeper session.

    ``works`` are connectors and tasks that have not stopped. Their claims must not be released while they run. The
    claims end at the session timeout, after the process.
    """
    log.error(
        "this worker ends although %s did not stop; others get this work after the session timeout",
        ", ".join(map(str, works)),
    )
    end_process(FAILED)
