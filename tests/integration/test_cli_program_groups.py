"""The commands for groups of consumers, on groups of workers and of other programs on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.ops.actions.groups import remove_empty_group
from kiel_groups.ops.zookeeper_reader import read_group
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.generic_program import NUMBERS, NumberProgram
from tests.helpers.waiting import eventually
from tests.helpers.worker_groups import ask, until_state, worker_on

pytestmark = pytest.mark.integration

Command = Callable[..., "asyncio.Future[subprocess.CompletedProcess[str]]"]


def on(cluster: Cluster) -> Command:
    """Return a function that runs a command on the cluster's ZooKeeper, beside the event loop."""
    loop = asyncio.get_running_loop()
    return lambda *words: loop.run_in_executor(None, lambda: kiel_groups_here(*words, "--zookeeper", cluster.zk_hosts))


async def outline(command: Command, group: str) -> tuple[str, int, str]:
    """Return the type, the members and the state of a group in the list of groups."""
    found = json.loads((await command("groups", "--json")).stdout)
    (entry,) = [each for each in found if each["group"] == group]
    return entry["type"], entry["members"], entry["state"]


async def until_outlined(command: Command, group: str, kind: str, members: int, state: str) -> None:
    """Wait until the list of groups has this. A round counts as done some time after its members have their work."""

    async def is_outlined() -> bool:
        return await outline(command, group) == (kind, members, state)

    await eventually(is_outlined, f"{group} is listed as {kind}, {members}, {state}")


@pytest.mark.parametrize("coordination", ["zookeeper", "brokers"])
async def test_a_group_of_workers(
    shared_clusters: Callable[..., Cluster],
    unique: Callable[[str], str],
    coordination: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    Nothing is reported as wrong, and ``describe`` points to the command for workers. A lag is refused, since workers
    have none. A group without live workers is not deleted, and the log says what it has.
    """
    cluster = shared_clusters("3.9.5", "0.9.0.1")
    group, topic, command = unique("workers"), unique("lines"), on(cluster)
    await cluster.create_topic(topic, 1)
    async with worker_on(cluster, group, coordination=coordination) as worker:
        config = {"connector.class": "FileStreamSource", "file": "/absent", "topic": topic}
        await ask(worker.url, "POST", "/connectors", {"name": "read", "config": config})
        await until_state(worker.url, "read", "RUNNING", "RUNNING")
        is_here = coordination == "zookeeper"
        await until_outlined(command, group, "connect", 1, "done" if is_here else "by brokers")
        described = await command("describe", group, "--check")
        assert (described.returncode, described.stderr) == (0, "")
        assert f"'kiel-groups workers describe {group} --zookeeper" in described.stdout
        assert not [word for word in ("wrong", "partition", "lag ") if word in described.stdout]
        assert (f"describe {group} --coordination brokers" in described.stdout) == (not is_here)
        lag = await command("lag", group, "--check")
        assert (lag.returncode, lag.stdout) == (2, "")
        assert f"'kiel-groups workers describe {group} --zookeeper" in lag.stderr
    assert await outline(command, group) == ("connect", 0, "empty")
    assert (await command("describe", group, "--check")).returncode == 0
    with zookeeper(cluster) as client, caplog.at_level(logging.INFO, "kiel_groups.ops"):
        before = read_group(client, group)
        assert WorkerLayout(group).connector("read") in before
        assert not [path for path in before if path.startswith("/brokers")]
        assert not remove_empty_group(client, group)
        assert read_group(client, group) == before
    assert f"group {group}: nothing was deleted: the group has " in caplog.text
    assert "connect" in caplog.text.rpartition("the group has ")[2]


async def test_a_group_of_programs(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """
    Members and their round are shown, and nothing is reported as wrong, also when all have left. Such a group takes no
    allocator process.
    """
    group, command = unique("numbers"), on(cluster_39)
    program = NumberProgram(group, {"zk_hosts": cluster_39.zk_hosts})
    await program.member.start()
    try:
        await until_outlined(command, group, "numbers", 1, "done")
        described = await command("describe", group, "--check", "--history")
        assert (described.returncode, described.stderr) == (0, "")
        assert "numbers: programs, which share other work than partitions" in described.stdout
        assert program.member.member_id.rpartition("-")[2] + " leads" in described.stdout
        assert "history" not in described.stdout
        lag = await command("lag", group)
        assert lag.returncode == 2
        assert f"'kiel-groups describe {group} --zookeeper" in lag.stderr
        # An allocator process would publish a plan of partitions as soon as it led.
        words = ("serve", "--group", group, "--port", "0", "--zookeeper", cluster_39.zk_hosts)
        serving = await asyncio.to_thread(kiel_groups_here, *words)
        assert (serving.returncode, serving.stdout) == (2, "")
        assert "its members are of the type 'numbers', and share no partitions" in serving.stderr
        with zookeeper(cluster_39) as client:
            assert not remove_empty_group(client, group)
            assert not [path for path in read_group(client, group) if path.startswith("/brokers")]
    finally:
        await program.member.close()
    assert await outline(command, group) == ("numbers", 0, "empty")
    assert (await command("describe", group, "--check")).returncode == 0


async def test_an_allocator_process_gives_way_to_programs(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """
    An allocator process that was started before its group has members stops when programs found the group: it would
    lead them for ever, and they would wait for an assignment. One of them leads then.
    """
    group = unique("numbers")
    with Running(
        ["-m", "kiel_groups", "serve", "--zookeeper", cluster_39.zk_hosts, "--group", group, "--port", "0"]
    ) as process:
        await eventually(lambda: any(line.endswith(" leads") for line in process.errors), "it is the leader")
        program = NumberProgram(group, {"zk_hosts": cluster_39.zk_hosts})
        try:
            async with asyncio.timeout(20):
                await program.member.start()
            assert program.member.leads
            assert program.held == NUMBERS
            assert await asyncio.to_thread(process.wait) == 2
        finally:
            await program.member.close()
    stops = [line for line in process.errors if "share no partitions" in line]
    assert len(stops) == 1, process.errors
    assert "its members are of the type 'numbers'" in stops[0]
