"""What a person reads on standard error: one line for one thing."""

from __future__ import annotations

import click

__all__ = ["Lines"]


class Lines:
    """Prints ``level: text``, and does not repeat itself: what ends a command has often been logged a moment before."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, level: str, text: str) -> None:
        """Print a line; nothing where the line before said, or ended with, the same."""
        line = " ".join(line.strip() for line in text.splitlines())
        if not self._last.endswith(line):
            click.echo(f"{level}: {line}", err=True)
        self._last = line
