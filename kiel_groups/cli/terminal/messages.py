"""Print messages and log records on standard error as lines, and define the exit codes."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

import click

from kiel_groups.wording import some

DONE: Final = 0
FAILED: Final = 1
#: A wrong option, setting, name or file; the caller can fix it.
WRONG: Final = 2
#: An archive is done, and records were lost before it could read them, as ``--allow-loss`` permits.
WITH_LOSSES: Final = 3
#: 128 plus the number of the signal: SIGINT (Ctrl-C), SIGPIPE (the reader of the output is gone).
INTERRUPTED: Final = 130
READER_GONE: Final = 141

_STATUSES: Final = (
    "Exit status: 0 done, 1 failed, 2 a wrong option, setting, name or file,{} 130 after Ctrl-C, 141 when the"
    " reader of the output is gone, 143 after SIGTERM."
)
#: The text below the help of every command, and below that of an archive.
EPILOG: Final = _STATUSES.format("")
EPILOG_OF_ARCHIVES: Final = _STATUSES.format(" 3 done but for records that were lost before,")


#: Replaces control characters, with which a text from outside could change the terminal, hide a line or forge one.
VISIBLE = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Lines:
    """
    Prints lines of the form ``level: text``, and omits repetitions. The error that ends a command is often logged
    before.

    Args:
        complete: Puts a text into the words of the present call, and completes the commands in it by its options, so
            that a shell can run them.
    """

    def __init__(self, complete: Callable[[str], str] = lambda text: text) -> None:
        self.complete = complete
        #: Whether to print JSON documents with time, level, logger and message in place of lines.
        self.as_json = False
        self._last = ("", "")
        self._reported: set[tuple[str, str]] = set()

    def say(
        self,
        level: str,
        text: str,
        *,
        stamp: str = "",
        logger: str = "",
        reports: object = None,
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """
        Print a message as a line on standard error.

        Do not print the line if the previous line has the same level and ends with this text, or if an earlier line
        has reported the same error.

        Args:
            level: The level, such as ``error``. The line begins with the level.
            text: The message.
            stamp: The time to print before the level, or "".
            logger: The name of the logger, or "" for the command itself. Only JSON shows the name.
            reports: The error that the line reports in other words. If this error ends the command later, it is not
                printed again.
            fields: The values in the message, by name. Only JSON shows them as fields.
        """
        line = self.complete(_line(text))
        last_level, last = self._last
        # The text of a warning is printed again when it ends the command as an error.
        is_repeated = (level == last_level and last.endswith(line)) or (level, line) in self._reported
        if reports is not None:
            self._reported.add((level, self.complete(_line(str(reports)))))
        if not is_repeated:
            # Pass the present sys.stderr: rich replaces it while a bar is shown, and click would use the original one.
            shown = f"{stamp}{' ' if stamp else ''}{level}: {line}"
            if self.as_json:
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                named = {"logger": logger} if logger else {}
                shown = json.dumps({"time": now, "level": level, **named, "message": line, **fields})
            click.echo(shown, file=sys.stderr, err=True)
        self._last = (level, line)


def warn_of_hidden(lines: Lines, group: str, paths: Collection[str]) -> None:
    """Print a warning that names some of the znodes that an ACL hides, if there are any."""
    if paths:
        lines.say("warning", f"an ACL denies reading parts of group {group}: {some(paths)}")


def _line(text: str) -> str:
    """Return a message as one line. Control characters are replaced by ``?``."""
    return " ".join(line.strip() for line in text.splitlines()).translate(VISIBLE)


_KAZOO = ("kiel_groups.kazoo", "kiel_groups.ops.zookeeper_client.kazoo")


def show_logs(lines: Lines, *, verbose: bool, reported_elsewhere: Sequence[str] = (), timed: bool = False) -> None:
    """
    Print later log records of level WARNING and above, each as one line.

    Args:
        lines: Prints the lines.
        verbose: Whether to print log records of level INFO, too.
        reported_elsewhere: Loggers to show only with ``verbose``, because the command itself reports their failures.
        timed: Whether to begin each line with its time, for commands that run for days.
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
            self._lines.say(
                record.levelname.lower(),
                _text(record),
                stamp=stamp,
                logger=record.name,
                reports=getattr(record, "reports", None),
                fields=getattr(record, "fields", {}),
            )
        except Exception:
            self.handleError(record)


def _text(record: logging.LogRecord) -> str:
    """Return the message of a log record, with the type and text of its exception, but without the traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + (f": {type(error).__name__}: {error}" if error is not None else "")
