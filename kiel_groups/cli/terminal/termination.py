"""How a command is ended from outside: once, in order, and told by its exit status."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

__all__ = ["BlockingEnding", "Ending"]

#: A process that a signal ended is told by its status: this, and the signal's number.
_SIGNALLED = 128


class Ending:
    """
    Cancels the current task at the first SIGINT or SIGTERM, or when told to; a second signal ends the process.

    Its ``status`` is None until then.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._task = asyncio.current_task()
        self._is_settled = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._heed, number)

    def end(self, number: int) -> None:
        """Cancel the task as if this signal had come; nothing happens after ``settle``, or a second time."""
        if self.status is None and not self._is_settled and self._task is not None:
            self.status = _SIGNALLED + number
            self._task.cancel()

    def settle(self) -> None:
        """From here on there is nothing to cut short: an end would only disturb the leaving."""
        self._is_settled = True

    def _heed(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)
        self.end(number)


class BlockingEnding:
    """
    The same for a command without an event loop: sets ``asked`` at the first signal; a second one ends the process.

    Its ``status`` is None until then.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heed)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        self.status = _SIGNALLED + number
        self.asked.set()
