"""The log of a command, as lines on standard error: neither names of loggers nor tracebacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from kiel_groups.cli.terminal.messages import Lines

__all__ = ["show_logs"]

_KAZOO = ("kiel_groups.kazoo", "kiel_groups.admin.cluster_admin.kazoo")


def show_logs(lines: Lines, *, verbose: bool, told_otherwise: Sequence[str] = (), timed: bool = False) -> None:
    """
    Have warnings and errors printed from now on, one line each.

    Args:
        lines: Where they go.
        verbose: Print what is merely worth knowing, too.
        told_otherwise: Loggers that are shown with ``verbose`` only: the command reports itself what they say.
        timed: Begin each line with its time: for commands that run for days.
    """
    handler = _LineHandler(lines, timed=timed)
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
    for name in _KAZOO:
        # Every refused connection, and kazoo tries one a second; that ZooKeeper is away is told by the group, once.
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.ERROR)
    if not verbose:
        handler.addFilter(lambda record: record.name not in told_otherwise)


class _LineHandler(logging.Handler):
    def __init__(self, lines: Lines, *, timed: bool) -> None:
        super().__init__()
        self._lines = lines
        self._timed = timed

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created)) if self._timed else ""
            reports = getattr(record, "reports", None)
            self._lines.say(record.levelname.lower(), _text(record), stamp=stamp, reports=reports)
        except Exception:
            self.handleError(record)


def _text(record: logging.LogRecord) -> str:
    """The message; of a traceback only what was raised."""
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else "")
