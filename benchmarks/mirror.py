"""
Measure how fast a mirror copies a topic of Kafka 0.8.2.2 to Kafka 3.9.1.

    python -m benchmarks.mirror [--quick] [--cells NAME,NAME] [--only TEXT] [--rounds N] [--tasks N] [--against FOLDER]
        [--target RELEASE] [--json FILE]

A cell is a topic of the source, as in ``benchmarks.consume``. A mirror runs as a worker process runs it, with two tasks
and at least once or exactly once. It is measured from its first stored batch to its last, so the start of the worker
does not count. ``plain loop`` reads with kafka-python, writes with confluent-kafka, and stores no offsets; it is
stopped after some seconds. ``producer alone`` is confluent-kafka with the settings of the mirror, which writes values
of the same size from memory, with a callback for each.

Each way is a process of its own on the last core; the servers of both clusters have the first. ``CPU s`` and
``servers`` are seconds of processor time for a million records. ``ratio`` is the rate divided by that of ``producer
alone`` in the same round. The figures are medians of five rounds, in which the ways take turns, each with a topic of
its own on the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.consume import checked, figures, write_result
from benchmarks.delivery.cells import CELLS, Cell
from benchmarks.delivery.clients import HERE, peer_program, program
from benchmarks.delivery.cores import SERVER_CORE, running_on
from benchmarks.delivery.filled_topics import FilledTopic, filled_topic
from benchmarks.delivery.watched_process import ClientFailure, Command, Measurement, measure
from benchmarks.members.produced import AT_ONCE
from benchmarks.peers import available_peer
from kiel_groups.embedded import Cluster

__all__ = ["main"]

ROUNDS, QUICK_ROUNDS = 5, 2
CHOSEN = ("100B-none-16p-large", "1K-none-16p-large")
BASE, LOOP = "producer alone", "plain loop"
GUARANTEES = {"at least once": "false", "exactly once": "true"}
#: The plain loop is measured over the records that it copies in this time, in seconds.
LIMIT_S = 6.0

HEADER = f"{'cell':<20} {'way':<20} {'k msg/s':>9} {'MB/s':>7} {'CPU s':>6} {'servers':>8} {'peak MiB':>8} {'ratio':>6}"


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: the clusters, the filled topic, and the name of its copy."""

    source: Cluster
    target: Cluster
    topic: FilledTopic
    cell: Cell
    copy: str


Way = Callable[[Run], Command]


def ways(checkouts: dict[str, Path], tasks: int, wanted: Callable[[str], bool]) -> dict[str, Way]:
    """Return the wanted ways to copy by name. Say which of them cannot be installed, and leave them out."""
    found: dict[str, Way] = {}
    for guarantee, value in GUARANTEES.items():
        for name, checkout in checkouts.items():
            found[f"{name} {guarantee}"] = partial(_mirror, checkout, tasks, value)
    if wanted(BASE) and (python := available_peer("confluent-kafka")):
        found[BASE] = partial(_producer, python)
    if wanted(LOOP) and (python := available_peer("kafka-python and confluent-kafka")):
        found[LOOP] = partial(_loop, python)
    return {name: way for name, way in found.items() if wanted(name)}


def _mirror(checkout: Path, tasks: int, exactly_once: str, run: Run) -> Command:
    config = {
        "name": run.copy,
        "topics": run.topic.name,
        "target.bootstrap.servers": run.target.brokers[0],
        "target.topic.format": f"{run.copy}-${{topic}}",
        "tasks.max": str(tasks),
        "exactly.once": exactly_once,
    }
    arguments = (run.source.zk_hosts, run.source.brokers[0], run.topic.records, run.cell.value_bytes)
    return program(checkout, "kiel_mirror", *arguments, json.dumps(config))


def _producer(python: Path, run: Run) -> Command:
    records = run.topic.records // AT_ONCE * AT_ONCE
    arguments = (run.target.brokers[0], run.copy, run.cell.partitions, records, run.cell.value_bytes)
    return peer_program(python, "target_producer", *arguments)


def _loop(python: Path, run: Run) -> Command:
    source = (run.source.brokers[0], run.topic.name, run.cell.partitions)
    return peer_program(python, "plain_mirror", *source, run.target.brokers[0], run.copy, run.topic.records, LIMIT_S)


