"""Messages on standard error, one line each."""

from __future__ import annotations

import sys

import click

__all__ = ["Lines"]


class Lines:
    """Prints lines ``level: text``, without repetition: the error that ends a command is often logged just before."""

    def __init__(self) -> None:
        self._last = ("", "")
        self._reported: set[tuple[str, str]] = set()

    def say(self, level: str, text: str, *, stamp: str = "", reports: object = None) -> None:
        """
        Print a line, unless the previous line of the same level ends with this text, or an earlier line has reported
        the same error.

        Args:
            level: The level, such as ``error``, with which the line begins.
            text: The message.
            stamp: The time, for commands that run long.
            reports: The error that the line reports in other words; this error may end the command later.
        """
        line = " ".join(line.strip() for line in text.splitlines())
        last_level, last = self._last
        # The text of a warning is printed again when it ends the command as an error.
        is_repeated = (level == last_level and last.endswith(line)) or (level, line) in self._reported
        if reports is not None:
            self._reported.add((level, " ".join(line.strip() for line in str(reports).splitlines())))
        if not is_repeated:
            # Pass the present sys.stderr: rich replaces it while a bar is shown, and click would use the original one.
            click.echo(f"{stamp}{' ' if stamp else ''}{level}: {line}", file=sys.stderr, err=True)
        self._last = (level, line)
