"""The processes that benchmarks start cause the load that the benchmarks measure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster

pytestmark = pytest.mark.integration


def test_sessions_of_a_benchmark_send_heartbeats(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """
    The process counts answered heartbeats. An earlier version sent none, because it called the heartbeat with a wrong
    argument.
    """
    arguments = [sys.executable, "-m", "benchmarks.members.sessions", cluster_39.zk_hosts, unique("session"), "1"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answered = 0
        while not answered:
            line = process.stdout.readline()
            assert line, "the process ended"
            answered, _ = json.loads(line)
            process.stdin.write("\n")
            process.stdin.flush()
        process.communicate()
    assert process.returncode == 0
