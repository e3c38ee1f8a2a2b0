"""Print the results of commands on standard output: tables for users, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import StringIO
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, Protocol, TextIO

import click
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kiel_groups.cli.terminal.messages import VISIBLE, Lines
from kiel_groups.errors import KielGroupsError
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.ops.loaded_groups import LoadedGroups
    from kiel_groups.ops.views.report import Listed


#: The width for files and pipes: tables, facts and results are whole there, and sentences about problems wrap.
_UNBOUNDED, _SENTENCE = 100_000, 80


def console(file: IO[str] | None = None) -> Console:
    """
    Return a rich console for standard output, without markup.

    The console is as wide as the terminal; without a terminal, its width is unbounded. It prints no colours without a
    terminal, or if NO_COLOR is set.

    Args:
        file: A file to write to instead, in the format for standard output.

    Raises:
        KielGroupsError: Standard output is closed.
    """
    terminal = _standard_output().isatty()
    width = None if terminal else _UNBOUNDED
    return _VisibleConsole(file=file, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False)


class _VisibleConsole(Console):
    """A console that replaces control characters, so that the text of a plugin's error cannot control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(VISIBLE))


def plain_table(columns: Sequence[str], rows: Iterable[Iterable[str]], *, right: Sequence[str] = ()) -> Table:
    """Return a table without lines between its rows. The columns named in ``right`` are aligned to the right."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def show(*things: RenderableType) -> None:
    """
    Print tables and texts.

    Raises:
        BrokenPipeError: The reader of the output has closed the pipe.
        KielGroupsError: Standard output cannot be written.
    """
    show_lines(rendered(*things))


def show_result(document: Any, *things: RenderableType, as_json: bool) -> None:
    """Print a document if ``as_json`` is set, or else tables and texts. Raises the errors of ``show``."""
    if as_json:
        show_json(document)
    else:
        show(*things)


def show_lines(lines: Iterable[str]) -> None:
    """Print lines that ``rendered`` returned. Raises the errors of ``show``."""
    _write("\n".join(lines) + "\n")


def rendered(*things: RenderableType) -> list[str]:
    """Return the lines that ``show`` would print. Raise KielGroupsError if standard output is closed."""
    lines: list[str] = []
    context = click.get_current_context(silent=True)
    complete = context.obj.complete if context is not None and isinstance(context.obj, Lines) else str
    for thing in things:
        thing = _changed(thing, lambda text: _plain(complete(text)))
        text = StringIO()
        output = console(text)
        # ``Sentences`` has this attribute. For a file, it does not divide a long word, such as a path.
        is_prose = output.width == _UNBOUNDED and getattr(thing, "wraps", False)
        output.print(thing, width=_SENTENCE if is_prose else None, overflow="ignore" if is_prose else None)
        # Rich pads lines to the width of a table, and puts empty lines above and below it: one is enough between two.
        new = [line.rstrip() for line in text.getvalue().splitlines()]
        lines += new[1:] if lines[-1:] == [""] == new[:1] and len(new) > 1 else new
    return "\n".join(lines).strip("\n").split("\n")


def _changed(thing: RenderableType, change: Callable[[str], str]) -> RenderableType:
    """Return a text or ``Sentences`` after a change of the text. Return other things unchanged."""
    if isinstance(thing, str):
        return change(thing)
    if isinstance(thing, Text) and (text := change(thing.plain)) != thing.plain:
        return Text(text, style=thing.style, overflow=thing.overflow)
    changed: Callable[[Callable[[str], str]], RenderableType] | None = getattr(thing, "changed", None)
    return thing if changed is None else changed(change)


def _plain(text: str) -> str:
    """Return a text as standard output prints it. A longer replacement, as -> in latin-1, would lengthen lines."""
    output = _standard_output()
    if output.encoding.lower().startswith("utf"):
        return text
    return text.encode(output.encoding, output.errors or "strict").decode(output.encoding, "surrogateescape")


def without_blank_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines that show text on the terminal. Lines with only blanks and colour codes are left out."""
    return [line for line in lines if Text.from_ansi(line).plain.strip()]


def rows_to_clear() -> int | None:
    """Return the height of the terminal, or None if standard output is no terminal that can be cleared."""
    output = console()
    return output.height if output.is_terminal and not output.is_dumb_terminal else None


