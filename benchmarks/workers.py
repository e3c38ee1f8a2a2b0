"""
Measure how long it takes until all tasks run again when a worker joins, leaves or is killed.

    python -m benchmarks.workers [--size WORKERSxTASKS] [--only NAME] [--rounds N] [--quick] [--json FILE]

The benchmark runs a real ZooKeeper. The connectors have 3 tasks each in a small group, 20 in one of 100 tasks or more;
the tasks do nothing. Each worker is a process of its own. In each round a worker joins, leaves in order, joins again
and is killed with -9. The figures are medians of the rounds. The tasks report their starts and stops with the time of
the system's monotonic clock, from within ``start`` and ``stop``:

- ``s``: a join counts from the new worker's call of ``start``, so it contains the opening of its sessions. A leave
  counts from its call of ``close``, a kill from the end of its sessions, because no other worker can notice it before.
  Each ends when every task runs.
- ``unowned``: task-seconds in which tasks did not run, in that time.
- ``moved``: tasks that run in another worker than before, beyond those that had to move.
- ``restarted``: tasks that were stopped and started again by the same worker.
- ``cores``: processor time of workers and servers in that time, divided by the time.
- ``ratio``: ``s`` divided by that of consumers of kiel-groups with the same allocator and debounce, which share as many
  partitions, at the same event in the same run. Their cost is measured as by ``benchmarks.rebalance``, until each
  partition has an owner. Two of the groups have such a peer.

The benchmark fails if a task runs in two workers at once.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import click

from benchmarks.contenders import CONTENDERS, SESSION_TIMEOUT_MS, Group
from benchmarks.measured_group import measured_group
from benchmarks.rebalance import Size, create_topics, rounds_of
from benchmarks.worker_group import WORKER_GROUPS, WorkerFigures, WorkerGroup, WorkerSetup, worker_group
from kiel_groups.embedded import Cluster

SIZES = ((3, 30), (20, 1_000))
#: Connectors of a small group have this many tasks; those of a large one have more.
SMALL_TASKS, LARGE_TASKS, LARGE = 3, 20, 100
TITLES = ("size", "group", "event", "s", "unowned", "moved", "restarted", "cores", "ratio")
#: The consumers with the same allocator and the same debounce, by the name of the group of workers.
PEERS = {f"workers, {settings}": f"ours, {settings}" for settings in ("sticky, floor", "round robin, defaults")}
_WIDTHS = "{:>9} {:<31} {:<6} {:>7} {:>9} {:>6} {:>9} {:>6} {:>6}"


def run(setups: Sequence[WorkerSetup], sizes: Sequence[tuple[int, int]], rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for workers, tasks in sizes:
        with Cluster() as cluster:
            seconds = _consumers(
                cluster, {PEERS[setup.name] for setup in setups if setup.name in PEERS}, workers, tasks, rounds
            )
            for number, setup in enumerate(setups):
                click.echo(f"{workers} workers, {tasks} tasks: {setup.name}", err=True)
                with worker_group(setup, f"workers-{number}", cluster) as running:
                    found = _rounds(running, workers, tasks, rounds)
                time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
                for event, figures in found.items():
                    peer_s = seconds.get(PEERS.get(setup.name, ""), {}).get(event)
                    rows.append(_row(setup, workers, tasks, event, figures, peer_s))
                    _show(rows[-1])
    return rows


def _consumers(
    cluster: Cluster, names: set[str], members: int, partitions: int, rounds: int
) -> dict[str, dict[str, float]]:
    """Measure groups of consumers, and return the seconds of each by event."""
    topics = create_topics(cluster, partitions)
    seconds: dict[str, dict[str, float]] = {}
    for contender in (one for one in CONTENDERS if one.name in names):
        click.echo(f"{members} members, {partitions} partitions: {contender.name}", err=True)
        group = Group(cluster.zk_hosts, cluster.brokers[0], f"consumers-{len(seconds)}", topics, partitions)
        with measured_group(contender, group, cluster) as running:
            found = rounds_of(running, members, rounds, float("inf"))
        time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
        seconds[contender.name] = {event: median(one.s for one in figures) for event, figures in found.items()}
    return seconds


def _rounds(group: WorkerGroup, workers: int, tasks: int, rounds: int) -> dict[str, list[WorkerFigures]]:
    each = SMALL_TASKS if tasks < LARGE else LARGE_TASKS
    group.gather(workers - 1, tasks // each, each)
    found: dict[str, list[WorkerFigures]] = defaultdict(list)
    for _ in range(rounds):
        for event, end in (("leave", group.leave), ("kill", group.kill)):
            number = group.prepared()
            found["join"].append(group.measure("join", workers, partial(group.join, number)))
            found[event].append(group.measure(event, workers - 1, partial(end, number)))
    return found


def _row(
    setup: WorkerSetup, workers: int, tasks: int, event: str, figures: Sequence[WorkerFigures], peer_s: float | None
) -> dict[str, object]:
    medians = {name: round(median(getattr(one, name) for one in figures), 3) for name in WorkerFigures.__slots__}
    return {
        "workers": workers,
        "tasks": tasks,
        "group": setup.name,
        "event": event,
        **medians,
        "peer": PEERS.get(setup.name),
        "peer_s": peer_s and round(peer_s, 3),
        "ratio": peer_s and round(medians["s"] / peer_s, 2),
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rounds": [asdict(one) for one in figures],
    }


def _show(row: Mapping[str, object]) -> None:
    size = f"{row['workers']}×{row['tasks']}"
    counts = [f"{row[name]:g}" for name in ("moved", "restarted")]
    times = [f"{row[name]:.3f}" for name in ("s", "unowned")]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    click.echo(_WIDTHS.format(size, row["group"], row["event"], *times, *counts, f"{row['cores']:.2f}", ratio))


@click.command(help=__doc__.split("\n\n")[0])
@click.option(
    "--size", "sizes", type=Size(), multiple=True, help="Measure only this size; can be repeated.  [3x30 and 20x1000]"
)
@click.option("--only", default="", metavar="NAME", help="Only groups with this in their names.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--quick", is_flag=True, help="3 × 30 only, one round.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(sizes: tuple[tuple[int, int], ...], only: str, rounds: int, quick: bool, target: Path | None) -> None:
    setups = [setup for setup in WORKER_GROUPS if only in setup.name]
    if not setups:
        known = "; ".join(setup.name for setup in WORKER_GROUPS)
        raise click.BadParameter(f"{only!r} given; known: {known}", param_hint="--only")
    click.echo(_WIDTHS.format(*TITLES))
    rows = run(setups, sizes or (SIZES[:1] if quick else SIZES), 1 if quick else rounds)
    if target:
        about = {"benchmark": "workers", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
