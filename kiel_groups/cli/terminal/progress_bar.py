"""A progress bar on a terminal, for commands that know the amount of work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Tell", "bar", "has_bar"]


class Tell(Protocol):
    """Updates the bar."""

    def __call__(self, told: str, completed: float | None = None) -> None:
        """Show the text ``told`` beside the bar, and how much of the total is done; None leaves that as it is."""


def has_bar() -> bool:
    """Whether standard error is a terminal that can redraw a line; elsewhere each update would print a new line."""
    from rich.console import Console

    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextmanager
def bar(total: float | None, told: str) -> Iterator[Tell]:
    """
    Show a bar within the block; lines that are printed meanwhile appear above it.

    Args:
        total: The final value of ``completed``; None for work without an end.
        told: The text beside the bar at first.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    class SteadyConsole(Console):
        """Never hides the cursor: a process that a signal kills could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    # On a narrow terminal the bar shrinks first.
    share = TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4))
    columns = (BarColumn(), share, TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=SteadyConsole(stderr=True), transient=True) as shown:
        task = shown.add_task(told, total=total)

        def update(told: str, completed: float | None = None) -> None:
            shown.update(task, completed=completed, description=told)

        yield update
