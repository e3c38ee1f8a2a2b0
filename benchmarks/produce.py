"""
Measure how fast producers send records, beside other clients for the same brokers.

    python -m benchmarks.produce [--quick] [--cells NAME,NAME] [--all] [--only TEXT] [--rounds N] [--against FOLDER]
        [--json FILE]

A cell is a topic: ``100B-snappy-16p`` has values of 100 bytes in 16 partitions, sent in snappy. By default the cells of
16 partitions without compression are measured. ``--all`` measures all 24 cells, without kafka-python and Java, in three
rounds with half of the records, which takes forty minutes. It ends with a table of all cells.

A client is a process of its own on the last core; the servers have the first. It is measured from its first stored
record to the outcome of its last, and checks the outcome of each. All clients have their defaults, but wait for the
leader only. ``client us`` and ``broker us`` are microseconds of processor time for each record, ``broker`` with
ZooKeeper. ``ratio`` is the rate divided by that of confluent-kafka with callbacks in the same round. The figures are
medians of five rounds, in which the clients take turns, each with a topic of its own.

``broker alone`` is a socket that sends requests which were encoded before: no client is faster than that, and its
processor time is that of the kernel.

Java's program sends one value again and again, which compresses to nothing. Its time includes its first request, its
processor time includes its start. Each peer has an environment of its own in the cache folder.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.consume import figures, write_result
from benchmarks.cpu import cpu_time_s
from benchmarks.delivery.clients import HERE, peer_program, program
from benchmarks.delivery.cores import CLIENT_CORE, SERVER_CORE, on_core, running_on
from benchmarks.delivery.watched_process import ClientFailure, LeftOut, Measurement, measure
from benchmarks.members.produced import AT_ONCE
from benchmarks.members.ready_requests import partitions_of
from benchmarks.peers import available_peer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import CLASS_PATHS
from kiel_groups.errors import KielGroupsError

__all__ = ["main"]

ROUNDS, MATRIX_ROUNDS, QUICK_ROUNDS = 5, 3, 2
OUR_WAYS = ("produce", "produce_many", "sync produce", "sync produce_many")
BASE = "confluent-kafka"
LIMIT = "broker alone"
#: The clients that are left out with ``--all``: these are an order of magnitude slower, or have one value only.
_NOT_EVERYWHERE = ("kafka-python", "Java")
#: By the bytes of a value: as many as make runs of 1 to 5 s with most of the clients.
_RECORDS = {100: 1_000_000, 1024: 300_000}
_MATRIX_RECORDS = {100: 500_000, 1024: 150_000}
_QUICK_RECORDS = {100: 50_000, 1024: 20_000}
#: kafka-python sends fewer.
_SLOWER = 5

HEADER = f"{'cell':<16} {'client':<24} {'k msg/s':>9} {'client us':>9} {'broker us':>9} {'peak MiB':>8} {'ratio':>6}"


@dataclass(frozen=True, slots=True)
class Cell:
    """What is sent: values of one size, in one codec, to one number of partitions."""

    value_bytes: int
    codec: str
    partitions: int

    @property
    def name(self) -> str:
        return f"{'1K' if self.value_bytes == 1024 else f'{self.value_bytes}B'}-{self.codec}-{self.partitions}p"


CELLS = {
    cell.name: cell
    for cell in itertools.starmap(Cell, itertools.product(_RECORDS, ("none", "snappy", "gzip", "lz4"), (1, 16, 200)))
}
CHOSEN = [name for name, cell in CELLS.items() if cell.codec == "none" and cell.partitions == 16]


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement: the broker, the topic, what is sent, and the process ids of the servers."""

    broker: str
    topic: str
    cell: Cell
    records: int
    servers: Sequence[int]

    @property
    def arguments(self) -> tuple[object, ...]:
        return (self.broker, self.topic, self.records, self.cell.value_bytes, self.cell.codec)


Client = Callable[[Run], Measurement]


def clients(checkouts: dict[str, Path], wanted: Callable[[str], bool]) -> dict[str, Client]:
    """Return the wanted clients by name. Say which of them cannot be installed, and leave them out."""
    found: dict[str, Client] = {}
    for way, (name, checkout) in itertools.product(OUR_WAYS, checkouts.items()):
        found[f"{name} {way}"] = partial(_kiel, checkout, way)
    for peer, module in (("confluent-kafka", "confluent_producer"), ("kafka-python", "kafka_python_producer")):
        if wanted(peer) and (python := available_peer(peer)):
            found[peer] = partial(_peer, python, module)
    found["Java"] = _java
    found[LIMIT] = _broker_alone
    return {name: client for name, client in found.items() if wanted(name)}


def _kiel(checkout: Path, way: str, run: Run) -> Measurement:
    return measure(program(checkout, "kiel_producer", way, *run.arguments), run.servers)


def _broker_alone(run: Run) -> Measurement:
    return measure(program(HERE, "ready_requests", *run.arguments), run.servers)


def _peer(python: Path, module: str, run: Run) -> Measurement:
    return measure(peer_program(python, module, *run.arguments), run.servers)


