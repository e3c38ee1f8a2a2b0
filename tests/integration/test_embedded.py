"""The embedded servers do what tests and the demo build on, on both versions of ZooKeeper."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.admin import cluster_admin
from kiel_groups.embedded import Cluster, KafkaBroker, ZooKeeperServer
from kiel_groups.embedded.processes.ports import accepts
from kiel_groups.embedded.processes.run_folder import runs_folder
from kiel_groups.embedded.processes.server_process import Server
from kiel_groups.errors import ChrootMissingError, ConfigError, NoZooKeeperError, ServerError, UnknownTopicError

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def partitions(cluster: Cluster, topic: str) -> int:
    with cluster_admin.zookeeper(cluster.zk_hosts) as client:
        return len(cluster_admin.partitions_of(client, topic))


async def test_topics_are_created_grown_and_deleted(cluster: Cluster, unique: Unique) -> None:
    """A topic has the partitions asked for, more after growing, and is gone after its deletion."""
    topic = unique("topic")
    await cluster.create_topic(topic, 3)
    assert partitions(cluster, topic) == 3
    await cluster.grow_topic(topic, 5)
    assert partitions(cluster, topic) == 5
    await cluster.delete_topic(topic)
    with pytest.raises(UnknownTopicError, match=topic):
        partitions(cluster, topic)


async def test_topics_that_cannot_be_are_refused(cluster_39: Cluster, unique: Unique) -> None:
    """Each mistake with a topic is a ConfigError that names what is wrong."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    for call, said in (
        (cluster_39.create_topic(topic, 2), "exists already"),
        (cluster_39.create_topic(unique("topic"), 2, replication=2), "expected 1 to 1"),
        (cluster_39.create_topic(unique("topic"), 0), "at least 1"),
        (cluster_39.create_topic("a/b", 1), "not a legal name"),
        (cluster_39.grow_topic(topic, 2), "has 2 partitions"),
        (cluster_39.delete_topic(unique("topic")), "does not exist"),
    ):
        with pytest.raises(ConfigError, match=said):
            await call


async def comes_back(server: Server) -> None:
    """Stop it, kill it and freeze it; it serves again after each, on its port."""
    port = server.port
    await server.stop()
    assert not accepts(port)
    await server.start()
    await server.kill()
    assert not server.is_running
    await server.start()
    server.pause()
    server.resume()
    await server.restart()
    assert server.port == port


async def test_a_zookeeper_comes_back_with_its_data(
    start_zookeeper: Callable[..., ZooKeeperServer], zookeeper_version: str
) -> None:
    """After a stop, a kill −9 and a freeze, port and znodes are what they were."""
    server = start_zookeeper(zookeeper_version)
    with cluster_admin.zookeeper(server.hosts) as client:
        client.create("/before", b"kept")
    await comes_back(server)
    with cluster_admin.zookeeper(server.hosts) as client:
        assert client.get("/before")[0] == b"kept"


async def test_a_broker_comes_back_with_its_data_until_it_is_wiped(start_cluster: Callable[..., Cluster]) -> None:
    """After a stop, a kill −9 and a freeze it leads as before; a wipe is refused while it runs, and leaves nothing."""
    cluster = start_cluster(chroot="/a/chroot")
    await cluster.create_topic("before", 2)
    await comes_back(cluster.kafka[0])
    assert partitions(cluster, "before") == 2
    await cluster.create_topic("after", 2)
    with pytest.raises(ServerError, match="stop it"):
        await cluster.zookeeper.wipe()
    for server in (cluster.kafka[0], cluster.zookeeper):
        await server.stop()
        await server.wipe()
    await cluster.zookeeper.start()
    cluster_admin.create_chroot(cluster.zk_hosts)
    await cluster.kafka[0].start()
    await cluster.create_topic("before", 1)


