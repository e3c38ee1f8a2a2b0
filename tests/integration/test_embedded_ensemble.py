"""Several ZooKeeper servers are one: they elect, outlive the loss of one of them, and come back on their data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kiel_groups.admin import cluster_admin
from kiel_groups.clients import BEGINNING, Producer, SingleConsumer
from kiel_groups.embedded import Cluster, ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.embedded.processes.ports import accepts

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def ensembles() -> Iterator[Callable[[str], ZooKeeperEnsemble]]:
    """Three servers for each version of ZooKeeper, started when first asked for."""
    running: dict[str, ZooKeeperEnsemble] = {}
    with ExitStack() as stack:

        def ensemble_of(version: str) -> ZooKeeperEnsemble:
            if version not in running:
                running[version] = stack.enter_context(ZooKeeperEnsemble(3, version))
            return running[version]

        yield ensemble_of


@pytest.fixture
def ensemble(ensembles: Callable[[str], ZooKeeperEnsemble], zookeeper_version: str) -> ZooKeeperEnsemble:
    """Three servers to maltreat, once for every version of ZooKeeper; whole again, whatever the last test left."""
    ensemble = ensembles(zookeeper_version)
    asyncio.run(whole(ensemble))
    return ensemble


async def whole(ensemble: ZooKeeperEnsemble) -> None:
    """Thaw and start what is frozen or down; wait until every server has its role."""
    for server in ensemble.servers:
        if server.is_running:
            server.resume()
    await asyncio.gather(*(server.start() for server in ensemble.servers if not server.is_running))
    async with asyncio.timeout(60):
        while await modes(ensemble) != ["follower", "follower", "leader"]:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.05)


def write(hosts: str, path: str) -> None:
    with cluster_admin.zookeeper(hosts) as client:
        client.create(path, b"kept")


def read(hosts: str, path: str) -> bytes:
    with cluster_admin.zookeeper(hosts) as client:
        client.sync(path)
        return bytes(client.get(path)[0])


async def modes(ensemble: ZooKeeperEnsemble) -> list[str | None]:
    return sorted(await asyncio.gather(*(server.mode() for server in ensemble.servers)), key=str)


async def test_three_servers_have_one_leader_and_one_truth(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """What is written through one server is read through every other, and one of them leads."""
    path = f"/{unique('znode')}"
    assert await modes(ensemble) == ["follower", "follower", "leader"]
    assert ensemble.hosts == ",".join(server.hosts for server in ensemble.servers)
    write(ensemble.servers[0].hosts, path)
    assert [read(server.hosts, path) for server in ensemble.servers] == [b"kept"] * 3


async def test_an_ensemble_outlives_its_leader(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """After kill −9 of the leader another leads, writes go on, and the dead one comes back as a follower with them."""
    path = f"/{unique('znode')}"
    dead = await ensemble.leader()
    await dead.kill()
    assert await ensemble.leader() is not dead
    write(ensemble.hosts, path)
    await dead.start()
    assert await dead.mode() == "follower"
    assert read(dead.hosts, path) == b"kept"


async def test_a_frozen_leader_is_replaced(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """Frozen, it says nothing and the others elect one of themselves; thawed, it follows."""
    path = f"/{unique('znode')}"
    frozen = await ensemble.leader()
    frozen.pause()
    assert await frozen.mode() is None
    assert accepts(frozen.port)
    successor = await ensemble.leader()
    write(successor.hosts, path)
    frozen.resume()
    async with asyncio.timeout(30):
        while await frozen.mode() != "follower":  # noqa: ASYNC110 - a server's role has no event to wait for
            await asyncio.sleep(0.05)
    assert await ensemble.leader() is successor
    assert read(frozen.hosts, path) == b"kept"


async def test_a_minority_serves_nobody_until_there_is_a_quorum_again(
    ensemble: ZooKeeperEnsemble, unique: Unique
) -> None:
    """With two of three gone the third answers nobody; when one of them is back, both serve what was written before."""
    path = f"/{unique('znode')}"
    write(ensemble.hosts, path)
    left, back, _ = ensemble.servers
    for server in ensemble.servers[1:]:
        await server.kill()
    async with asyncio.timeout(30):
        while await left.mode() is not None:  # noqa: ASYNC110 - a server's role has no event to wait for
            await asyncio.sleep(0.05)
    assert not await asyncio.to_thread(cluster_admin.answers, left.hosts, timeout_s=0.5)
    await back.start()
    assert await ensemble.leader() in (left, back)
    assert read(left.hosts, path) == b"kept"


async def test_every_server_comes_back_on_its_port_and_data(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """One after another, then all at once; a server that was wiped gets everything from the others."""
    path = f"/{unique('znode')}"
    write(ensemble.hosts, path)
    before = ensemble.hosts
    for server in ensemble.servers:
        await server.restart()
    await asyncio.gather(*map(ZooKeeperServer.stop, ensemble.servers))
    await asyncio.gather(*map(ZooKeeperServer.start, ensemble.servers))
    wiped = ensemble.servers[0]
    await wiped.stop()
    await wiped.wipe()
    await wiped.start()
    assert ensemble.hosts == before
    assert [read(server.hosts, path) for server in ensemble.servers] == [b"kept"] * 3


async def test_a_cluster_stands_on_an_ensemble(start_cluster: Callable[..., Cluster], zookeeper_version: str) -> None:
    """A broker registers under a chroot, outlives the leader of the ensemble, and takes a new topic after that."""
    cluster = start_cluster(zookeeper=zookeeper_version, zookeepers=3, chroot="/a/chroot")
    assert cluster.zk_hosts == f"{cluster.ensemble.hosts}/a/chroot"
    await (await cluster.ensemble.leader()).kill()
    await cluster.create_topic("t", 2)
    async with Producer(cluster.brokers) as producer:
        await producer.produce("t", b"value")
    async with SingleConsumer(cluster.brokers) as consumer, asyncio.timeout(60):
        await consumer.subscribe("t", start=BEGINNING)
        assert (await anext(consumer)).value == b"value"


async def test_a_server_by_itself_is_an_ensemble_of_one(cluster_39: Cluster) -> None:
    """Without peers it is stand-alone and leads itself."""
    assert cluster_39.ensemble.servers == [cluster_39.zookeeper]
    assert await cluster_39.zookeeper.mode() == "standalone"
    assert await cluster_39.ensemble.leader() is cluster_39.zookeeper
    assert await cluster_39.ensemble.followers() == []


def test_ports_of_a_closed_ensemble_are_given_back() -> None:
    """The same ensemble starts again on ports of its own choice."""
    ensemble = ZooKeeperEnsemble(3)
    with ExitStack() as stack:
        stack.enter_context(ensemble)
        stack.pop_all().close()
        assert not any(server.is_running for server in ensemble.servers)
        stack.enter_context(ensemble)
        write(ensemble.hosts, "/written")
