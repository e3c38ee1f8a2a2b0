"""
The orderly exit of a query's process at SIGTERM.

When a query ends, Spark sends the signal and closes its channel to the process at the same moment. With Python's
default handler, the process would exit at once, and the group would wait for the session timeout. The process may have
seen the closed channel first, and be leaving the group already: an exception from the handler might interrupt that. So
the handler itself leaves the group, unless the process has already begun to leave.
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
    Install a handler of SIGTERM that calls ``leave`` and then exits.

    Do nothing outside the main thread, or if the application has a handler of its own.

    Args:
        leave: Leaves the group. The handler may call it while the main thread executes any code, even ``leave`` itself.
            It returns False if an earlier call has started; then the handler returns, so that the earlier call can
            complete.
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
