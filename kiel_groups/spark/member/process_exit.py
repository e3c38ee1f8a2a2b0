"""
An orderly end of a query's process, to which Spark sends a SIGTERM and whose channel it closes at the same moment.

With Python's default handler, the process would exit at once, and the group would wait for the session's timeout. An
exception raised by the handler would work while the process still reads the channel. But if the process has seen the
channel closed, it is leaving already, and an exception would interrupt that. So the handler itself leaves, unless
that has begun.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["default_on_sigterm", "on_sigterm"]

#: The exit status that shells report for a process ended by SIGTERM.
_STATUS = 128 + signal.SIGTERM


def on_sigterm(leave: Callable[[], bool]) -> None:
    """
    Have a SIGTERM make this process leave and then exit, unless the application has a handler of its own.

    Args:
        leave: Called between any two steps of the main thread; returns False if leaving has begun and must continue.
    """

    def handle(number: int, _: FrameType | None) -> None:
        if leave():
            raise SystemExit(_STATUS)

    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)


def default_on_sigterm() -> None:
    """Restore Python's default handler if ``on_sigterm`` replaced it."""
    handler = signal.getsignal(signal.SIGTERM)
    if _in_main_thread() and getattr(handler, "__module__", None) == __name__:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_main_thread() -> bool:
    """Return whether this is the main thread; Python lets no other thread set signal handlers."""
    return threading.current_thread() is threading.main_thread()
