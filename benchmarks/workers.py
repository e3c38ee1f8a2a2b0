"""
Measure how long it takes until all tasks run again when a worker joins, leaves or is killed.

    python -m benchmarks.workers [--size WORKERSxTASKS] [--only NAME] [--rounds N] [--without-peers] [--quick]
                                 [--json FILE]

The benchmark runs a real ZooKeeper and Kafka 0.8.2.2. The connectors have 3 tasks each in a small group, 20 in one of
100 tasks or more; the tasks do nothing. Each worker is a process of its own. In each round a worker joins, leaves in
order, joins again and is killed with -9. The figures are medians of the rounds. The tasks report their starts and stops
with the time of the system's monotonic clock, from within ``start`` and ``stop``:

- ``s``: a join counts from the znode of the new member, a leave from the worker's call of ``close``, a kill from the
  end of its sessions in ZooKeeper's transaction log, because no other worker can notice it before. Each ends when
  every task runs.
- ``total``: the same from the new worker's call of ``start``, which opens its sessions, or from the kill, so that it
  contains the session time-out.
- ``stopped``: the part of ``s`` until the last task that had to move has stopped.
- ``longest``: the longest time for which one task did not run, within ``s``; ``unowned``: the sum over all tasks, in
  task-seconds.
- ``moved``: tasks that run in another worker than before, beyond those that had to move.
- ``restarted``: tasks that were stopped and started again by the same worker.
- ``writes``: transactions of ZooKeeper within ``s``.
- ``cpu_s``: processor time of workers and servers within ``s``; ``cores``: divided by ``s``.
- ``ratio``: ``s`` divided by that of consumers of kiel-groups with the same allocator and debounce, which share as many
  partitions, at the same event in the same run. Their cost is measured as by ``benchmarks.rebalance``, until each
  partition has an owner.

``floor`` is a debounce of 0 ms; by default the leader of a group on ZooKeeper assigns when no worker has joined or left
for 100 ms. Kafka Connect's own workers do not run on 0.8.

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

from benchmarks.contenders import FLOOR, SESSION_TIMEOUT_MS, Contender, Group, our_contender
from benchmarks.measured_group import measured_group
from benchmarks.rebalance import Size, create_topics, rounds_of, row_of
from benchmarks.worker_group import WORKER_GROUPS, WorkerFigures, WorkerGroup, WorkerSetup, worker_group
from kiel_groups.embedded import Cluster

SIZES = ((3, 30), (20, 1_000))
#: Connectors of a small group have this many tasks; those of a large one have more.
SMALL_TASKS, LARGE_TASKS, LARGE = 3, 20, 100
TIMES, COUNTS = ("s", "total", "stopped", "longest", "unowned"), ("moved", "restarted", "writes")
TITLES = ("size", "group", "event", *TIMES, *COUNTS, "cpu_s", "cores", "ratio")
#: The consumers with the same allocator and the same debounce, by the name of the group of workers.
PEERS = {
    "workers, sticky, floor": our_contender("consumers, sticky, floor", {"partition_allocator": "sticky", **FLOOR}),
    "workers, sticky, defaults": our_contender("consumers, sticky, defaults", {"partition_allocator": "sticky"}),
    "workers, round robin, floor": our_contender("consumers, round robin, floor", FLOOR),
    "workers, round robin, defaults": our_contender("consumers, round robin, defaults", {}),
}
_WIDTHS = "{:>9} {:<32} {:<6} {:>7} {:>7} {:>7} {:>7} {:>8} {:>5} {:>9} {:>6} {:>6} {:>5} {:>5}"


def run(
    setups: Sequence[WorkerSetup], sizes: Sequence[tuple[int, int]], rounds: int, *, with_peers: bool
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for workers, tasks in sizes:
        with Cluster() as cluster:
            topics = create_topics(cluster, tasks) if with_peers else ()
            for number, setup in enumerate(setups):
                if number:
                    _wait_for_sessions()
                click.echo(f"{workers} workers, {tasks} tasks: {setup.name}", err=True)
                peers: dict[str, dict[str, object]] = {}
                if with_peers:
                    peer = Group(cluster.zk_hosts, cluster.brokers[0], f"consumers-{number}", topics, tasks)
                    peers = _consumers(cluster, PEERS[setup.name], peer, workers, rounds)
                with worker_group(setup, f"workers-{number}", cluster) as running:
                    found = _rounds(running, workers, tasks, rounds)
                for event, figures in found.items():
                    rows.append(_row(setup, workers, tasks, event, figures, peers.get(event)))
                    show(rows[-1])
    return rows


def _consumers(
    cluster: Cluster, contender: Contender, group: Group, members: int, rounds: int
) -> dict[str, dict[str, object]]:
    """Measure a group of consumers, and return the row of each event."""
    with measured_group(contender, group, cluster) as running:
        found = rounds_of(running, members, rounds, float("inf"))
    _wait_for_sessions()
    rows = {event: row_of(contender, members, group.partitions, event, figures) for event, figures in found.items()}
    for row in rows.values():
        show({"workers": members, "tasks": group.partitions, **row})
    return rows


def _wait_for_sessions() -> None:
    """Wait until the sessions of killed members have ended, so that they do not end while another group is measured."""
    time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)


def _rounds(group: WorkerGroup, workers: int, tasks: int, rounds: int) -> dict[str, list[WorkerFigures]]:
    each = tasks_each(tasks)
    group.gather(workers - 1, tasks // each, each)
    found: dict[str, list[WorkerFigures]] = defaultdict(list)
    for _ in range(rounds):
        for event, end in (("leave", group.leave), ("kill", group.kill)):
            number = group.prepared()
            found["join"].append(group.measure("join", workers, partial(group.join, number)))
            found[event].append(group.measure(event, workers - 1, partial(end, number)))
    return found


def tasks_each(tasks: int) -> int:
    """Return how many tasks each connector of a group with this many tasks has."""
    return SMALL_TASKS if tasks < LARGE else LARGE_TASKS


def _row(
    setup: WorkerSetup,
    workers: int,
    tasks: int,
    event: str,
    figures: Sequence[WorkerFigures],
    peer: Mapping[str, object] | None,
) -> dict[str, object]:
    medians = {name: round(median(getattr(one, name) for one in figures), 3) for name in WorkerFigures.__slots__}
    where = {"workers": workers, "tasks": tasks, "group": setup.name, "event": event}
    ratio = round(medians["s"] / float(str(peer["s"])), 2) if peer else None
    rounds = {"session_timeout_ms": SESSION_TIMEOUT_MS, "rounds": [asdict(one) for one in figures]}
    return {**where, **medians, "ratio": ratio, "peer": peer, **rounds}


def show(row: Mapping[str, object]) -> None:
    """Print a line of the table. Figures that the row does not have stay empty."""

    def shown(name: str, form: str) -> str:
        return "" if row.get(name) is None else format(row[name], form)

    times, counts = [shown(name, ".3f") for name in TIMES], [shown(name, "g") for name in COUNTS]
    rest = [shown(name, ".2f") for name in ("cpu_s", "cores", "ratio")]
    click.echo(_WIDTHS.format(f"{row['workers']}×{row['tasks']}", row["group"], row["event"], *times, *counts, *rest))


@click.command(help=__doc__.split("\n\n")[0])
@click.option(
    "--size", "sizes", type=Size(), multiple=True, help="Measure only this size; can be repeated.  [3x30 and 20x1000]"
)
@click.option("--only", default="", metavar="NAME", help="Only groups with this in their names.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--without-peers", is_flag=True, help="Measure no groups of consumers.")
@click.option("--quick", is_flag=True, help="3 × 30 only, one round.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    sizes: tuple[tuple[int, int], ...], only: str, rounds: int, without_peers: bool, quick: bool, target: Path | None
) -> None:
    setups = [setup for setup in WORKER_GROUPS if only in setup.name]
    if not setups:
        known = "; ".join(setup.name for setup in WORKER_GROUPS)
        raise click.BadParameter(f"{only!r} given; known: {known}", param_hint="--only")
    for workers, tasks in sizes:
        if tasks % tasks_each(tasks):
            given = f"'{workers}x{tasks}' given; expected a multiple of {tasks_each(tasks)} tasks"
            raise click.BadParameter(given, param_hint="--size")
    click.echo(_WIDTHS.format(*TITLES))
    rounds = 1 if quick else rounds
    rows = run(setups, sizes or (SIZES[:1] if quick else SIZES), rounds, with_peers=not without_peers)
    if target:
        about = {"benchmark": "workers", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
