"""
Measure the time from produce to delivery, at several rates, beside confluent-kafka.

    python -m benchmarks.latency [--quick] [--only TEXT] [--rate N] [--rounds N] [--against FOLDER] [--json FILE]

confluent-kafka produces for both consumers, messages of 100 bytes to 16 partitions, each with the time at which it was
produced; it lingers for 1 ms. Each consumer is a process of its own with its defaults: ours reads by ``async for``,
confluent-kafka by ``poll()``. For the rows ``produce``, kiel-groups produces with its defaults, and this checkout's
consumer reads. ``p50`` and ``p99`` are milliseconds. ``delivered`` is what arrived in a second: if that is not the
rate, the machine cannot keep up, or is still catching up. ``busy`` is how much of its core the consumer used, or
servers and producer of theirs, whichever is more. Other work on the machine does not count there.

The consumer has the last core, and the servers have the first. The producer has a core of its own if there are three,
otherwise that of the servers. The figures are medians of five rounds, in which the consumers take turns, after a round
that warms up: at first a broker is slow, and what has piled up meanwhile delays the rest.

confluent-kafka has an environment of its own in the cache folder, created at the first run.
"""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.delivery.clients import HERE, peer_program, program
from benchmarks.delivery.cores import FEEDER_CORE, SERVER_CORE, on_core, running_on
from benchmarks.delivery.watched_process import Command, Measurement, measure
from benchmarks.peers import available_peer
from kiel_groups.embedded import Cluster

__all__ = ["main"]

RATES = (100, 5_000, 30_000)
TOPIC = "latency"
PARTITIONS = 16
VALUE_BYTES = 100
ROUNDS, QUICK_ROUNDS = 5, 1
DURATION_S, QUICK_DURATION_S = 10.0, 1.0
#: The cores of servers and producer.
OTHER_CORES = len({SERVER_CORE, FEEDER_CORE})

HEADER = f"{'messages/s':>10} {'client':<28} {'delivered':>9} {'p50 ms':>8} {'p99 ms':>8} {'client us':>9} {'busy':>6}"

#: Takes the rate, and returns the command of a producer; takes the name of a group, and returns that of a consumer.
Producer, Consumer = Callable[[int], Command], Callable[[str], Command]
Row = dict[str, Any]


@contextmanager
def producing(command: Command) -> Iterator[int]:
    """Run a producer during the block. Yield its process id."""
    with subprocess.Popen(
        command.arguments,
        env=command.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=on_core(FEEDER_CORE),
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            if not process.stdout.readline():
                raise click.ClickException("the producer failed; its traceback is above")
            yield process.pid
        finally:
            process.stdin.close()


def contenders(
    cluster: Cluster, python: Path, checkouts: Mapping[str, Path], duration_s: float
) -> dict[str, tuple[Producer, Consumer]]:
    """Return the pairs of producer and consumer by name."""
    broker, zookeeper = cluster.brokers[0], cluster.zk_hosts

    def ours(checkout: Path) -> Consumer:
        return lambda group: program(checkout, "kiel_latency", broker, zookeeper, TOPIC, group, duration_s)

    def fed_by(checkout: Path | None) -> Producer:
        where = (broker, TOPIC, PARTITIONS)
        if checkout is None:
            return lambda rate: peer_program(python, "timed_producer", *where, rate, VALUE_BYTES)
        return lambda rate: program(checkout, "kiel_timed_producer", *where, rate, VALUE_BYTES)

    theirs = peer_program(python, "confluent_latency", broker, TOPIC, PARTITIONS, duration_s)
    return {
        **{f"{name} async for": (fed_by(None), ours(checkout)) for name, checkout in checkouts.items()},
        **{f"{name} produce": (fed_by(checkout), ours(HERE)) for name, checkout in checkouts.items()},
        "confluent-kafka poll()": (fed_by(None), lambda group: theirs),
    }


def busy(found: Measurement) -> float:
    """Return the share of its core that the consumer used, or of theirs that the others used, whichever is more."""
    return max(found.client_s, found.servers_s / OTHER_CORES) / found.elapsed_s


def figures(rate: int, client: str, found: Sequence[Measurement]) -> Row:
    """Return the medians of a consumer's measurements, in which the producer is one of the servers."""
    return {
        "rate": rate,
        "client": client,
        "p50_ms": round(median(each.last["p50_ms"] for each in found), 2),
        "p99_ms": round(median(each.last["p99_ms"] for each in found), 2),
        "client_us": round(median(1e6 * each.client_s / each.records for each in found), 2),
        "delivered_per_s": round(median(each.records / each.elapsed_s for each in found)),
        "busy": round(median(map(busy, found)), 3),
    }


def line(row: Mapping[str, Any]) -> str:
    """Return the line of a row, below ``HEADER``."""
    times = f"{row['delivered_per_s']:>9,} {row['p50_ms']:>8.2f} {row['p99_ms']:>8.2f} {row['client_us']:>9.2f}"
    return f"{row['rate']:>10,} {row['client']:<28} {times} {row['busy']:>6.0%}"


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="One round of a second for each rate.")
@click.option("--only", multiple=True, help="Measure only clients whose name contains this text. May be repeated.")
@click.option("--rate", "rates", type=click.IntRange(1), multiple=True, help="Messages a second. May be repeated.")
@click.option("--rounds", type=click.IntRange(1), help="The number of rounds: 5 by default, 1 with --quick.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose runs alternate with ours.",
)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(
    quick: bool,
    only: Sequence[str],
    rates: Sequence[int],
    rounds: int | None,
    against: Path | None,
    target: Path | None,
) -> None:
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    duration_s = QUICK_DURATION_S if quick else DURATION_S
    checkouts = {"ours": HERE} | ({"against": against} if against else {})
    python = available_peer("confluent-kafka")
    if python is None:
        raise click.ClickException("there is no producer without confluent-kafka")
    rows = []
    with ExitStack() as stack:
        with running_on(SERVER_CORE):
            cluster = stack.enter_context(Cluster())
        asyncio.run(cluster.create_topic(TOPIC, PARTITIONS))
        click.echo(HEADER)
        pairs = contenders(cluster, python, checkouts, duration_s)
        contest = {name: pair for name, pair in pairs.items() if not only or any(text in name for text in only)}
        servers = [server.pid for server in cluster.servers]
        for rate in rates or RATES:
            found: dict[str, list[Measurement]] = {name: [] for name in contest}
            for number in range(rounds + 1):
                for name, (producer, consumer) in contest.items():
                    with producing(producer(rate)) as pid:
                        measured = measure(consumer(f"{name.replace(' ', '-')}-{rate}-{number}"), [pid, *servers])
                    if number:
                        found[name].append(measured)
            for name, measurements in found.items():
                rows.append(figures(rate, name, measurements))
                click.echo(line(rows[-1]))
    if target:
        about = {
            "benchmark": "latency",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "other_cores": OTHER_CORES,
        }
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
