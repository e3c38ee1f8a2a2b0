"""What a person sees while an archive grows: a bar at a terminal, a line a batch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kiel_groups.cli.lines import Lines

if TYPE_CHECKING:
    from kiel_groups.spark.jobs.running import Batch

__all__ = ["progress"]


@contextmanager
def progress(lines: Lines, total: int | None, *, quiet: bool) -> Iterator[Callable[[Batch], None]]:
    """
    What to call after each batch.

    Args:
        lines: Where lines go.
        total: How many records there were at the start; None where there is no end.
        quiet: Show nothing.
    """
    if quiet:
        yield lambda batch: None
    elif sys.stderr.isatty():
        with _bar(total) as tell:
            yield tell
    else:
        count = _Count(total)
        yield lambda batch: lines.say("info", count.told(batch))


class _Count:
    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began_s = time.monotonic()
        self.records = 0

    def told(self, batch: Batch) -> str:
        """Where the archive is after one more batch."""
        self.records += batch.records
        left = batch.left
        if left is None and self._total is not None:
            left = max(0, self._total - self.records)
        rate = self.records / max(time.monotonic() - self._began_s, 1e-3)
        told = f"{self.records:,} records, {rate:,.0f} records/s"
        return told if left is None else f"{told}, {left:,} left"


@contextmanager
def _bar(total: int | None) -> Iterator[Callable[[Batch], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    count = _Count(total)
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)

        def tell(batch: Batch) -> None:
            told = count.told(batch)
            bar.update(task, completed=count.records, description=told)

        yield tell
