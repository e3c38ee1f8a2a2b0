"""``kiel-groups spark archive`` as a process of its own: ended by signals, and gone on with."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kiel_groups.admin.cluster_admin import create_topic
from kiel_groups.embedded import Cluster
from kiel_groups.spark import archive
from tests.helpers.commands import REPOSITORY, Running
from tests.helpers.spark.archives import assert_complete, settings
from tests.helpers.spark.queries import brokers_of, fill
from tests.helpers.waiting import eventually

# Each driver starts a Java of its own, which takes seconds, and on a busy machine a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("spark-session")]

PATIENCE_S = 240.0
RECORDS = 1_000


@pytest.fixture
def topic(cluster_39: Cluster, unique: Callable[[str], str]) -> str:
    """A topic of three partitions, with so many records that a driver is busy for a while."""
    name = unique("topic")
    create_topic(cluster_39.zk_hosts, name, 3)
    fill(cluster_39, name, [b"%d" % number for number in range(RECORDS)])
    return name


def driver(cluster: Cluster, topic: str, folder: Path) -> Running:
    """Spark's own script, in batches of a few records; what a batch costs makes it slow."""
    words = ["--brokers", brokers_of(cluster), "--output", str(folder / "archive"), "--batch-records", "5", "--json"]
    return Running([str(REPOSITORY / "examples" / "spark_archive.py"), topic, "--master", "local[2]", *words])


def unlocked(folder: Path) -> bool:
    """Whether nothing of the process that has held the lock is alive; its Java ends a moment after it."""
    with (folder / "archive" / "_checkpoint" / "archive.lock").open("r+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_ctrl_c_ends_after_the_batch_under_way(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """The summary says what was done by then, the status that it was a Ctrl-C; the next run has the rest."""
    with driver(cluster_39, topic, tmp_path) as process:
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        assert process.end(signal.SIGINT, PATIENCE_S) == 130, process.errors
    summary = json.loads("\n".join(process.lines))
    assert 5 <= summary["records"] < RECORDS
    rest = archive(spark, settings(cluster_39, topic, tmp_path))
    assert rest.records == RECORDS - summary["records"]
    assert_complete(spark, cluster_39, topic, tmp_path)


def java_of(process: Running) -> int:
    """The only child of the driver, which the script that started it has become."""
    number = process.process.pid
    (child,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return int(child)


def commits(folder: Path) -> int:
    """How many batches are done."""
    return sum(path.name.isdigit() for path in (folder / "archive" / "_checkpoint" / "commits").iterdir())


def test_what_is_killed_leaves_nothing_twice(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """Java, which the driver tells in a line, and the driver; between batches, with files that nobody will list."""
    with driver(cluster_39, topic, tmp_path) as process:
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        os.kill(java_of(process), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 1
    (error,) = (line for line in process.errors if not line.startswith(("info: ", "warning: ")))
    assert error.startswith("error: Spark's Java process has ended in the middle of its work (was it killed, or ")
    first = commits(tmp_path)
    with driver(cluster_39, topic, tmp_path) as process:
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        process.process.kill()
        process.wait()
    asyncio.run(eventually(lambda: unlocked(tmp_path), "Java has ended, too", PATIENCE_S))
    assert 0 < first < commits(tmp_path) < RECORDS // 5
    archive(spark, settings(cluster_39, topic, tmp_path))
    assert_complete(spark, cluster_39, topic, tmp_path)
