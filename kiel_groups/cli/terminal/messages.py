"""What a person reads on standard error: one line for one thing."""

from __future__ import annotations

import sys

import click

__all__ = ["Lines"]


class Lines:
    """Prints ``level: text``, and does not repeat itself: what ends a command has often been logged a moment before."""

    def __init__(self) -> None:
        self._last = ("", "")
        self._reported: set[tuple[str, str]] = set()

    def say(self, level: str, text: str, *, stamp: str = "", reports: object = None) -> None:
        """
        Print a line; nothing where the line before ended with the same, or one of the same level has reported it.

        Args:
            level: What it begins with.
            text: What it says.
            stamp: The time, for lines that come long after the command has begun.
            reports: The error that the line reports in words of its own; it may end the command later.
        """
        line = " ".join(line.strip() for line in text.splitlines())
        last_level, last = self._last
        # What was a warning is an error once it ends a command.
        is_repeated = (level == last_level and last.endswith(line)) or (level, line) in self._reported
        if reports is not None:
            self._reported.add((level, " ".join(line.strip() for line in str(reports).splitlines())))
        if not is_repeated:
            # By its name: click would find the stream behind the one that puts lines above a bar.
            click.echo(f"{stamp}{' ' if stamp else ''}{level}: {line}", file=sys.stderr, err=True)
        self._last = (level, line)
