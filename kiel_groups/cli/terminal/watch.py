"""``--watch``: look after look, on a terminal that is cleared for each, or one below the other."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

import click

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.errors import KielGroupsError
    from kiel_groups.ops.report import Listed
    from kiel_groups.service.group_loader import Look

__all__ = ["clock", "show_next", "watch"]

_SEPARATOR: Final = "-" * 78
#: Below a look: one line for an error, and the cursor's.
_SPARE_ROWS: Final = 2


def watch(
    lines: Lines, looks: Iterator[Look | KielGroupsError], show: Callable[[Look, bool], object], interval_s: float
) -> NoReturn:
    """
    Show looks until Ctrl-C.

    An error before the first of them is raised. A later one is said, once until another one or a look comes.

    Args:
        lines: Where errors are said.
        looks: The next one is taken when it is to be shown; endless.
        show: Called with each, and whether it is the first.
        interval_s: Between two of them, in seconds.
    """
    from kiel_groups.errors import KielGroupsError

    said: str | None = None
    while True:
        look = next(looks)
        if not isinstance(look, KielGroupsError):
            show(look, said is None)
            said = ""
        elif said is None:
            raise look
        elif str(look) != said:
            said = str(look)
            lines.say("error", _fitting(f"{clock()}, looking again: {said}", len("error: ")))
        time.sleep(interval_s)


def show_next(report: Callable[[Listed], Sequence[RenderableType]], listed: Listed | None, *, first: bool) -> None:
    """
    Show one look of many.

    Args:
        report: Makes it, with all partitions, those with which something is wrong, or none.
        listed: Which of these; None is as much as fits the terminal.
        first: Whether nothing was shown before it.
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
    """The time of day, here."""
    return time.strftime("%H:%M:%S")


def _fitted(report: Callable[[Listed], Sequence[RenderableType]], rows: int) -> list[str]:
    """
    With as many partitions as fit, those that are wrong first, and without empty lines unless all partitions fit.

    If not even the rest fits, its last lines are cut.
    """
    from kiel_groups.cli.terminal.rendering import dense, rendered

    lines = rendered(*report("all"))
    if len(lines) <= rows:
        return lines
    lines = dense(rendered(*report("none")))
    # A table takes lines of its own, so fewer partitions may fit than there are lines left.
    for count in range(rows - len(lines), 0, -1):
        filled = dense(rendered(*report(count)))
        if len(filled) <= rows:
            return filled
    if len(lines) <= rows:
        return lines
    kept = max(0, rows - 1)
    return [*lines[:kept], f"… and {counted(len(lines) - kept, 'line that does', 'lines that do')} not fit here"]


def _fitting(text: str, taken: int) -> str:
    """On a terminal, as much of it as one row holds beside what is taken."""
    if not sys.stderr.isatty():
        return text
    room = max(1, shutil.get_terminal_size().columns - taken)
    return text if len(text) <= room else f"{text[: room - 1]}…"
