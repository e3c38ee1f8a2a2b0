"""The embedded servers that tests and the demo use, on both versions of ZooKeeper."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster, KafkaBroker, ZooKeeperServer, processes
from kiel_groups.embedded.processes import Server, accepts, runs_folder
from kiel_groups.errors import ChrootMissingError, ConfigError, NoZooKeeperError, ServerError, UnknownTopicError
from kiel_groups.ops import zookeeper_client
from kiel_groups.ops.actions.topics import partitions_of
from tests.helpers.waiting import eventually, eventually_blocking

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def partitions(cluster: Cluster, topic: str) -> int:
    with zookeeper_client.zookeeper(cluster.zk_hosts) as client:
        return len(partitions_of(client, topic))


async def test_topics_are_created_grown_and_deleted(cluster: Cluster, unique: Unique) -> None:
    """The topic has the given number of partitions, more after it was grown, and does not exist after its deletion."""
    topic = unique("topic")
    await cluster.create_topic(topic, 3)
    assert partitions(cluster, topic) == 3
    await cluster.grow_topic(topic, 5)
    assert partitions(cluster, topic) == 5
    await cluster.delete_topic(topic)
    with pytest.raises(UnknownTopicError, match=topic):
        partitions(cluster, topic)


async def test_invalid_topics_are_refused(cluster_39: Cluster, unique: Unique) -> None:
    """Each invalid argument raises a ConfigError that names the argument."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    for call, message in (
        (cluster_39.create_topic(topic, 2), "exists already"),
        (cluster_39.create_topic(unique("topic"), 2, replication=2), "expected at most 1"),
        (cluster_39.create_topic(unique("topic"), 0), "expected 1 to 50,000"),
        (cluster_39.create_topic("a/b", 1), "not a legal name"),
        (cluster_39.grow_topic(topic, 2), "has 2 partitions"),
        (cluster_39.delete_topic(unique("topic")), "does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            await call


async def stop_kill_and_freeze(server: Server) -> None:
    """Stop, kill, freeze and restart the server. Check each time that it serves again afterwards, on the same port."""
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


async def test_a_restarted_zookeeper_keeps_its_port_and_data(
    start_zookeeper: Callable[..., ZooKeeperServer], zookeeper_version: str
) -> None:
    """ZooKeeper keeps its port and data after a stop, a kill −9, a freeze and a restart."""
    server = start_zookeeper(zookeeper_version)
    with zookeeper_client.zookeeper(server.hosts) as client:
        client.create("/before", b"kept")
    await stop_kill_and_freeze(server)
    with zookeeper_client.zookeeper(server.hosts) as client:
        assert client.get("/before")[0] == b"kept"


async def test_a_restarted_broker_keeps_its_data(start_cluster: Callable[..., Cluster]) -> None:
    """The broker keeps its topics after a stop, a kill −9 and a freeze. Servers whose data was deleted begin anew."""
    cluster = start_cluster(chroot="/a/chroot")
    await cluster.create_topic("before", 2)
    await stop_kill_and_freeze(cluster.kafka[0])
    assert partitions(cluster, "before") == 2
    await cluster.create_topic("after", 2)
    for server in (cluster.kafka[0], cluster.zookeeper):
        await server.stop()
        shutil.rmtree(server.folder / "data")
    await cluster.zookeeper.start()
    zookeeper_client.create_chroot(cluster.zk_hosts)
    await cluster.kafka[0].start()
    await cluster.create_topic("before", 1)


async def test_a_paused_zookeeper_does_not_answer_until_it_is_resumed(
    start_zookeeper: Callable[..., ZooKeeperServer],
) -> None:
    """After SIGSTOP the port accepts connections, but the server does not answer until SIGCONT."""
    server = start_zookeeper()
    server.pause()
    assert accepts(server.port)
    assert not await asyncio.to_thread(zookeeper_client.answers, server.hosts, timeout_s=0.5)
    server.resume()
    assert await asyncio.to_thread(zookeeper_client.answers, server.hosts, timeout_s=5)


def test_a_server_that_fails_at_its_start_shows_the_end_of_its_log(cluster_39: Cluster) -> None:
    """The error of a broker with an invalid setting contains Kafka's error."""
    broker = KafkaBroker(cluster_39.zk_hosts, 7, overrides={"num.io.threads": "many"})
    with (
        pytest.raises(ServerError, match=r"(?s)kafka-7 ended at its start with status.*NumberFormatException"),
        broker,
    ):
        pass


def test_a_port_that_another_process_takes_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process takes the port between its choice and the bind, the server starts on another port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:

        class Loser(processes.ReservedPort):
            def __init__(self, number: int = 0) -> None:
                super().__init__(number)
                monkeypatch.undo()
                self.number = taken.getsockname()[1]

        monkeypatch.setattr(processes, "ReservedPort", Loser)
        with ZooKeeperServer() as zookeeper:
            assert zookeeper.port != taken.getsockname()[1]


def test_the_port_of_a_dead_server_stays_reserved(start_zookeeper: Callable[..., ZooKeeperServer]) -> None:
    """While a server is down, clients are refused, and no other socket gets its port."""
    server = start_zookeeper()
    asyncio.run(server.kill())
    for _ in range(2000):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", server.port)) != 0
    asyncio.run(server.start())


def test_a_missing_zookeeper_and_a_missing_chroot_are_different_errors(cluster_39: Cluster) -> None:
    """The errors for a missing ZooKeeper and for a missing chroot differ. Each error names the address."""
    with (
        pytest.raises(ChrootMissingError, match="/missing does not exist"),
        zookeeper_client.zookeeper(f"{cluster_39.zk_hosts}/missing"),
    ):
        pass
    with (
        pytest.raises(NoZooKeeperError, match=r"127\.0\.0\.1:1 within"),
        zookeeper_client.zookeeper("127.0.0.1:1", timeout_s=0.3),
    ):
        pass


_PARENT = """
import sys, time
from kiel_groups.embedded import Cluster
with Cluster() as cluster:
    print(cluster.zookeeper.pid, cluster.kafka[0].pid, cluster.zookeeper.folder, flush=True)
    time.sleep(600)
"""


def test_servers_end_with_a_killed_parent_and_the_next_start_deletes_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After kill −9 of the parent its servers end within 5 s. The next run deletes their files."""
    # Servers that other tests start would delete the files, too.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        zookeeper, kafka, folder = parent.stdout.readline().split()
        parent.kill()
    eventually_blocking(
        lambda: not is_alive(int(zookeeper)) and not is_alive(int(kafka)), "the servers end with their parent", 5
    )
    left = Path(folder).parent
    assert left.parent == tmp_path / runs_folder().name
    assert left.exists()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from kiel_groups.embedded.processes import server_folder; server_folder('x')",
        ],
        check=True,
    )
    assert not left.exists()


def is_alive(pid: int) -> bool:
    try:
        # A zombie has ended, although its parent has not collected its exit status yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_cancelled_start_leaves_nothing_behind() -> None:
    """If the start is cancelled, the servers end before the cancellation reaches the caller."""
    cluster = Cluster()

    async def hold() -> None:
        async with cluster:
            await asyncio.sleep(600)

    holding = asyncio.create_task(hold())
    await eventually(lambda: cluster.zookeeper.is_running, "ZooKeeper is being started")
    pid = cluster.zookeeper.pid
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert not is_alive(pid)
    assert not any(server.is_running for server in (cluster.zookeeper, *cluster.kafka))
