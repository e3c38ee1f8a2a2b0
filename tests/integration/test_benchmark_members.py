"""The processes that benchmarks start cause the load that the benchmarks measure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import consume, measured_group, worker_group, workers
from benchmarks.delivery.clients import OUR_WAYS
from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow]


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


def test_the_benchmark_of_consumers_measures_each_of_our_ways(tmp_path: Path) -> None:
    """A quick run writes a topic, reads it in each way of this version, and has a figure for everything."""
    target = tmp_path / "figures.json"
    outcome = CliRunner().invoke(consume.main, ["--quick", "--rounds", "1", "--only", "ours", "--json", str(target)])
    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(target.read_text(encoding="utf-8"))["runs"]
    ways = OUR_WAYS if hasattr(GroupedConsumer, "consume_batches") else set(OUR_WAYS) - {"consume_batches()"}
    assert {row["client"] for row in rows} == {f"ours {way}" for way in ways}
    for row in rows:
        assert min(row[name] for name in ("records_per_s", "client_us", "broker_us", "peak_mib")) > 0
        assert row["ratio"] is None


def test_the_benchmark_of_workers_measures_each_event_and_its_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A quick run measures a join, a leave and a kill of a worker, and of a consumer. After a kill, only ``total``
    contains the time until the session has ended.
    """
    # The groups have no debounce, and the figures need not be exact.
    for module in (measured_group, worker_group):
        monkeypatch.setattr(module, "REST_S", 0.5)
    monkeypatch.setattr(workers, "_wait_for_sessions", lambda: None)
    target = tmp_path / "figures.json"
    options = ["--quick", "--size", "2x6", "--only", "sticky, floor", "--json", str(target)]
    outcome = CliRunner().invoke(workers.main, options)
    assert outcome.exit_code == 0, outcome.output
    rows = {row["event"]: row for row in json.loads(target.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == {"join", "leave", "kill"}
    for row in rows.values():
        assert 0 < row["longest"] <= row["s"] <= row["total"]
        assert row["unowned"] >= row["longest"]
        assert row["peer"]["s"] > 0
        assert min(row[name] for name in ("writes", "cpu_s", "ratio")) > 0
    # A server of ZooKeeper ends a session at the end of a tick, which may be a heartbeat's time before the time-out.
    assert rows["kill"]["total"] - rows["kill"]["s"] > rows["kill"]["session_timeout_ms"] / 2000
