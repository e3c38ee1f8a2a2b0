"""What a person reads on standard error: one line for one thing."""

from __future__ import annotations

import sys

import click

__all__ = ["Lines"]


class Lines:
    """Prints ``level: text``, and does not repeat itself: what ends a command has often been logged a moment before."""

    def __init__(self) -> None:
        self._last = ("", "")

    def say(self, level: str, text: str, *, stamp: str = "") -> None:
        """
        Print a line; nothing where the line before said, or ended with, the same, and was of the same level.

        Args:
            level: What it begins with.
            text: What it says.
            stamp: The time, for lines that come long after the command has begun.
        """
        line = " ".join(line.strip() for line in text.splitlines())
        last_level, last = self._last
        # What was a warning is an error once it ends a command.
        if level != last_level or not last.endswith(line):
            # By its name: click would find the stream behind the one that puts lines above a bar.
            click.echo(f"{stamp}{' ' if stamp else ''}{level}: {line}", file=sys.stderr, err=True)
        self._last = (level, line)
