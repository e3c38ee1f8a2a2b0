"""``kiel-groups spark archive`` as a process: signals end it, and later runs continue its work."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.spark import archive, archive_files
from tests.helpers.commands import REPOSITORY, Running, environment
from tests.helpers.spark.archives import assert_complete, settings
from tests.helpers.spark.clusters import executors_of, standalone_cluster
from tests.helpers.spark.queries import brokers_of, fill
from tests.helpers.waiting import eventually_blocking

# Each driver starts a Java process, which takes seconds, and a minute on a busy computer.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.xdist_group("spark-session")]

PATIENCE_S = 240.0
RECORDS = 1_000


@pytest.fixture
def topic(cluster_39: Cluster, unique: Callable[[str], str]) -> str:
    """Return the name of a topic of three partitions, with enough records to keep a driver busy for a while."""
    name = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(name, 3)
    fill(cluster_39, name, [b"%d" % number for number in range(RECORDS)])
    return name


def driver(cluster: Cluster, topic: str, folder: Path, master: str = "local[2]") -> Running:
    """Start the example program. Small batches make it slow."""
    words = ["--brokers", brokers_of(cluster), "--output", str(folder / "archive"), "--batch-records", "5", "--json"]
    return Running([str(REPOSITORY / "examples" / "spark_archive.py"), topic, "--master", master, *words])


def unlocked(folder: Path) -> bool:
    """Return whether the lock is free. A killed driver's Java process keeps the lock until Java ends a moment later."""
    with (folder / "archive" / "_checkpoint" / "archive.lock").open("r+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.slow
def test_ctrl_c_ends_the_run_after_the_current_batch(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """After Ctrl-C, the summary counts the finished batches, and the status is 130. The next run reads the rest."""
    with driver(cluster_39, topic, tmp_path) as process:
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        assert process.end(signal.SIGINT, PATIENCE_S) == 130, process.errors
    summary = json.loads("\n".join(process.lines))
    assert 5 <= summary["records"] < RECORDS
    rest = archive(spark, settings(cluster_39, topic, tmp_path))
    assert rest.records == RECORDS - summary["records"]
    assert_complete(spark, cluster_39, topic, tmp_path)


def java_of(process: Running) -> int:
    """Return the process id of the only child of the driver."""
    number = process.process.pid
    (child,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return int(child)


def commits(folder: Path) -> int:
    """Return the number of finished batches."""
    return sum(path.name.isdigit() for path in (folder / "archive" / "_checkpoint" / "commits").iterdir())


def kill_an_executor(folder: Path, *ancestors: int) -> None:
    """Kill one of two executors after a batch, and wait until further batches have finished."""
    eventually_blocking(lambda: len(executors_of(*ancestors)) == 2, "both executors run", PATIENCE_S)
    os.kill(executors_of(*ancestors)[0], signal.SIGKILL)
    killed_at = commits(folder)
    eventually_blocking(lambda: commits(folder) > killed_at + 1, "the archive continues", PATIENCE_S)


@pytest.mark.slow
def test_killed_processes_leave_no_record_twice(
    spark: SparkSession, cluster_39: Cluster, topic: str, tmp_path: Path
) -> None:
    """
    On a standalone cluster with two workers, an executor is killed, and then the driver's Java in the middle of a
    batch, which the driver reports in one line. On a local cluster, an executor is killed, and then the driver itself.
    In the end, the archive has every record once.
    """
    with (
        standalone_cluster(tmp_path, PATIENCE_S) as cluster,
        driver(cluster_39, topic, tmp_path, cluster.url) as process,
    ):
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        kill_an_executor(tmp_path, *cluster.workers)
        os.kill(java_of(process), signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 1
    (error,) = (line for line in process.errors if not line.startswith(("info: ", "warning: ")))
    assert error.startswith("error: Spark's Java process has ended in the middle of its work (was it killed, or ")
    first = commits(tmp_path)
    output = tmp_path / "archive"
    assert archive_files(str(output)) == sorted(map(str, output.glob("topic=*/**/part-*")))
    with driver(cluster_39, topic, tmp_path, "local-cluster[2,1,1024]") as process:
        process.wait_for_error("info: 5 records, ", PATIENCE_S)
        kill_an_executor(tmp_path, process.process.pid)
        process.process.kill()
        process.wait()
    eventually_blocking(lambda: unlocked(tmp_path), "Java has ended, too", PATIENCE_S)
    assert 0 < first < commits(tmp_path) < RECORDS // 5
    archive(spark, settings(cluster_39, topic, tmp_path))
    assert_complete(spark, cluster_39, topic, tmp_path)


STARTING = """
from kiel_groups.spark.spark_session import start_session
start_session("archive", master="local[1]", log=None)
"""


def group_of(leader: int) -> dict[int, bytes]:
    """Return the processes of a process group that have not ended, and their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        if int(group) == leader and state != "Z":
            found[int(folder.name)] = words
    return found


@pytest.mark.parametrize("whole_group", [True, False], ids=["ctrl-c", "sigint"])
def test_ctrl_c_while_spark_starts_leaves_no_process(whole_group: bool) -> None:
    """
    Java ends with the process that starts it, also before it reads the pipe to that: as by Ctrl-C, whose SIGINT Java
    ignores, or by SIGINT to Python alone.
    """
    command = [sys.executable, "-c", STARTING]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        eventually_blocking(
            lambda: any(b"SparkSubmit" in each for each in group_of(process.pid).values()), "Java starts"
        )
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        process.wait(30)
        eventually_blocking(lambda: not group_of(process.pid), "all processes have ended")
    finally:
        for left in group_of(process.pid):
            os.kill(left, signal.SIGKILL)
        process.wait()
