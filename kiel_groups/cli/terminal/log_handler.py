"""The log of a command as lines on standard error, without logger names and tracebacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from kiel_groups.cli.terminal.messages import Lines

__all__ = ["show_logs"]

_KAZOO = ("kiel_groups.kazoo", "kiel_groups.admin.cluster_admin.kazoo")


def show_logs(lines: Lines, *, verbose: bool, reported_elsewhere: Sequence[str] = (), timed: bool = False) -> None:
    """
    Print warnings and errors of the log from now on, one line each.

    Args:
        lines: Prints the lines.
        verbose: Print log records of level INFO, too.
        reported_elsewhere: Loggers to show only with ``verbose``, because the command itself reports their failures.
        timed: Begin each line with its time, for commands that run for days.
    """
    handler = _LineHandler(lines, timed=timed)
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=True)
    for name in _KAZOO:
        # Kazoo warns of every refused connection, once a second; the group itself logs once that ZooKeeper is away.
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.ERROR)
    if not verbose:
        handler.addFilter(lambda record: record.name not in reported_elsewhere)


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
    """Return the message and, if the record has an exception, its type and text without the traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else "")
