"""The progress of a running archive: a bar on a terminal, one line for each batch elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.progress_bar import bar, has_bar

if TYPE_CHECKING:
    from kiel_groups.spark.jobs.query_run import Batch

__all__ = ["progress"]


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
