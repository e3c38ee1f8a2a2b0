"""
Measure how fast consumers deliver records, beside other clients for the same brokers.

    python -m benchmarks.consume [--quick] [--list] [--cells NAME,NAME] [--only TEXT] [--rounds N] [--against FOLDER]
        [--json FILE]

A cell is a topic: ``100B-snappy-16p-500`` has values of 100 bytes in 16 partitions, in snappy sets of 500 messages.
``large`` sets have 900 kB or 5,000 messages, ``16k`` sets 16 KiB, both before compression. By default sixteen cells are
measured with kiel-groups and confluent-kafka, and six of these with all clients. Named cells have all clients.

A client is a process of its own on the last core; the servers have the first. It is measured from its first delivery to
its last, and touches each value. ``client us`` and ``broker us`` are microseconds of processor time for each record,
``broker`` with ZooKeeper. ``peak MiB`` is the client's memory. ``ratio`` is the rate divided by that of
confluent-kafka's ``consume()`` in the same round. A client that is slow is stopped after some seconds. The figures are
medians of five rounds, in which the clients take turns.

``crc`` has librdkafka check each message; kiel-groups and Java always do. Java's program reports ten times, and is
measured from its first report to its last. ``--against`` names another checkout of this project, whose runs alternate
with the runs of this checkout, on the same servers.

Each peer has an environment of its own in the cache folder, created at the first run. A peer that cannot be installed
is left out.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.delivery.cells import CELLS, CHOSEN, FULL, QUICK, Cell
from benchmarks.delivery.clients import CONFLUENT, HERE, Client, Run, kiel_clients, peers
from benchmarks.delivery.cores import CLIENT_CORE, SERVER_CORE, running_on
from benchmarks.delivery.filled_topics import FilledTopic, filled_topic
from benchmarks.delivery.watched_process import ClientFailure, LeftOut, Measurement, measure
from kiel_groups.embedded import Cluster

__all__ = ["main"]

ROUNDS, QUICK_ROUNDS = 5, 2
#: A client that is slower is measured over the records that it delivers in this time.
LIMIT_S, QUICK_LIMIT_S = 6.0, 2.0

HEADER = f"{'cell':<22} {'client':<29} {'k msg/s':>9} {'client us':>9} {'broker us':>9} {'peak MiB':>8} {'ratio':>6}"

Row = dict[str, Any]


class Contest:
    """Measures clients on topics of one cluster. ``failures`` counts runs that failed."""

    def __init__(self, cluster: Cluster, clients: Sequence[Client], rounds: int, *, quick: bool) -> None:
        self.failures = 0
        self._cluster = cluster
        self._servers = [server.pid for server in cluster.servers]
        self._clients = clients
        self._rounds = rounds
        self._quick = quick
        self._absent: set[str] = set()

    def rows(self, cell: Cell, *, everything: bool) -> Iterator[Row]:
        """Yield the figures of a cell, client by client."""
        with filled_topic(self._cluster, cell, quick=self._quick) as topic:
            click.echo(f"{cell.name}: {topic.records:,} records; a byte of values is {topic.log_share:.2f} in the log")
            clients = [each for each in self._clients if everything or each.everywhere]
            found: dict[str, list[Measurement | None]] = {each.name: [] for each in clients}
            for number in range(self._rounds):
                for client in clients:
                    found[client.name].append(self._measure(client, cell, topic, number))
            base = found.get(CONFLUENT, [])
            for name, measurements in found.items():
                if any(measurements):
                    yield {"cell": cell.name, "client": name, "records": topic.records, **figures(measurements, base)}

    def _measure(self, client: Client, cell: Cell, topic: FilledTopic, number: int) -> Measurement | None:
        """Run a client once. Report a failure, and return None."""
        if client.name in self._absent:
            return None
        group = f"{client.name}-{number}".replace(" ", "-").replace("()", "")
        limit_s = QUICK_LIMIT_S if self._quick else LIMIT_S
        where = (self._cluster.brokers[0], self._cluster.zk_hosts, topic.name, cell.partitions)
        try:
            found = measure(client.command(Run(*where, group, topic.records, limit_s)), self._servers)
            return checked(found, cell)
        except LeftOut:
            self._absent.add(client.name)
            click.echo(f"without {client.name}, which this version of kiel-groups does not have", err=True)
        except ClientFailure as failure:
            self.failures += 1
            click.echo(f"{cell.name}: {client.name} failed: {failure.message}", err=True)
        return None


def checked(found: Measurement, cell: Cell) -> Measurement:
    """Return a measurement whose values have the size that was written; Java prints it rounded."""
    written = found.records * cell.value_bytes
    if not found.records or abs(found.value_bytes - written) > written / 1_000:
        raise ClientFailure(f"{found.records:,} values had {found.value_bytes:,} bytes; {written:,} were written")
    return found


def rate(found: Measurement) -> float:
    """Return records per second."""
    return found.records / found.elapsed_s


def figures(found: Sequence[Measurement | None], base: Sequence[Measurement | None]) -> Row:
    """
    Return the medians of a client's measurements, and the median ratio to the rates of the same rounds.

    A run that failed is None. ``base`` is empty if that client was not measured.
    """

    def middle(figure: Callable[[Measurement], float], digits: int) -> float:
        return round(median(figure(each) for each in found if each), digits)

    pairs = zip(found, base, strict=True) if base else ()
    ratios = [rate(each) / rate(other) for each, other in pairs if each and other]
    return {
        "records_per_s": middle(rate, 0),
        "client_us": middle(lambda each: 1e6 * each.client_s / each.records, 3),
        "broker_us": middle(lambda each: 1e6 * each.servers_s / each.records, 3),
        "peak_mib": middle(lambda each: each.peak_mib, 1),
        "ratio": round(median(ratios), 3) if ratios else None,
    }


def line(row: Mapping[str, Any]) -> str:
    """Return the line of a row, below ``HEADER``."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    costs = f"{row['records_per_s'] / 1000:>9,.1f} {row['client_us']:>9.2f} {row['broker_us']:>9.2f}"
    return f"{row['cell']:<22} {row['client']:<29} {costs} {row['peak_mib']:>8.0f} {ratio:>6}"


