"""
How the process of a query ends: Spark sends it a SIGTERM and closes its channel, in the same moment.

Python's default would drop everything, and the group would wait for the session's timeout. An exception out of the
handler would do where the channel is still waited for, and would cut the leaving short where it has been seen closed.
So the handler itself leaves, unless that is under way.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["default_on_sigterm", "on_sigterm"]

#: What a shell tells of a process that a SIGTERM has ended.
_STATUS = 128 + signal.SIGTERM


def on_sigterm(leave: Callable[[], bool]) -> None:
    """
    From now on a SIGTERM has this process leave, and then exit, unless somebody else handles it.

    Args:
        leave: Called between any two steps of the main thread; False where that is leaving already, and is to go on.
    """

    def handle(number: int, _: FrameType | None) -> None:
        if leave():
            raise SystemExit(_STATUS)

    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)


def default_on_sigterm() -> None:
    """Undo ``on_sigterm``."""
    handler = signal.getsignal(signal.SIGTERM)
    if _in_main_thread() and getattr(handler, "__module__", None) == __name__:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_main_thread() -> bool:
    """Others cannot set handlers."""
    return threading.current_thread() is threading.main_thread()
