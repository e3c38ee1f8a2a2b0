"""Format a group for the demo: as tables of at most 80 columns, or as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich import box
from rich.table import Table

from kiel_groups.model import MemberId
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.wording import counted

__all__ = [
    "member_table",
    "offset_table",
    "status_line",
]


_OFFSET_COLUMNS = 4
_STYLE: Final[dict[str, Any]] = {"title_justify": "left", "title_style": "bold", "width": 78}


def member_table(view: GroupView, names: Mapping[MemberId, str], rates: Mapping[MemberId, float]) -> Table:
    """
    Return a table of the members with their partitions, lag and rate.

    Args:
        view: The group.
        names: The names to show in place of member ids.
        rates: The known rates of members, in records per second.
    """
    table = Table(title=_title(view, names), box=box.SIMPLE, show_footer=True, **_STYLE)
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


def status_line(view: GroupView, names: Mapping[MemberId, str], rates: Mapping[MemberId, float]) -> str:
    """Return a one-line summary of the group, for a log or a narrow terminal."""
    leader = _name(view.leader, names)
    return (
        f"generation {_generation(view)}, {counted(view.members, 'member', 'members')}, leader {leader}, "
        f"{view.owned} of {len(view.partitions)} partitions owned, lag {view.lag:,}, "
        f"{sum(rates.values()):,.0f} records/s"
    )


def _title(view: GroupView, names: Mapping[MemberId, str]) -> str:
    return f"group {view.group} · generation {_generation(view)} · leader {_name(view.leader, names)}"


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
