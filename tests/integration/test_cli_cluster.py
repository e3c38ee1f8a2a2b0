"""
The servers of ``kiel-groups cluster`` continue after the command ends, are found by name, keep their data, and are
removed.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiel_groups import Producer
from kiel_groups.clients import SingleConsumer
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Cluster = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """
    Provide a function that runs ``kiel-groups cluster`` in a folder of the test, and returns its status, output and
    errors. All clusters are ended after the test.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # commands in this process read TMPDIR again

    def run(*words: str) -> tuple[int, str, str]:
        done = kiel_groups_here("cluster", *words)
        return done.returncode, done.stdout, done.stderr

    yield run
    run("down")


def only(cluster: Cluster) -> dict[str, Any]:
    """Return the only running cluster, as ``status --json`` describes it."""
    (running,) = json.loads(cluster("status", "--json")[1])
    assert isinstance(running, dict)
    return running


def alive(pid: int) -> bool:
    """Return whether a process is still running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_detached_cluster_is_found_used_ended_and_restarted_with_its_data(
    cluster: Cluster, tmp_path: Path
) -> None:
    """
    The cluster continues after the command that started it. ``down`` returns when the cluster has ended. Only the data
    remains, in the folder of ``--data``.
    """
    up = ("up", "--detach", f"--data={tmp_path}/data", "--chroot=/kafka")
    status, out, err = cluster(*up)
    assert (status, err) == (0, "")
    first = only(cluster)
    assert f"export KIEL_GROUPS_ZOOKEEPER={first['zookeeper']}" in out
    assert cluster("env")[1].splitlines() == [
        f"export KIEL_GROUPS_BROKERS={first['brokers'][0]}",
        f"export KIEL_GROUPS_ZOOKEEPER={first['zookeeper']}",
        "unset KIEL_GROUPS_COORDINATION",
        "unset KIEL_GROUPS_SECURITY",
    ]
    assert all(alive(process) for process in (first["pid"], *(server["pid"] for server in first["servers"])))
    ZooKeeperTopics(first["zookeeper"]).create("kept", 1)
    async with Producer(first["brokers"]) as producer:
        await producer.produce("kept", b"a record")

    assert cluster(*up)[::2] == (
        1,
        f"error: cluster 'default' runs already, as process {first['pid']}; end it with"
        " 'kiel-groups cluster down --name default', or choose another --name\n",
    )
    assert "is used by a cluster that runs" in cluster(*up, "--name=other")[2]
    assert cluster("down") == (0, "", "")
    assert not any(alive(process) for process in (first["pid"], *(server["pid"] for server in first["servers"])))
    assert cluster("down")[::2] == (1, "error: no cluster 'default' runs; 'kiel-groups cluster up' starts one\n")

    status, _, err = cluster(*up, "--kafka-version=0.8.1.1")
    assert (status, err.count("\n")) == (2, 1)
    assert f"data: {tmp_path}/data is of kafka 0.8.2.2, brokers 1, zookeeper 3.9.5, zookeepers 1, not of kafka" in err
    assert cluster(*up)[0] == 0
    async with SingleConsumer(only(cluster)["brokers"]) as consumer:
        await consumer.subscribe("kept", consumer.BEGINNING)
        assert (await anext(consumer)).value == b"a record"


@pytest.mark.parametrize(
    ("count", "servers", "options"),
    [
        pytest.param(1, ["kafka-0"], [], marks=pytest.mark.slow),
        (2, ["kafka-controller", "kafka-0", "kafka-1"], ["--secure"]),
    ],
)
async def test_a_cluster_in_kraft_mode_runs_without_zookeeper(
    cluster: Cluster, tmp_path: Path, count: int, servers: list[str], options: list[str]
) -> None:
    """
    Kafka 3.9.1 runs with a controller in place of ZooKeeper if it has several brokers. ``env`` unsets the address of a
    ZooKeeper that an earlier cluster had. Records remain in the folder of ``--data``, and so do users of a secured
    cluster.
    """
    up = ("up", "--detach", "--kafka-version=3.9.1", f"--broker-count={count}", f"--data={tmp_path}/data", *options)
    status, out, err = cluster(*up)
    assert (status, err) == (0, "")
    assert out.startswith("cluster 'default' is ready: Kafka 3.9.1\n")
    first = only(cluster)
    security = first["security"]
    assert security == (f"{tmp_path}/data/security/security.toml" if options else None)
    assert first["zookeeper"] is first["zookeeper_version"] is None
    assert [server["name"] for server in first["servers"]] == servers
    assert cluster("env")[1].splitlines() == [
        f"export KIEL_GROUPS_BROKERS={','.join(first['brokers'])}",
        "unset KIEL_GROUPS_ZOOKEEPER",
        "export KIEL_GROUPS_COORDINATION=brokers",
        f"export KIEL_GROUPS_SECURITY={security}" if options else "unset KIEL_GROUPS_SECURITY",
    ]
    status, table, err = cluster("status")
    assert (status, err, table.count("3.9.1")) == (0, "", len(servers))
    where = ["--coordination=brokers", f"--brokers={','.join(first['brokers'])}"]
    where += ["--security", security] if options else []
    created = kiel_groups_here("topics", "create", "kept", f"--replication={count}", "--wait=30", *where)
    assert (created.returncode, created.stderr) == (0, "info: topic kept created with 1 partition\n")
    async with Producer(first["brokers"], security=security) as producer:
        await producer.produce("kept", b"a record")
    assert cluster("down") == (0, "", "")
    assert not any(alive(server["pid"]) for server in first["servers"])

    assert cluster(*up)[0] == 0
    async with SingleConsumer(only(cluster)["brokers"], security=security) as consumer:
        await consumer.subscribe("kept", consumer.BEGINNING)
        assert (await anext(consumer)).value == b"a record"


@pytest.mark.slow
async def test_a_killed_server_is_reported_and_restarted_and_a_killed_supervisor_ends_its_servers(
    cluster: Cluster,
) -> None:
    """
    ``status`` reports a killed server, and ``restart`` starts it on its port. After kill -9 of the supervisor no server
    runs, and ``status`` lists no cluster.
    """
    assert cluster("up", "--detach")[0] == 0
    running = only(cluster)
    zookeeper, broker = running["servers"]
    os.kill(broker["pid"], signal.SIGKILL)
    await eventually(lambda: not alive(broker["pid"]), "the broker has ended")
    assert [server["alive"] for server in only(cluster)["servers"]] == [True, False]
    status, table, errors = cluster("status")
    assert "has ended" in table
    assert (status, errors) == (1, f"error: kafka-0 of cluster 'default' has ended; its log is {broker['log']}\n")
    assert max(map(len, table.splitlines())) <= 80
    status, out, err = cluster("restart", "kafka-0", "--json")
    zookeeper, restarted = only(cluster)["servers"]
    text = f"info: kafka-0 serves at {broker['address']} again, as process {restarted['pid']}\n"
    assert (status, json.loads(out), err) == (0, restarted, text)
    assert cluster("status")[0] == 0
    assert cluster("restart", "kafka-1")[::2] == (
        1,
        "error: cluster 'default' has no server 'kafka-1'; it has zookeeper-3.9.5, kafka-0\n",
    )
    os.kill(running["pid"], signal.SIGKILL)
    await eventually(lambda: not alive(zookeeper["pid"]), "ZooKeeper has ended with the supervisor")
    assert cluster("status") == (0, "no cluster runs; 'kiel-groups cluster up' starts one\n", "")


def test_a_foreground_cluster_runs_until_ctrl_c(cluster: Cluster, tmp_path: Path) -> None:
    """The command prints the addresses of the cluster and how to end it. After its end, no files remain."""
    with Running(["-m", "kiel_groups", "cluster", "up", "--name=mine"]) as command:
        printed = command.wait_for_lines(8)
        assert printed[0] == "cluster 'mine' is ready: Kafka 0.8.2.2 on ZooKeeper 3.9.5"
        assert printed[7] == "Ctrl-C stops it and deletes its data."
        assert only(cluster)["pid"] == command.process.pid
        assert command.end(signal.SIGINT) == 0
        assert command.errors == []
    assert not list((tmp_path / f"kiel-groups-{os.getuid()}").glob("run-*"))


@pytest.mark.parametrize("options", [[], ["--detach"], ["--kafka-version=3.9.1"]], ids=" ".join)
async def test_ctrl_c_ends_a_start_that_hangs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Ctrl-C kills the server that is starting. No process and no folder remains."""
    runs, started = tmp_path / f"kiel-groups-{os.getuid()}", tmp_path / "started"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f'#!/bin/sh\necho $$ >>"{started}"\nexec sleep 600\n')
    java.chmod(0o700)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with Running(["-m", "kiel_groups", "cluster", "up", *options]) as command:
        await eventually(started.exists, "a server is being started")
        assert command.end(signal.SIGINT, timeout_s=20) == 130
        assert (command.lines, command.errors) == ([], [])
    assert not any(map(alive, map(int, started.read_text().split())))
    assert not list(runs.glob("run-*"))


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["up", "--zookeeper-count=2"], 2, "'--zookeeper-count': '2' is not one of '1', '3', '5', '7'."),
        (["up", "--kafka-version=0.8.9"], 2, "0.8.1.1, 0.8.2.2, 0.9.0.1, 0.10.2.2, 1.1.1, 2.8.2, 3.9.1, 4.1.0"),
        (
            ["up", "--kafka-version=3.9.1", "--chroot=/kafka"],
            *(2, "--chroot: Kafka 3.9.1 runs without ZooKeeper; leave it out"),
        ),
        (
            ["up", "--kafka-version=3.9.1", "--zookeeper-version=3.4.6", "--zookeeper-count=3", "--zookeeper-port=1"],
            *(2, "--zookeeper-version, --zookeeper-count, --zookeeper-port: Kafka 3.9.1 runs without ZooKeeper"),
        ),
        (["up", "--detach", "--data=/"], 2, "data: / has files of another program"),
        (["up", "--broker-count=none"], 2, "'--broker-count': 'none' is not an integer"),
        (["up", "--zookeeper=3.4.6"], 2, "Did you mean one of: '--zookeeper-count'"),
        (["down", "--name=mine"], 1, "no cluster 'mine' runs; 'kiel-groups cluster up' starts one"),
        (["status", "--name=mine"], 1, "no cluster 'mine' runs"),
        (["restart", "kafka-0", "--name=mine"], 1, "no cluster 'mine' runs"),
        (["stop"], 2, "No such command 'stop'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_give_one_line(cluster: Cluster, words: list[str], status: int, message: str) -> None:
    """The line says what is wrong, and may suggest a remedy."""
    done, out, err = cluster(*words)
    assert (done, out, err.count("\n")) == (status, "", 1)
    assert message in err


@pytest.mark.parametrize("further", [[], ["--detach"]])
def test_without_java_the_error_says_what_to_install(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, further: list[str]
) -> None:
    """The error is one line, also if the supervisor process detects that Java is missing."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    status, out, err = cluster("up", *further)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: Java is needed to run ZooKeeper and Kafka")
