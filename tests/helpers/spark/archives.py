"""Settings of archives in tests, and a check that an archive is complete."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyspark.sql import SparkSession

from kiel_groups.embedded import Cluster
from kiel_groups.spark import ArchiveSettings
from tests.helpers.spark.queries import brokers_of, read_batch

__all__ = ["assert_complete", "settings"]

#: The columns that identify a record.
IDENTITY = ["topic", "partition", "offset", "value"]


def settings(cluster: Cluster, topic: str, folder: Path, **given: Any) -> ArchiveSettings:
    """Return the settings of an archive of one topic in the subfolder ``archive``."""
    return ArchiveSettings(topics=(topic,), output=str(folder / "archive"), brokers=brokers_of(cluster), **given)


def assert_complete(spark: SparkSession, cluster: Cluster, topic: str, folder: Path) -> None:
    """Assert that both the archive as Spark reads it and its Parquet files have every record of the log once."""
    log = Counter(
        (each.topic, each.partition, each.offset, each.value) for each in read_batch(cluster, subscribe=topic)
    )
    files = pyarrow.dataset.dataset(folder / "archive", partitioning="hive").to_table(columns=IDENTITY)
    assert Counter(zip(*(files[name].to_pylist() for name in IDENTITY), strict=True)) == log
    rows = spark.read.parquet(str(folder / "archive")).select(*IDENTITY).collect()
    assert Counter((*row[:3], None if row[3] is None else bytes(row[3])) for row in rows) == log
