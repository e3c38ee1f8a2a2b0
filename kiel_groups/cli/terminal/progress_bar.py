"""A bar at a terminal, for commands that know how much there is to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Tell", "bar", "has_bar"]


class Tell(Protocol):
    """Shows where a command is by now."""

    def __call__(self, told: str, completed: float | None = None) -> None:
        """What to say beside the bar, and how much of the total is done; None: as much as before."""


def has_bar() -> bool:
    """Whether standard error is a terminal that can redraw a line: elsewhere a bar would be a litter of lines."""
    from rich.console import Console

    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextmanager
def bar(total: float | None, told: str) -> Iterator[Tell]:
    """
    Show a bar for the time of the block; lines that are printed meanwhile stand above it.

    Args:
        total: What ``completed`` grows to; None where there is no end.
        told: What to say at first.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    class SteadyConsole(Console):
        """Leaves the cursor: a process that a signal ends at once could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    # Where all of it has no room, the bar gives way first.
    share = TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4))
    columns = (BarColumn(), share, TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=SteadyConsole(stderr=True), transient=True) as shown:
        task = shown.add_task(told, total=total)

        def tell(told: str, completed: float | None = None) -> None:
            shown.update(task, completed=completed, description=told)

        yield tell
