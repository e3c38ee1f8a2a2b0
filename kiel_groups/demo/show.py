"""How the demo appears: events above a live table at a terminal, plain lines elsewhere."""

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

from kiel_groups.model import MemberId
from kiel_groups.ops.group_view import GroupView
from kiel_groups.ops.tables import member_table, status_line

__all__ = ["Scene", "Show", "make_show"]

_LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to see at one moment; ``rates`` in records a second."""

    view: GroupView
    names: Mapping[MemberId, str]
    rates: Mapping[MemberId, float]
    received: int
    sent: int


class Show(Protocol):
    """Where the demo appears; used as a context manager."""

    def __enter__(self) -> Show: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def event(self, text: str) -> None:
        """Something was done, or came about."""

    def update(self, scene: Scene) -> None:
        """The group looks like this now."""

    def end_table(self) -> None:
        """No update follows for the time being: whatever is printed next stands below."""


def make_show(console: Console) -> Show:
    """The show that fits where the console leads."""
    return _LiveShow(console) if console.is_terminal else _PlainShow(console)


class _PlainShow:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = time.monotonic()
        self._next_line_s = 0.0

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def event(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._start_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True
        )

    def update(self, scene: Scene) -> None:
        if (now_s := time.monotonic()) >= self._next_line_s:
            self._next_line_s = now_s + _LINE_INTERVAL_S
            self.event(f"  {status_line(scene.view, scene.names, scene.rates)}, {scene.received:,} received")

    def end_table(self) -> None: ...


class _LiveShow:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_table()

    def event(self, text: str) -> None:
        line = Text.assemble((f"{time.monotonic() - self._start_s:6.1f} s", "dim"), "  ", text)
        self._console.print(line)

    def update(self, scene: Scene) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(member_table(scene.view, scene.names, scene.rates), _progress(scene)), refresh=True)

    def end_table(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _progress(scene: Scene) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=scene.sent, completed=min(scene.received, scene.sent), width=40),
        f"{scene.received:,} received, {scene.sent:,} sent",
    )
    return line
