"""Display of the demo: events above a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kiel_groups.demo.tables import member_table, status_line
from kiel_groups.model import MemberId
from kiel_groups.ops.views.group_view import GroupView

__all__ = ["Display", "GroupProgress", "make_display"]

_LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The group and its progress at one moment; ``rates`` are in records per second."""

    view: GroupView
    names: Mapping[MemberId, str]
    rates: Mapping[MemberId, float]
    received: int
    sent: int


class Display(Protocol):
    """Shows events and the state of the group; used as a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def event(self, text: str) -> None:
        """Print what the demo has done, or what has happened."""

    def update(self, progress: GroupProgress) -> None:
        """Show the present state of the group."""

    def end_table(self) -> None:
        """Remove the live table, so that other output can be printed. The next update shows the table again."""


def make_display(console: Console) -> Display:
    """Return a live display if the console is a terminal, and plain lines otherwise."""
    return _LiveDisplay(console) if console.is_terminal else _PlainDisplay(console)


class _PlainDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = time.monotonic()
        self._next_line_s = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def event(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._start_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )

    def update(self, progress: GroupProgress) -> None:
        if (now_s := time.monotonic()) >= self._next_line_s:
            self._next_line_s = now_s + _LINE_INTERVAL_S
            self.event(
                f"  {status_line(progress.view, progress.names, progress.rates)}, {progress.received:,} received"
            )

    def end_table(self) -> None: ...


class _LiveDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_table()

    def event(self, text: str) -> None:
        line = Text.assemble((f"{time.monotonic() - self._start_s:6.1f} s", "dim"), "  ", text)
        self._console.print(line)

    def update(self, progress: GroupProgress) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(
            Group(member_table(progress.view, progress.names, progress.rates), _progress_line(progress)), refresh=True
        )

    def end_table(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _progress_line(progress: GroupProgress) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=progress.sent, completed=min(progress.received, progress.sent), width=40),
        f"{progress.received:,} received, {progress.sent:,} sent",
    )
    return line
