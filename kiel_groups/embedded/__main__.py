"""Fetch the jars of most servers into the cache, and show the progress: ``python -m kiel_groups.embedded``."""

import sys

from rich.console import Console

from kiel_groups.embedded.download_display import prefetch
from kiel_groups.embedded.releases import PREFETCHED

if __name__ == "__main__":
    console = Console(stderr=True)
    failures = prefetch(PREFETCHED, console)
    for failure in failures.values():
        console.print(f"error: {failure}", style="red", markup=False, highlight=False)
    sys.exit(1 if failures else 0)