def write_result(target: Path, benchmark: str, rows: Sequence[Row]) -> None:
    """Write the rows to a JSON file, with the date and the machine."""
    about = {"benchmark": benchmark, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    cores = {"server_core": SERVER_CORE, "client_core": CLIENT_CORE}
    target.write_text(json.dumps({**about, **machine, **cores, "runs": rows}, indent=1) + "\n", encoding="utf-8")


def chosen_cells(names: str | None, *, quick: bool) -> dict[str, bool]:
    """Return the names of the cells to measure, and whether all clients are measured there."""
    if names:
        asked = names.split(",")
        unknown = sorted(set(asked) - set(CELLS))
        if unknown:
            raise click.BadParameter(f"no cell has the name {unknown[0]!r}; --list shows all", param_hint="--cells")
        return dict.fromkeys(asked, True)
    return {name: quick or name in FULL for name in (QUICK if quick else CHOSEN)}


def show_cells() -> None:
    for name in CELLS:
        click.echo(f"{name:<24}{'all clients' if name in FULL else 'default' if name in CHOSEN else ''}".rstrip())


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="One cell of 100,000 records, two rounds.")
@click.option("--list", "listed", is_flag=True, help="Show the names of all cells, and which ones are measured.")
@click.option("--cells", help="Measure these cells, with commas between their names, with all clients.")
@click.option("--only", multiple=True, help="Measure only clients whose name contains this text. May be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), help="The number of rounds: 5 by default, 2 with --quick.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose runs alternate with ours.",
)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    quick: bool,
    listed: bool,
    cells: str | None,
    only: Sequence[str],
    rounds: int | None,
    against: Path | None,
    target: Path | None,
) -> None:
    if listed:
        show_cells()
        return
    names = chosen_cells(cells, quick=quick)

    def wanted(name: str) -> bool:
        return not only or any(text in name for text in only)

    checkouts = {"ours": HERE} | ({"against": against} if against else {})
    clients = [each for each in kiel_clients(checkouts) if wanted(each.name)] + list(peers(wanted))
    if not clients:
        raise click.BadParameter(f"no client has a name with {' or '.join(only)}", param_hint="--only")
    rows = []
    with ExitStack() as stack:
        with running_on(SERVER_CORE):
            cluster = stack.enter_context(Cluster())
        contest = Contest(cluster, clients, rounds or (QUICK_ROUNDS if quick else ROUNDS), quick=quick)
        click.echo(HEADER)
        for name, everything in names.items():
            for row in contest.rows(CELLS[name], everything=everything):
                click.echo(line(row))
                rows.append(row)
    if target:
        write_result(target, "consume", rows)
    if contest.failures:
        raise click.ClickException(f"{contest.failures} runs failed, as said above")


if __name__ == "__main__":
    main()
