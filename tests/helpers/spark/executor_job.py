"""
A Spark job on a local cluster of two executors: ``executor_job.py BROKERS TOPIC FOLDER``.

The job reads a topic, and blocks at each row until ``FOLDER/go`` exists. It prints ``blocked`` when a task has started,
and at the end the values as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import Row, SparkSession

from tests.helpers.spark.sessions import SETTINGS


def main(brokers: str, topic: str, folder: Path) -> None:
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("executor-job")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    threading.Thread(target=report_start, args=(folder,), daemon=True).start()

    def block(rows: Iterator[Row]) -> Iterator[str]:
        for row in rows:
            (folder / "started").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
            yield bytes(row["value"]).decode()

    reader = spark.read.format("kiel").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    values = reader.option("minPartitions", "4").load().rdd.mapPartitions(block).collect()
    print(json.dumps(sorted(values)), flush=True)  # noqa: T201
    spark.stop()


def report_start(folder: Path) -> None:
    """Print ``blocked`` when a task, which runs in another process, has created the file ``started``."""
    while not (folder / "started").exists():
        time.sleep(0.02)
    print("blocked", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
