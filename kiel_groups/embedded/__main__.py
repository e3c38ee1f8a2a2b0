"""``python -m kiel_groups.embedded``: have the jars of every class path in the cache, with a progress display."""

from __future__ import annotations

import sys

from rich.console import Console

from kiel_groups.embedded.classpaths import CLASS_PATHS
from kiel_groups.embedded.jars import jar_folder
from kiel_groups.embedded.progress import fetch_display
from kiel_groups.errors import ServerError


def prefetch(console: Console) -> int:
    """Fetch what is missing; 0 when all jars are there, 1 when some could not be had, after one message on each."""
    with fetch_display(console) as progress:
        failures: list[ServerError] = []
        for wanted in CLASS_PATHS.values():
            try:
                jar_folder(wanted, progress)
            except ServerError as error:
                failures.append(error)
    for failure in failures:
        console.print(f"error: {failure}", style="red", markup=False, highlight=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(prefetch(Console(stderr=True)))
