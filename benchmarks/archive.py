"""
Measure how fast an archive writes topics into Parquet files.

    python -m benchmarks.archive [--records 2000000] [--partitions 4] [--value-bytes 100] [--rounds 3] [--json FILE]

The benchmark runs a real broker. Each round runs ``kiel-groups spark archive`` as a separate process, on all cores,
with its defaults, into a new folder. ``archive_s`` is the time in the command's summary: from the start of the query to
its end, including Spark's first steps; ``whole_s`` also includes the start and the end of Java. After every round, each
record must be in the files exactly once.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow.dataset
import pyspark

from benchmarks.spark_read import Feeder, Topic
from kiel_groups.embedded import Cluster

REPOSITORY = Path(__file__).parents[1]


def archive(cluster: Cluster, topic: Topic, folder: Path) -> dict[str, Any]:
    """Run the command once, and return its figures."""
    command = [sys.executable, "-m", "kiel_groups", "spark", "archive", topic.name, "--json", "--quiet"]
    command += ["--brokers", ",".join(cluster.brokers), "--output", str(folder)]
    began_s = time.monotonic()
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    whole_s = time.monotonic() - began_s
    if done.returncode:
        raise click.ClickException("the archive failed; its output is above")
    summary = json.loads(done.stdout)
    check(topic, folder)
    return {
        "records/s": round(summary["records"] / summary["took_s"]),
        "archive_s": round(summary["took_s"], 1),
        "whole_s": round(whole_s, 1),
        "files": summary["files"],
        "bytes": summary["bytes"],
    }


def check(topic: Topic, folder: Path) -> None:
    """Check that each record is in the files exactly once."""
    dataset = pyarrow.dataset.dataset(folder, partitioning="hive")
    found = dataset.to_table(columns=["partition", "offset"]).group_by(["partition", "offset"]).aggregate([])
    if not len(found) == dataset.count_rows() == topic.rows:
        raise click.ClickException(f"{len(found)} different records of {topic.rows} in {dataset.count_rows()} rows")


@click.command()
@click.option("--records", type=click.IntRange(min=1_000), default=2_000_000, show_default=True)
@click.option("--partitions", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--value-bytes", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Fewer records, one round.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
def main(records: int, partitions: int, value_bytes: int, rounds: int, quick: bool, json_file: Path | None) -> None:
    """Archive a topic once in each round, and measure how long it takes."""
    if quick:
        records, rounds = min(records, 200_000), 1
    topic = Topic(partitions, value_bytes, records // partitions)
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        feeder = Feeder(cluster)
        feeder.fill(topic)
        feeder.close()
        found = [archive(cluster, topic, Path(folder, str(number))) for number in range(rounds)]
    for figures in found:
        click.echo(", ".join(f"{name} {value:,}" for name, value in figures.items()))
    rate = median(figures["records/s"] for figures in found)
    click.echo(f"{topic.rows:,} records of {value_bytes} bytes, median of {rounds}: {rate:,.0f} records/s")
    if json_file is not None:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "spark": pyspark.__version__}
        document = {"records": topic.rows, "value_bytes": value_bytes, "machine": machine, "rounds": found}
        json_file.write_text(f"{json.dumps(document, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
