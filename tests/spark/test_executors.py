"""A cluster of executors, one of which is killed. The driver is a process of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.commands import Running
from tests.helpers.spark.clusters import executors_of
from tests.helpers.spark.queries import brokers_of, fill
from tests.helpers.spark.sessions import worker_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Three Java processes start, on a computer that may be busy.
PATIENCE_S = 300


@pytest.mark.slow
def test_an_executor_is_killed_in_a_task(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats the tasks of the killed executor on another executor, and every record is read once."""
    topic = unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, 4)
    values = [b"%03d" % number for number in range(100)]
    fill(cluster_39, topic, values)
    for name, value in worker_environment().items():
        monkeypatch.setenv(name, value)
    with Running(["-m", "tests.helpers.spark.executor_job", brokers_of(cluster_39), topic, str(tmp_path)]) as job:
        job.wait_for_lines(1, PATIENCE_S)
        os.kill(executors_of(job.process.pid)[0], signal.SIGKILL)
        (tmp_path / "go").touch()
        found = json.loads(job.wait_for_lines(2, PATIENCE_S)[1])
    assert found == [value.decode() for value in values]
