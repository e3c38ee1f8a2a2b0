"""Show the demo: its events, and the group as tables of at most 80 columns, or as one line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kiel_groups.model import MemberId
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.wording import counted

__all__ = ["Display", "GroupProgress", "member_table", "offset_table", "status_line"]

_LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """
    The group and its progress at one moment.

    ``names`` are shown in place of member ids. ``rates`` are the known rates of members, in records per second.
    """

    view: GroupView
    names: Mapping[MemberId, str]
    rates: Mapping[MemberId, float]
    received: int = 0
    sent: int = 0


class Display:
    """
    Shows events and the state of the group: above a live table on a terminal, as plain lines elsewhere.

    It is a context manager, which removes the table at its end.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start_s = time.monotonic()
        self._next_line_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_table()

    def event(self, text: str) -> None:
        """Print what the demo has done, or what has happened."""
        line = Text.assemble((f"{time.monotonic() - self._start_s:6.1f} s", "dim"), "  ", text)
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def update(self, progress: GroupProgress) -> None:
        """Show the present state of the group."""
        if not self._console.is_terminal:
            if (now_s := time.monotonic()) >= self._next_line_s:
                self._next_line_s = now_s + _LINE_INTERVAL_S
                self.event(f"  {status_line(progress)}, {progress.received:,} received")
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(member_table(progress), _progress_line(progress)), refresh=True)

    def end_table(self) -> None:
        """Remove the live table, so that other output can be printed. The next update shows the table again."""
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


_OFFSET_COLUMNS = 4
_STYLE: Final[dict[str, Any]] = {"title_justify": "left", "title_style": "bold", "width": 78}


def member_table(progress: GroupProgress) -> Table:
    """Return a table of the members with their partitions, lag and rate."""
    view, names, rates = progress.view, progress.names, progress.rates
    title = f"group {view.group} · generation {_generation(view)} · leader {_name(view.leader, names)}"
    table = Table(title=title, box=box.SIMPLE, show_footer=True, **_STYLE)
    table.add_column("member", "all", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("pid", justify="right")
    table.add_column("role")
    table.add_column("partitions", f"{view.owned} of {len(view.partitions)}", justify="right")
    table.add_column("lag", f"{view.lag:,}", justify="right")
    table.add_column("records/s", f"{sum(rates.values()):,.0f}", justify="right")
    for member in view.members:
        table.add_row(
            names.get(member.member_id, member.member_id),
            str(member.pid),
            "leader" if member.leads else "",
            member.share,
            "?" if member.lag is None else f"{member.lag:,}",
            f"{rates[member.member_id]:,.0f}" if member.member_id in rates else "",
        )
    return table


def offset_table(view: GroupView) -> Table:
    """Return a table of each partition's committed offset and lag."""
    table = Table(title="offsets in ZooKeeper (partition: next offset, lag)", box=box.SIMPLE, **_STYLE)
    for _ in range(_OFFSET_COLUMNS):
        table.add_column(ratio=1, no_wrap=True)
    table.show_header = False
    cells = [_offset_cell(partition) for partition in view.partitions]
    rows = -(-len(cells) // _OFFSET_COLUMNS)
    for row in range(rows):
        table.add_row(*cells[row::rows])
    return table


def status_line(progress: GroupProgress) -> str:
    """Return a one-line summary of the group, for a log or a narrow terminal."""
    view = progress.view
    leader = _name(view.leader, progress.names)
    return (
        f"generation {_generation(view)}, {counted(view.members, 'member', 'members')}, leader {leader}, "
        f"{view.owned} of {len(view.partitions)} partitions owned, lag {view.lag:,}, "
        f"{sum(progress.rates.values()):,.0f} records/s"
    )


def _generation(view: GroupView) -> str:
    if view.group_state is None:
        return "none yet"
    publishing = " (publishing)" if view.group_state.state == "publishing" else ""
    return f"{view.group_state.generation}{publishing}"


def _name(member_id: MemberId | None, names: Mapping[MemberId, str]) -> str:
    return "none" if member_id is None else names.get(member_id, member_id)


def _offset_cell(partition: PartitionView) -> str:
    committed = "-" if partition.committed is None else str(partition.committed)
    lag = "?" if partition.lag is None else str(partition.lag)
    return f"{partition.topic_partition.partition:>3}: {committed:>5}, {lag}"
