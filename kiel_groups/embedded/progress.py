"""What a person sees while jars are fetched: bars at a terminal, a line at the start and the end elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kiel_groups.embedded.fetching import Progress as ProgressCallback

__all__ = ["fetch_display"]


@contextmanager
def fetch_display(console: Console) -> Iterator[ProgressCallback]:
    """Show what ``jar_folder`` tells, for the time of the block; nothing appears where nothing is fetched."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.fields[class_path]:<16}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, bool] = {}

    def __call__(self, class_path: str, done: int, total: int, what: str) -> None:
        complete = done == total
        if self._told.get(class_path) is complete:
            return
        self._told[class_path] = complete
        said = f"{total} jars of {class_path} fetched" if complete else f"fetching {total} jars of {class_path} …"
        self._console.print(said, markup=False, highlight=False)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, class_path: str, done: int, total: int, what: str) -> None:
        if class_path not in self._tasks:
            self._tasks[class_path] = self._bars.add_task("", total=total, class_path=class_path)
        self._bars.update(self._tasks[class_path], completed=done, description=what[:34])
