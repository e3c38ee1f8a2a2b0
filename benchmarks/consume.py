"""
Measure the records per second that one grouped consumer delivers, by ``async for`` and by ``consume()``.

    python -m benchmarks.consume [--quick] [--against FOLDER] [--json FILE]

One topic of four partitions has values of 100 bytes. Each run is a separate process in a group of its own, pinned to
the last core, so that on two cores the servers have the other core. A run is measured from its first record to its last
record. ``--against`` names another checkout of this project, whose runs alternate with the runs of this checkout, on
the same servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click

from kiel_groups import Producer
from kiel_groups.embedded import Cluster

__all__ = ["main"]

HERE = Path(__file__).parents[1]
PARTITIONS = 4
VALUE = b"x" * 100
BATCH = 10_000
LIMIT_S = 300

#: A program that prints records per second, and microseconds of CPU time per record, both after the first delivery.
READER = """
import asyncio, sys, time
from kiel_groups import GroupedConsumer

def clocks():
    return time.perf_counter(), time.process_time()

async def by_loop(consumer, count):
    await consumer.subscribe(["topic"])
    began = None
    async for record in consumer:
        if began is None:
            began = clocks()
        count -= 1
        if not count:
            return began

async def by_consume(consumer, count):
    began = None
    while count > 0:
        values = await consumer.consume("topic")
        if values and began is None:
            began = clocks()
        count -= len(values)
    return began

async def main(way, broker, zookeeper, group, count):
    settings = {"debounce_quiet_ms": 0, "debounce_initial_delay_ms": 0}
    async with GroupedConsumer([broker], group, [zookeeper], lambda value: value, **settings) as consumer:
        began_s, began_cpu_s = await {"async for": by_loop, "consume()": by_consume}[way](consumer, count)
        ended_s, ended_cpu_s = clocks()
        print(count / (ended_s - began_s), 1e6 * (ended_cpu_s - began_cpu_s) / count, flush=True)

asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
"""

WAYS = ("async for", "consume()")


async def fill(cluster: Cluster, count: int) -> None:
    """Produce ``count`` records, evenly distributed over the partitions."""
    await cluster.create_topic("topic", PARTITIONS)
    async with Producer(cluster.brokers, batch_size=500, linger_ms=50, max_buffered_bytes=256 << 20) as producer:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            await asyncio.gather(*(producer.produce("topic", VALUE, partition=each % PARTITIONS) for each in numbers))


def run(checkout: Path, way: str, cluster: Cluster, group: str, count: int) -> tuple[float, float]:
    """Read the topic once with the code of a checkout. Return records per second, and CPU microseconds per record."""
    command = [sys.executable, "-c", READER, way, cluster.brokers[0], cluster.zk_hosts, group, str(count)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    cores = sorted(os.sched_getaffinity(0))
    done = subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[-1:]),
    )
    if done.returncode:
        raise click.ClickException(f"a reader with the code of {checkout} failed:\n{done.stderr}")
    rate, cpu_us = map(float, done.stdout.split())
    return rate, cpu_us


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="100,000 records and 2 runs instead of 1,000,000 and 5.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose runs alternate with ours.",
)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(quick: bool, against: Path | None, target: Path | None) -> None:
    count, rounds = (100_000, 2) if quick else (1_000_000, 5)
    checkouts = {"ours": HERE} | ({"against": against} if against else {})
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with Cluster() as cluster:
        asyncio.run(fill(cluster, count))
        for number in range(rounds):
            for way in WAYS:
                for name, checkout in checkouts.items():
                    group = f"{name}-{WAYS.index(way)}-{number}"
                    found.setdefault((way, name), []).append(run(checkout, way, cluster, group, count))
    rows = []
    for (way, name), figures in found.items():
        rate, cpu_us = (median(values) for values in zip(*figures, strict=True))
        rows.append({"way": way, "checkout": name, "records_per_s": round(rate), "cpu_us": round(cpu_us, 2)})
        click.echo(f"{way:<10} {name:<8} {rate / 1000:>8,.0f} thousand records/s {cpu_us:>7.2f} us of CPU a record")
    if target:
        about = {"benchmark": "consume", "date": datetime.now(UTC).isoformat(timespec="seconds"), "records": count}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
