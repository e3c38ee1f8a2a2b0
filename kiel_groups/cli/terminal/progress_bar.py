"""A progress bar on a terminal, for commands that know the amount of work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["UpdateBar", "bar", "has_bar"]


class UpdateBar(Protocol):
    """A function that updates the bar."""

    def __call__(self, text: str, completed: float | None = None) -> None:
        """Show ``text`` beside the bar, and set the completed amount. None leaves the amount unchanged."""


def has_bar() -> bool:
    """Return whether standard error can redraw a line. Without such a terminal, each update would print a new line."""
    from rich.console import Console

    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextmanager
def bar(total: float | None, text: str) -> Iterator[UpdateBar]:
    """
    Show a bar within the block, and yield the function that updates it; printed lines appear above the bar.

    Args:
        total: The final value of ``completed``, or None for work without an end.
        text: The first text beside the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    class SteadyConsole(Console):
        """A console that never hides the cursor: a process that a signal kills could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    # On a narrow terminal the bar shrinks first.
    share = TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4))
    columns = (BarColumn(), share, TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=SteadyConsole(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total)

        def update(text: str, completed: float | None = None) -> None:
            shown.update(task, completed=completed, description=text)

        yield update
