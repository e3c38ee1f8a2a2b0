"""The log of a command, as lines on standard error: neither names of loggers nor tracebacks."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kiel_groups.cli.lines import Lines

__all__ = ["show_logs"]

_KAZOO = ("kiel_groups.kazoo", "kiel_groups.coordination.admin.kazoo")


def show_logs(lines: Lines, *, verbose: bool, told_otherwise: Sequence[str] = ()) -> None:
    """
    Have warnings and errors printed from now on, one line each.

    Args:
        lines: Where they go.
        verbose: Print what is merely worth knowing, too.
        told_otherwise: Loggers that are heard with ``verbose`` only: the command says itself what they say.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[_LineHandler(lines)], force=True)
    for name in _KAZOO:
        # Every refused connection, and kazoo tries one a second; that ZooKeeper is away is told by the group, once.
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.ERROR)
    for name in told_otherwise:
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)


class _LineHandler(logging.Handler):
    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.say(record.levelname.lower(), _text(record))
        except Exception:
            self.handleError(record)


def _text(record: logging.LogRecord) -> str:
    """The message; of a traceback only what was raised."""
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else "")
