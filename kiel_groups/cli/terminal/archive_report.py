"""The plan and the summary of an archive, as text for people and as JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.spark import ArchivePlan, ArchiveSummary
    from kiel_groups.spark.checkpoint import OffsetRange
    from kiel_groups.spark.spark_session import Batch

__all__ = [
    "UpdateBar",
    "bar",
    "has_bar",
    "progress",
    "plan_document",
    "plan_lines",
    "summary_document",
    "summary_lines",
]


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


@contextmanager
def progress(lines: Lines, total: int | None, *, quiet: bool) -> Iterator[Callable[[Batch], None]]:
    """
    Show the progress within the block, and yield the function to call after each batch.

    Args:
        lines: Prints a line for each batch if no bar can be shown.
        total: The most records to archive, or None for a run without an end.
        quiet: Show nothing.
    """
    if quiet:
        yield lambda batch: None
        return
    count = _Count(total)
    if not has_bar():
        yield lambda batch: lines.say("info", count.add(batch))
        return
    with bar(total, "starting") as show:
        yield lambda batch: show(count.add(batch), count.records)


class _Count:
    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began_s = time.monotonic()
        self.records = 0

    def add(self, batch: Batch) -> str:
        """Count one more batch, and return a text about the progress so far."""
        self.records += batch.records
        left = batch.left
        if left is None and self._total is not None:
            left = max(0, self._total - self.records)
        rate = self.records / max(time.monotonic() - self._began_s, 1e-3)
        text = f"{self.records:,} records, {rate:,.0f} records/s"
        return text if left is None else f"{text}, {left:,} left"


_MOST_PARTITIONS = 4
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def plan_lines(plan: ArchivePlan) -> Iterator[str]:
    """Yield lines that describe the offsets to read and the folders to write."""
    yield f"would read {counted(plan.records, 'record')} at most"
    yield from _topic_lines(plan.ranges)
    yield f"into {plan.output}, {'a new' if plan.is_new else 'an existing'} archive; checkpoint {plan.checkpoint}"


def plan_document(plan: ArchivePlan) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return {
        "records": plan.records,
        "topics": _topics(plan.ranges),
        "output": plan.output,
        "checkpoint": plan.checkpoint,
        "new": plan.is_new,
    }


def summary_lines(summary: ArchiveSummary) -> Iterator[str]:
    """Yield lines that describe the archived records, the new files and the commit."""
    if not summary.records:
        yield f"archived nothing new in {summary.took_s:.1f} s"
        yield from _topic_lines(summary.ranges)
        yield f"into {summary.output}: no new files"
    else:
        rate = summary.records / max(summary.took_s, 1e-3)
        yield f"archived {counted(summary.records, 'record')} in {summary.took_s:.1f} s, {rate:,.0f} records/s"
        yield from _topic_lines(summary.ranges)
        yield f"into {summary.output}: {counted(summary.files, 'new file')}, {_size(summary.size_bytes)}"
    if summary.group is not None:
        yield f"committed for the group {summary.group}"


def summary_document(summary: ArchiveSummary) -> dict[str, Any]:
    """Return the summary as a JSON document; ``took_s`` is in seconds."""
    return {
        "records": summary.records,
        "topics": _topics(summary.ranges),
        "output": summary.output,
        "files": summary.files,
        "bytes": summary.size_bytes,
        "took_s": round(summary.took_s, 3),
        "group": summary.group,
    }


def _topic_lines(ranges: Iterable[OffsetRange]) -> Iterator[str]:
    for topic, found in groupby(ranges, lambda each: each.topic_partition.topic):
        parts = list(found)
        offsets = sum(each.size for each in parts)
        shown = [f"{each.topic_partition.partition}: {each.start}–{each.end}" for each in parts[:_MOST_PARTITIONS]]
        more = ", …" if len(parts) > _MOST_PARTITIONS else ""
        counts = f"{counted(offsets, 'offset')} in {counted(len(parts), 'partition')}"
        yield f"  {topic}: {counts} ({', '.join(shown)}{more})"


def _topics(ranges: Iterable[OffsetRange]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the ranges by topic and partition; ``to`` is exclusive."""
    return {
        topic: {str(each.topic_partition.partition): {"from": each.start, "to": each.end} for each in found}
        for topic, found in groupby(ranges, lambda each: each.topic_partition.topic)
    }


def _size(size: float) -> str:
    """Format a size with one decimal and a unit: ``52.1 MB``."""
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} {_UNITS[0]}"