class Contest:
    """Measures ways to copy between two clusters. ``failures`` counts runs that failed."""

    def __init__(self, source: Cluster, target: Cluster, contenders: dict[str, Way], rounds: int) -> None:
        self.failures = 0
        self._source, self._target = source, target
        self._ways = contenders
        self._rounds = rounds
        self._admin = AdminClient({"bootstrap.servers": target.brokers[0]})

    def rows(self, cell: Cell, *, quick: bool) -> Iterator[dict[str, Any]]:
        """Yield the figures of a cell, way by way."""
        found: dict[str, list[Measurement | None]] = {name: [] for name in self._ways}
        with filled_topic(self._source, cell, quick=quick) as topic:
            for number in range(self._rounds):
                for index, name in enumerate(self._ways):
                    copy = f"copy-{cell.value_bytes}-{index}-{number}"
                    run = Run(self._source, self._target, topic, cell, copy)
                    found[name].append(self._measure(name, run))
        for name, measurements in found.items():
            if any(measurements):
                row = {"cell": cell.name, "way": name, **figures(measurements, found.get(BASE, []))}
                yield row | {"mb_per_s": round(row["records_per_s"] * cell.value_bytes / 1e6, 1)}

    def _measure(self, name: str, run: Run) -> Measurement | None:
        for topic in (run.copy, f"{run.copy}-{run.topic.name}"):
            self._admin.create_topics([NewTopic(topic, run.cell.partitions, 1)])[topic].result(30)
        try:
            servers = [server.pid for cluster in (run.source, run.target) for server in cluster.servers]
            return checked(measure(self._ways[name](run), servers), run.cell)
        except ClientFailure as failure:
            self.failures += 1
            click.echo(f"{run.cell.name}: {name} failed: {failure.message}", err=True)
        finally:
            for deletion in self._admin.delete_topics([run.copy, f"{run.copy}-{run.topic.name}"]).values():
                deletion.result(30)
        return None


def line(row: dict[str, Any]) -> str:
    """Return the line of a row, below ``HEADER``."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    rates = f"{row['records_per_s'] / 1000:>9,.1f} {row['mb_per_s']:>7,.1f}"
    costs = f"{row['client_us']:>6.2f} {row['broker_us']:>8.2f} {row['peak_mib']:>8.0f}"
    return f"{row['cell']:<20} {row['way']:<20} {rates} {costs} {ratio:>6}"


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few records, two rounds.")
@click.option("--cells", help="Measure these cells, with commas between their names.")
@click.option("--only", multiple=True, help="Measure only ways whose name contains this text. May be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="The number of rounds: 5 by default, 2 with --quick.")
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="The tasks of a mirror.")
@click.option("--target", "release", default="3.9.1", show_default=True, help="The release of the target.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose runs alternate with ours.",
)
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    quick: bool,
    cells: str | None,
    only: Sequence[str],
    rounds: int | None,
    tasks: int,
    release: str,
    against: Path | None,
    output: Path | None,
) -> None:
    names = cells.split(",") if cells else CHOSEN
    if unknown := sorted(set(names) - set(CELLS)):
        raise click.BadParameter(f"no cell has the name {unknown[0]!r}", param_hint="--cells")
    checkouts = {"ours": HERE} | ({"against": against} if against else {})
    contenders = ways(checkouts, tasks, lambda name: not only or any(text in name for text in only))
    rows = []
    with ExitStack() as stack:
        with running_on(SERVER_CORE):
            source = stack.enter_context(Cluster(broker_overrides={"delete.topic.enable": "true"}))
            target = stack.enter_context(Cluster(zookeeper=None, kafka=release))
        contest = Contest(source, target, contenders, rounds or (QUICK_ROUNDS if quick else ROUNDS))
        click.echo(HEADER)
        for name in names:
            for row in contest.rows(CELLS[name], quick=quick):
                click.echo(line(row))
                rows.append(row)
    if output:
        write_result(output, "mirror", rows)
    if contest.failures:
        raise click.ClickException(f"{contest.failures} runs failed, as said above")


if __name__ == "__main__":
    main()
