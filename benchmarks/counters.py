"""
Measure what one increment of a counter costs: in the registry of this project, and in prometheus-client.

    python -m benchmarks.counters [--quick] [--json FILE]

The counter has one label. ``registry``: ``Metrics.count``. ``client, bound``: ``inc`` of a child of a ``Counter``; the
caller keeps a child for each value of the label. ``client, by labels``: ``labels`` and then ``inc``, in a caller that
keeps no children. Each figure is processor time in nanoseconds, of the fastest of some runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import click
from prometheus_client import CollectorRegistry, Counter

from kiel_groups.metrics import Metrics

__all__ = ["main"]

RUNS = 7


def cost_ns(increment: Callable[[], None], calls: int) -> float:
    """Return the time of one call in nanoseconds, without the time of the loop."""
    fastest = []
    for each in (increment, lambda: None):
        runs = []
        for _ in range(RUNS):
            began_ns = time.thread_time_ns()
            for _ in range(calls):
                each()
            runs.append((time.thread_time_ns() - began_ns) / calls)
        fastest.append(min(runs))
    return fastest[0] - fastest[1]


@click.command()
@click.option("--quick", is_flag=True, help="Fewer increments.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures there.")
def main(quick: bool, file: Path | None) -> None:
    """Measure the increment of a counter with one label."""
    metrics = Metrics()
    counter = Counter("records_consumed", "Records.", ["topic"], registry=CollectorRegistry())
    bound = counter.labels(topic="pv")
    calls = 20_000 if quick else 500_000
    row = {
        "registry": cost_ns(lambda: metrics.count("records_consumed", 3, topic="pv"), calls),
        "client, bound": cost_ns(lambda: bound.inc(3), calls),
        "client, by labels": cost_ns(lambda: counter.labels(topic="pv").inc(3), calls),
    }
    for name, value in row.items():
        click.echo(f"{name:<18} {value:>6,.0f} ns")
    if file is not None:
        file.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