def show_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print a value as a JSON document. Keys keep their order. Raises the errors of ``show``."""
    # An encoding such as latin-1 would change characters that JSON can escape.
    escaped = not _standard_output().encoding.lower().startswith("utf")
    _write(json.dumps(value, indent=None if on_one_line else 2, ensure_ascii=escaped) + "\n")


def _write(text: str) -> None:
    _standard_output()
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KielGroupsError(f"standard output cannot be written: {error.strerror}") from error


def _standard_output() -> TextIO:
    if sys.stdout is None:
        raise KielGroupsError("standard output is closed; give the command one, such as a file or a pipe")
    return sys.stdout


_SEPARATOR: Final = "-" * 78
#: The rows below a report: two for an error, which is not cut, and one for the cursor.
_SPARE_ROWS: Final = 3


def watch(
    lines: Lines,
    loads: Iterator[LoadedGroups | KielGroupsError],
    show: Callable[[LoadedGroups, bool], object],
    interval_s: float,
) -> NoReturn:
    """
    Load groups again and again, and show each result, until Ctrl-C. For ``--watch``.

    An error before the first result is raised. A later error is printed, but not again while it repeats.

    Args:
        lines: Prints errors.
        loads: An endless iterator. Taking its next item loads the groups.
        show: Called with each result, and whether it is the first result.
        interval_s: The pause between two loads, in seconds.
    """
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
    Show one of the reports of ``--watch``. On a terminal, clear the screen first.

    Args:
        report: Returns the report. Its argument says which partitions to list.
        listed: Which partitions to list. None lists as many as fit the terminal.
        first: Whether this is the first report.
    """
    rows = rows_to_clear()
    if rows is None:
        show(*([] if first else [_SEPARATOR]), *report(listed or "all"))
        return
    shown = rendered(*report(listed)) if listed else _fitted(report, rows - _SPARE_ROWS)
    click.clear()
    show_lines(shown)


def present(
    document: Any,
    report: Callable[[Listed], Sequence[RenderableType]],
    listed: Listed | None = None,
    *,
    first: bool | None = None,
) -> None:
    """
    Show a report or, for programs, a document in JSON.

    Args:
        document: The document for JSON. None shows the report.
        report: As for ``show_next``.
        listed: Which partitions to list. None lists all partitions or, with ``--watch``, as many as fit the terminal.
        first: Whether this is the first report of ``--watch``; None for a single report.
    """
    if document is not None:
        show_json(document, on_one_line=first is not None)
    elif first is None:
        show(*report(listed or "all"))
    else:
        show_next(report, listed, first=first)


def clock() -> str:
    """Return the local time of day, such as ``13:05:00``."""
    return time.strftime("%H:%M:%S")


def _fitted(report: Callable[[Listed], Sequence[RenderableType]], rows: int) -> list[str]:
    """
    Return the lines of a report with as many partitions as fit into ``rows``. Drop blank lines unless all lines fit.

    If the report does not fit even without partitions, its last lines are cut.
    """
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


class UpdateBar(Protocol):
    """A function that updates a bar of progress."""

    def __call__(self, text: str, completed: float | None = None) -> None:
        """Show ``text`` beside the bar, and set the completed amount. None leaves the amount unchanged."""


def has_bar() -> bool:
    """Return whether standard error is a terminal that can redraw a line, as a bar of progress needs."""
    console = Console(stderr=True)
    # A process that was started with standard error closed has none.
    return sys.stderr is not None and sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


@contextmanager
def bar(total: float | None, text: str) -> Iterator[UpdateBar]:
    """
    Show a bar of progress within the block, and yield a function that updates the bar. Lines appear above the bar.

    Args:
        total: The final value of ``completed``, or None for work without an end.
        text: The first text beside the bar.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.table import Column

    class SteadyConsole(Console):
        """A console that never hides the cursor, because a process that a signal kills would leave it hidden."""

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


#: How often a line shows the progress where no bar can be shown, in seconds.
_LINE_INTERVAL_S: Final = 10.0


@contextmanager
def progress(lines: Lines, total: float | None, *, quiet: bool, timed: bool = False) -> Iterator[UpdateBar]:
    """
    Show progress within the block: by a bar or, if standard error cannot redraw a line, by lines. Yield its update.

    Args:
        lines: Prints the lines: a text that has changed, at most every ten seconds.
        total: The final value of ``completed``, or None for work without an end.
        quiet: Whether to show nothing.
        timed: Whether lines begin with the time.
    """
    shown_s, shown = time.monotonic(), ""

    def line(text: str, completed: float | None = None) -> None:
        nonlocal shown_s, shown
        if not quiet and text != shown and time.monotonic() - shown_s >= _LINE_INTERVAL_S:
            shown_s, shown = time.monotonic(), text
            lines.say("info", text, stamp=time.strftime("%Y-%m-%d %H:%M:%S") if timed else "")

    if quiet or not has_bar():
        yield line
    else:
        with bar(total, "starting") as update:
            yield update


#: How often a bar moves while a command waits, in seconds.
_MOVE_S: Final = 0.5


@contextmanager
def waiting(lines: Lines, what: str, most_s: float) -> Iterator[Callable[[float], float]]:
    """
    Show within the block that a command waits: by a bar, or by a line if standard error cannot redraw a line.

    Args:
        lines: Prints the line.
        what: What the command does meanwhile.
        most_s: How long the command waits at most, in seconds.

    Yields:
        A function that waits until a time, given in seconds since the block was entered. It returns the time after the
        wait, in the same way.
    """
    began_s = time.monotonic()
    with ExitStack() as stack:
        update = None
        if has_bar():
            update = stack.enter_context(bar(most_s, what))
        else:
            lines.say("info", f"{what}, for at most {most_s:g} s")

        def wait(until_s: float) -> float:
            while (left_s := began_s + until_s - time.monotonic()) > 0:
                if update is not None:
                    update(f"{what}, {until_s - left_s:.0f} of {most_s:g} s", until_s - left_s)
                time.sleep(min(left_s, _MOVE_S))
            return time.monotonic() - began_s

        yield wait
