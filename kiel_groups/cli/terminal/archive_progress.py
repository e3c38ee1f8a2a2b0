"""What a person sees while an archive grows: a bar at a terminal, a line a batch elsewhere."""

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
    What to call after each batch.

    Args:
        lines: Where lines go.
        total: How many records there were at the start; None where there is no end.
        quiet: Show nothing.
    """
    if quiet:
        yield lambda batch: None
        return
    count = _Count(total)
    if not has_bar():
        yield lambda batch: lines.say("info", count.told(batch))
        return
    with bar(total, "starting") as tell:
        yield lambda batch: tell(count.told(batch), count.records)


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
