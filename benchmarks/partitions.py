"""
Measure what many partitions cost one consumer.

    python -m benchmarks.partitions [--quick] [--brokers ADDRESS --topics N] [--json FILE]

A ``SingleConsumer`` with its defaults reads 10,000 partitions, 100 of each of 100 topics, of one broker. ``start`` is
the time from ``subscribe`` to the first record. Then nothing is produced (``idle``); then one record at a time, each to
another partition (``one``); then 1,000 records a second, spread over all (``spread``). ``p50`` and ``p99`` are
milliseconds from produce to delivery. ``client`` and ``broker`` are the shares of a core that they used; the producer
is a process of its own. ``memory`` is the largest memory of the consumer's process.

A broker of 0.8 needs five minutes to create 10,000 partitions on two cores, and as many open files.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.cpu import cpu_time_s
from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics

__all__ = ["main"]

TOPICS, QUICK_TOPICS = 100, 10
PARTITIONS_EACH = 100
RATE = 1_000
ONES, QUICK_ONES = 100, 20
DURATION_S, QUICK_DURATION_S = 10.0, 2.0
BROKER_SETTINGS = {"log.index.size.max.bytes": 4_096, "num.io.threads": 4, "zookeeper.session.timeout.ms": 30_000}

HEADER = f"{'':<8} {'seconds':>8} {'records':>8} {'p50 ms':>8} {'p99 ms':>8} {'client':>7} {'broker':>7}"

Row = dict[str, Any]


async def feed(brokers: str, topics: int, rate: float, count: int) -> None:
    """Produce the time to random partitions, ``rate`` times a second."""
    async with Producer(brokers, linger_ms=1) as producer:
        started_s = time.time()
        for number in range(count):
            await asyncio.sleep(max(0.0, started_s + number / rate - time.time()))
            topic, partition = f"t{random.randrange(topics)}", random.randrange(PARTITIONS_EACH)
            producer.produce(topic, repr(time.time()).encode(), partition=partition)


def run_feed(*arguments: Any) -> None:
    """Produce, in a process of its own."""
    asyncio.run(feed(*arguments))


@dataclass
class Phase:
    """Measures a phase: its time, the delays of its records, and the cores that client and broker used."""

    name: str
    broker_pid: int
    delays_s: list[float] = field(default_factory=list)
    row: Row = field(default_factory=dict)

    def __enter__(self) -> Phase:
        self._started_s, self._used_s = time.monotonic(), self._cpu_s()
        return self

    def _cpu_s(self) -> Sequence[float]:
        return time.process_time(), cpu_time_s(self.broker_pid) if self.broker_pid else 0.0

    def __exit__(self, *_: object) -> None:
        elapsed_s, delays_s = time.monotonic() - self._started_s, sorted(self.delays_s)
        client, broker = (
            (after - before) / elapsed_s for before, after in zip(self._used_s, self._cpu_s(), strict=True)
        )
        self.row = {"phase": self.name, "seconds": round(elapsed_s, 2), "records": len(delays_s)}
        if delays_s:
            self.row["p50_ms"] = round(1_000 * delays_s[len(delays_s) // 2], 1)
            self.row["p99_ms"] = round(1_000 * delays_s[len(delays_s) * 99 // 100], 1)
        self.row |= {"client_cores": round(client, 3), "broker_cores": round(broker, 3)}

    def note(self, values: Sequence[Any]) -> None:
        """Note records that were delivered just now."""
        now_s = time.time()
        self.delays_s += [now_s - float(value) for value in values]


async def read(consumer: SingleConsumer, phase: Phase, count: int) -> None:
    """Read ``count`` records."""
    async with asyncio.timeout(300):
        while len(phase.delays_s) < count:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                phase.note([record.value for record in records])


async def run(brokers: str, topics: int, broker_pid: int, ones: int, duration_s: float) -> list[Row]:
    """Measure all phases, and return their rows."""
    spawn = multiprocessing.get_context("spawn")
    rows: list[Row] = []

    async def measured(phase: Phase, rate: float, count: int) -> None:
        feeder = spawn.Process(target=run_feed, args=(brokers, topics, rate, count))
        feeder.start()
        with phase:
            await read(consumer, phase, count)
        await asyncio.to_thread(feeder.join)
        rows.append(phase.row)

    async with SingleConsumer(brokers) as consumer:
        with Phase("start", broker_pid) as start:
            await consumer.subscribe([f"t{number}" for number in range(topics)], start=SingleConsumer.END)
            await feed(brokers, topics, 1, 1)
            await read(consumer, start, 1)
        rows.append(start.row)
        with Phase("idle", broker_pid) as idle:
            await asyncio.sleep(duration_s)
        rows.append(idle.row)
        await measured(Phase("one", broker_pid), 10, ones)
        await measured(Phase("spread", broker_pid), RATE, round(RATE * duration_s))
    return rows


def line(row: Row) -> str:
    """Return the line of a row, below ``HEADER``."""
    delays = f"{row.get('p50_ms', ''):>8} {row.get('p99_ms', ''):>8}"
    cores = f"{row['client_cores']:>7.1%} {row['broker_cores']:>7.1%}"
    return f"{row['phase']:<8} {row['seconds']:>8} {row['records']:>8} {delays} {cores}"


def peak_mib() -> int:
    """Return the largest memory of this process so far, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(text.split()[1]) for text in status.splitlines() if text.startswith("VmHWM")) >> 10


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="1,000 partitions, and two seconds for each phase.")
@click.option("--brokers", help="A broker that has the topics t0, t1, ... already, instead of an embedded one.")
@click.option("--topics", type=int, help="How many topics of 100 partitions; by default 100.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(quick: bool, brokers: str | None, topics: int | None, target: Path | None) -> None:
    topics = topics or (QUICK_TOPICS if quick else TOPICS)
    ones, duration_s = (QUICK_ONES, QUICK_DURATION_S) if quick else (ONES, DURATION_S)
    if brokers:
        rows = asyncio.run(run(brokers, topics, 0, ones, duration_s))
    else:
        with Cluster(broker_overrides=BROKER_SETTINGS, max_session_timeout_ms=60_000) as cluster:
            for number in range(topics):
                ZooKeeperTopics(cluster.zk_hosts).create(f"t{number}", PARTITIONS_EACH, timeout_s=300)
            broker = cluster.kafka[0]
            rows = asyncio.run(run(broker.address, topics, broker.pid or 0, ones, duration_s))
    click.echo(f"{topics * PARTITIONS_EACH:,} partitions, memory {peak_mib()} MiB\n{HEADER}")
    for row in rows:
        click.echo(line(row))
    if target:
        about = {"benchmark": "partitions", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        found = {"partitions": topics * PARTITIONS_EACH, "memory_mib": peak_mib(), "phases": rows}
        target.write_text(json.dumps({**about, **machine, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
