"""A job on a cluster of two executors, in a process of its own: ``executor_job.py BROKERS TOPIC FOLDER``.

Reads a topic, and holds each row until ``FOLDER/go`` is there. Prints ``holding`` once a task has begun, and
at the end the values that it was given, as JSON.
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
    threading.Thread(target=tell_when_held, args=(folder,), daemon=True).start()

    def hold(rows: Iterator[Row]) -> Iterator[str]:
        for row in rows:
            (folder / "held").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
            yield bytes(row["value"]).decode()

    reader = spark.read.format("kiel").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    values = reader.option("maxPartitions", "4").load().rdd.mapPartitions(hold).collect()
    print(json.dumps(sorted(values)), flush=True)  # noqa: T201
    spark.stop()


def tell_when_held(folder: Path) -> None:
    while not (folder / "held").exists():
        time.sleep(0.02)
    print("holding", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