async def test_a_paused_zookeeper_answers_nothing_until_it_is_resumed(
    start_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """SIGSTOP leaves the port open and the client without an answer, SIGCONT ends that."""
    server = start_zookeeper()
    server.pause()
    assert accepts(server.port)
    assert not await asyncio.to_thread(cluster_admin.answers, server.hosts, timeout_s=0.5)
    server.resume()
    assert await asyncio.to_thread(cluster_admin.answers, server.hosts, timeout_s=5)


def test_a_server_that_dies_at_its_start_shows_the_end_of_its_log(cluster_39: Cluster) -> None:
    """The error of a broker with a broken setting carries Kafka's own words."""
    broker = KafkaBroker(cluster_39.zk_hosts, 7, overrides={"num.io.threads": "many"})
    with (
        pytest.raises(ServerError, match=r"(?s)kafka-7 ended at its start with status.*NumberFormatException"),
        broker,
    ):
        pass


def test_a_port_lost_to_somebody_else_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose port was taken between choice and bind starts on another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        from kiel_groups.embedded.processes import server_process

        class Loser(server_process.ReservedPort):
            def __init__(self, number: int = 0) -> None:
                super().__init__(number)
                monkeypatch.undo()
                self.number = taken.getsockname()[1]

        monkeypatch.setattr(server_process, "ReservedPort", Loser)
        with ZooKeeperServer() as zookeeper:
            assert zookeeper.port != taken.getsockname()[1]


def test_the_port_of_a_dead_server_is_given_to_nobody(start_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """While a server is down, clients of its port are refused and the system hands the port to nobody else."""
    server = start_zookeeper()
    asyncio.run(server.kill())
    for _ in range(2000):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", server.port)) != 0
    asyncio.run(server.start())


def test_clients_without_a_zookeeper_or_a_chroot_are_told_so(cluster_39: Cluster) -> None:
    """A wrong port and a missing chroot are two errors, each naming the address."""
    with (
        pytest.raises(ChrootMissingError, match="/missing does not exist"),
        cluster_admin.zookeeper(f"{cluster_39.zk_hosts}/missing"),
    ):
        pass
    with (
        pytest.raises(NoZooKeeperError, match=r"127\.0\.0\.1:1 within"),
        cluster_admin.zookeeper("127.0.0.1:1", timeout_s=0.3),
    ):
        pass


_PARENT = """
import sys, time
from kiel_groups.embedded import Cluster
with Cluster() as cluster:
    print(cluster.zookeeper.pid, cluster.kafka[0].pid, cluster.zookeeper.folder, flush=True)
    time.sleep(600)
"""


def test_children_die_with_a_killed_parent_and_the_next_start_sweeps() -> None:
    """After kill −9 of the parent its servers are gone within 5 s, and the next run removes what it left on disk."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        zookeeper, kafka, folder = parent.stdout.readline().split()
        parent.kill()
    deadline = time.monotonic() + 5
    while is_alive(int(zookeeper)) or is_alive(int(kafka)):
        assert time.monotonic() < deadline, "a server outlived its parent by 5 s"
        time.sleep(0.02)
    left = Path(folder).parent
    assert left.parent == runs_folder()
    assert left.exists()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from kiel_groups.embedded.processes.run_folder import server_folder; server_folder('x')",
        ],
        check=True,
    )
    assert not left.exists()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is dead; it waits for its new parent to look.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_cancelled_start_leaves_nothing_behind() -> None:
    """Cancelling a cluster while it starts ends its servers before the cancellation is passed on."""
    cluster = Cluster()

    async def hold() -> None:
        async with cluster:
            await asyncio.sleep(600)

    holding = asyncio.create_task(hold())
    while not cluster.zookeeper.is_running:  # noqa: ASYNC110 - a process's state has no event to wait for
        await asyncio.sleep(0.01)
    pid = cluster.zookeeper.pid
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert not is_alive(pid)
    assert not any(server.is_running for server in (cluster.zookeeper, *cluster.kafka))
