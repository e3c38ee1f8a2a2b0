"""
Measure startup times: imports, the command line, and a new member's first record.

    python -m benchmarks.startup [--quick] [--json FILE]

Every figure is the median of whole processes, from their start to their end, in milliseconds. ``python`` is a process
that does nothing. Its time is part of all other figures. A first record counts from the start of the process of a
member that is alone in a new group, on a topic with one record, to its delivery.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click

from kiel_groups import Producer
from kiel_groups.embedded import Cluster

FIRST_RECORD = """
import asyncio, json, sys
from kiel_groups import GroupedConsumer

async def main(broker, zookeeper, group, settings):
    async with GroupedConsumer([broker], group, [zookeeper], **settings) as consumer:
        await consumer.subscribe(["topic"])
        async for record in consumer:
            print(record.offset, flush=True)
            return

asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
"""

COMMANDS = {
    "python": ["-c", "pass"],
    "import kiel_groups": ["-c", "import kiel_groups"],
    "import GroupedConsumer": ["-c", "from kiel_groups import GroupedConsumer"],
    "kiel-groups --version": ["-m", "kiel_groups", "--version"],
    "kiel-groups --help": ["-m", "kiel_groups", "--help"],
}

SETTINGS = {
    "first record, defaults": {},
    "first record, floor": {"debounce_quiet_ms": 0, "debounce_initial_delay_ms": 0},
}


def run_ms(arguments: Sequence[str]) -> float:
    """Return the time from the start of a process to its end, in milliseconds."""
    started_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return 1000 * (time.perf_counter() - started_s)


def first_record_ms(arguments: Sequence[str]) -> float:
    """Return the time from the start of a process to the first line that it prints, in milliseconds."""
    started_s = time.perf_counter()
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        if not process.stdout.readline():
            raise click.ClickException("a member ended without a record; its traceback is above")
        return 1000 * (time.perf_counter() - started_s)


async def _produce_one(cluster: Cluster) -> None:
    async with Producer(cluster.brokers) as producer:
        await producer.produce("topic", b"value")


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the figures by name, one for each round. An additional first round warms up."""
    import asyncio

    found: dict[str, list[float]] = {name: [] for name in (*COMMANDS, *SETTINGS)}
    with Cluster() as cluster:
        asyncio.run(cluster.create_topic("topic", 1))
        asyncio.run(_produce_one(cluster))
        for number in range(rounds + 1):
            for name, command in COMMANDS.items():
                found[name].append(run_ms(command))
            for index, (name, settings) in enumerate(SETTINGS.items()):
                group = f"group-{number}-{index}"
                arguments = [cluster.brokers[0], cluster.zk_hosts, group, json.dumps(settings)]
                found[name].append(first_record_ms(["-c", FIRST_RECORD, *arguments]))
    return {name: figures[1:] for name, figures in found.items()}


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="3 rounds instead of 15.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
def main(quick: bool, target: Path | None) -> None:
    found = measure(3 if quick else 15)
    rows = {name: round(median(figures)) for name, figures in found.items()}
    for name, figure in rows.items():
        click.echo(f"{name:<28} {figure:>6} ms")
    if target:
        about = {"benchmark": "startup", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "ms": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