def _java(run: Run) -> Measurement:
    """Run the program of Kafka 0.8.2, which prints its rate, and says nothing before its first record."""
    settings = [f"bootstrap.servers={run.broker}", "acks=1", f"compression.type={run.cell.codec}"]
    start = ["java", "-cp", java_class_path(CLASS_PATHS["kafka-0.8.2.2"])]
    main_class = "org.apache.kafka.clients.tools.ProducerPerformance"
    arguments = [run.topic, str(run.records), str(run.cell.value_bytes), "-1", *settings]
    before_s = sum(map(cpu_time_s, run.servers))
    with subprocess.Popen(
        [*start, main_class, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=on_core(CLIENT_CORE),
    ) as process:
        assert process.stdout
        last = process.stdout.read().splitlines()[-1:]
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    total = re.match(r"(\d+) records sent, ([\d.]+) records/sec", "".join(last))
    if process.returncode or total is None or int(total[1]) != run.records:
        raise ClientFailure(f"Java ended with {process.returncode}: {last}")
    elapsed_s, client_s = run.records / float(total[2]), used.ru_utime + used.ru_stime
    servers_s = sum(map(cpu_time_s, run.servers)) - before_s
    size = run.records * run.cell.value_bytes
    return Measurement(run.records, size, elapsed_s, client_s, servers_s, used.ru_maxrss / 1024)


class Contest:
    """Measures clients on one cluster. ``failures`` counts runs that failed."""

    def __init__(self, cluster: Cluster, contenders: dict[str, Client], rounds: int, records: dict[int, int]) -> None:
        self.failures = 0
        self._cluster = cluster
        self._clients = contenders
        self._rounds = rounds
        self._records = records
        self._absent: set[str] = set()

    def rows(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """Yield the figures of a cell, client by client."""
        found: dict[str, list[Measurement | None]] = {name: [] for name in self._clients}
        for number in range(self._rounds):
            for name in self._clients:
                found[name].append(self._measure(name, cell, number))
        for name, measurements in found.items():
            if any(measurements):
                yield {"cell": cell.name, "client": name, **figures(measurements, found.get(BASE, []))}

    def _measure(self, name: str, cell: Cell, number: int) -> Measurement | None:
        if name in self._absent:
            return None
        topic = re.sub(r"\W+", "-", f"{cell.name}-{name}-{number}")
        slower = _SLOWER if name == "kafka-python" else 1
        records = self._records[cell.value_bytes] // slower // AT_ONCE * AT_ONCE
        try:
            asyncio.run(self._cluster.create_topic(topic, cell.partitions))
            # Brokers of 0.8 learn of 200 partitions late, and not all clients wait for a topic.
            asyncio.run(partitions_of(self._cluster.brokers[0], topic))
            servers = [server.pid for server in self._cluster.servers]
            return self._clients[name](Run(self._cluster.brokers[0], topic, cell, records, servers))
        except LeftOut:
            self._absent.add(name)
            click.echo(f"without {name}, which this version of kiel-groups does not have", err=True)
        except (ClientFailure, KielGroupsError) as failure:
            # A broker of 0.8 that deletes hundreds of partitions may create no others for half a minute.
            self.failures += 1
            click.echo(f"{cell.name}: {name} failed: {failure}", err=True)
        finally:
            asyncio.run(self._cluster.delete_topic(topic))
        return None


def line(row: dict[str, Any]) -> str:
    """Return the line of a row, below ``HEADER``."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    costs = f"{row['records_per_s'] / 1000:>9,.1f} {row['client_us']:>9.2f} {row['broker_us']:>9.2f}"
    return f"{row['cell']:<16} {row['client']:<24} {costs} {row['peak_mib']:>8.0f} {ratio:>6}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table with a line for each cell: rates, and in brackets µs of the client; then memory."""
    names = list(dict.fromkeys(row["client"] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        figure = f"{row['records_per_s'] / 1000:,.0f} ({row['client_us']:.2f})"
        cells.setdefault(row["cell"], {})[row["client"]] = figure
    peaks = {name: max(row["peak_mib"] for row in rows if row["client"] == name) for name in names}
    lines = [["cell", *names]]
    lines += [[cell, *(found.get(name, "-") for name in names)] for cell, found in cells.items()]
    lines.append(["peak MiB", *(f"{peaks[name]:.0f}" for name in names)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(map(str.ljust, each, widths)).rstrip() for each in lines]
    rule = "  ".join("=" * width for width in widths)
    return "\n".join([rule, texts[0], rule, *texts[1:], rule])


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few records, two rounds.")
@click.option("--all", "everything", is_flag=True, help="Measure all cells, with fewer records.")
@click.option("--cells", help="Measure these cells, with commas between their names.")
@click.option("--only", multiple=True, help="Measure only clients whose name contains this text. May be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="How many rounds: 5, 3 with --all, 2 with --quick.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose runs alternate with ours.",
)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    quick: bool,
    everything: bool,
    cells: str | None,
    only: Sequence[str],
    rounds: int | None,
    against: Path | None,
    target: Path | None,
) -> None:
    names = cells.split(",") if cells else list(CELLS) if everything else CHOSEN
    if unknown := sorted(set(names) - set(CELLS)):
        raise click.BadParameter(
            f"no cell has the name {unknown[0]!r}; there is {', '.join(CELLS)}", param_hint="--cells"
        )
    checkouts = {"ours": HERE} | ({"against": against} if against else {})

    def wanted(name: str) -> bool:
        return any(text in name for text in only) if only else not (everything and name in _NOT_EVERYWHERE)

    contenders = clients(checkouts, wanted)
    records, usual = (_MATRIX_RECORDS, MATRIX_ROUNDS) if everything else (_RECORDS, ROUNDS)
    if quick:
        records, usual = _QUICK_RECORDS, QUICK_ROUNDS
    rows = []
    with ExitStack() as stack:
        with running_on(SERVER_CORE):
            cluster = stack.enter_context(Cluster(broker_overrides={"delete.topic.enable": "true"}))
        contest = Contest(cluster, contenders, rounds or usual, records)
        click.echo(HEADER)
        for name in names:
            for row in contest.rows(CELLS[name]):
                click.echo(line(row))
                rows.append(row)
    if len(names) > len(CHOSEN):
        click.echo(table(rows))
    if target:
        write_result(target, "produce", rows)
    if contest.failures:
        raise click.ClickException(f"{contest.failures} runs failed, as said above")


if __name__ == "__main__":
    main()
