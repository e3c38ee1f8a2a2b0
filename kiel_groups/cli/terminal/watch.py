"""Repeat a report for ``--watch``. Clear a terminal before each report; elsewhere, print a line between reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import click

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.errors import KielGroupsError
    from kiel_groups.ops.report_parts import Listed
    from kiel_groups.service.loaded_groups import LoadedGroups, ViewT

__all__ = ["clock", "show_next", "watch"]

_SEPARATOR: Final = "-" * 78
#: The rows below a report: two for an error, which is not cut, and one for the cursor.
_SPARE_ROWS: Final = 3


def watch(
    lines: Lines,
    loads: Iterator[LoadedGroups[ViewT] | KielGroupsError],
    show: Callable[[LoadedGroups[ViewT], bool], object],
    interval_s: float,
) -> NoReturn:
    """
    Show each load until Ctrl-C.

    An error before the first load is raised. A later error is printed, but not again while it repeats.

    Args:
        lines: Prints errors.
        loads: An endless iterator; its next item is taken when it is due.
        show: Called with each load, and whether it is the first.
        interval_s: The pause between two loads, in seconds.
    """
    from kiel_groups.errors import KielGroupsError

    printed: str | None = None
    while True:
        loaded = next(loads)
        if not isinstance(loaded, KielGroupsError):
            show(loaded, printed is None)
            printed = ""
        elif printed is None:
            raise loaded
        elif str(loaded) != printed:
            printed = str(loaded)
            lines.say("error", f"{clock()}, trying again: {printed}")
        time.sleep(interval_s)


def show_next(report: Callable[[Listed], Sequence[RenderableType]], listed: Listed | None, *, first: bool) -> None:
    """
    Show one of the repeated reports.

    Args:
        report: Returns the report; its argument says which partitions to list.
        listed: Which partitions to list. None lists as many as fit the terminal.
        first: Whether this is the first report.
    """
    from kiel_groups.cli.terminal.rendering import rendered, rows_to_clear, show, show_lines

    rows = rows_to_clear()
    if rows is None:
        show(*([] if first else [_SEPARATOR]), *report(listed or "all"))
        return
    shown = rendered(*report(listed)) if listed else _fitted(report, rows - _SPARE_ROWS)
    click.clear()
    show_lines(shown)


def clock() -> str:
    """Return the local time of day."""
    return time.strftime("%H:%M:%S")


def _fitted(report: Callable[[Listed], Sequence[RenderableType]], rows: int) -> list[str]:
    """
    Return the report with as many partitions as fit, those with a problem first. Drop blank lines unless all fit.

    If the report does not fit even without partitions, its last lines are cut.
    """
    from kiel_groups.cli.terminal.rendering import rendered, without_blank_lines

    lines = rendered(*report("all"))
    if len(lines) <= rows:
        return lines
    lines = without_blank_lines(rendered(*report("none")))
    # A table has lines for its heading, so fewer partitions may fit than there are rows left.
    for count in range(rows - len(lines), 0, -1):
        filled = without_blank_lines(rendered(*report(count)))
        if len(filled) <= rows:
            return filled
    if len(lines) <= rows:
        return lines
    kept = max(0, rows - 1)
    return [*lines[:kept], f"… and {counted(len(lines) - kept, 'line that does', 'lines that do')} not fit here"]
