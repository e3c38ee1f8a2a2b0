"""
How the process of a query ends: Spark sends it a SIGTERM, and calls nothing.

Python's default would drop everything; the group would wait for the session's timeout. An exit in order runs what
Spark's runner has in its ``finally``, which is the reader's ``stop``.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

__all__ = ["default_on_sigterm", "exit_on_sigterm"]


def exit_on_sigterm() -> None:
    """From now on a SIGTERM ends this process as ``sys.exit`` does, unless somebody else handles it."""
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def default_on_sigterm() -> None:
    """Undo ``exit_on_sigterm``."""
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    # Once: a second one would interrupt the leaving.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _in_main_thread() -> bool:
    """Others cannot set handlers."""
    return threading.current_thread() is threading.main_thread()
