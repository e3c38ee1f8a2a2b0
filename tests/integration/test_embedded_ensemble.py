"""ZooKeeper servers form an ensemble: they elect a leader, survive the loss of one server, and keep their data."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kiel_groups.clients import BEGINNING, Producer, SingleConsumer
from kiel_groups.embedded import Cluster, ZooKeeperEnsemble, ZooKeeperServer
from kiel_groups.embedded.processes import accepts
from kiel_groups.ops import zookeeper_client
from tests.helpers.waiting import eventually
from tests.helpers.zookeeper_roles import followers_of, leader_of, mode_of, modes_of

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def ensembles() -> Iterator[Callable[[str], ZooKeeperEnsemble]]:
    """Provide a function that returns three servers of a version of ZooKeeper, and starts them at the first use."""
    running: dict[str, ZooKeeperEnsemble] = {}
    with ExitStack() as stack:

        def ensemble_of(version: str) -> ZooKeeperEnsemble:
            if version not in running:
                running[version] = stack.enter_context(ZooKeeperEnsemble(3, version))
            return running[version]

        yield ensemble_of


@pytest.fixture
def ensemble(ensembles: Callable[[str], ZooKeeperEnsemble], zookeeper_version: str) -> ZooKeeperEnsemble:
    """Return three healthy servers, for each version of ZooKeeper. Tests may stop and freeze them."""
    ensemble = ensembles(zookeeper_version)
    asyncio.run(restore(ensemble))
    return ensemble


async def restore(ensemble: ZooKeeperEnsemble) -> None:
    """Resume frozen servers, start servers that are down, and wait until every server has a role."""
    for server in ensemble.servers:
        if server.is_running:
            server.resume()
    await asyncio.gather(*(server.start() for server in ensemble.servers if not server.is_running))

    async def is_complete() -> bool:
        return await modes(ensemble) == ["follower", "follower", "leader"]

    await eventually(is_complete, "every server has a role", 60)


def write(hosts: str, path: str) -> None:
    with zookeeper_client.zookeeper(hosts) as client:
        client.create(path, b"kept")


def read(hosts: str, path: str) -> bytes:
    with zookeeper_client.zookeeper(hosts) as client:
        client.sync(path)
        return bytes(client.get(path)[0])


async def await_mode(server: ZooKeeperServer, mode: str | None) -> None:
    async def is_in_mode() -> bool:
        return await mode_of(server) == mode

    await eventually(is_in_mode, f"{server} is in the mode {mode}")


async def modes(ensemble: ZooKeeperEnsemble) -> list[str | None]:
    return sorted(await modes_of(ensemble), key=str)


async def test_three_servers_have_one_leader_and_the_same_data(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """A write through one server is read through every other."""
    path = f"/{unique('znode')}"
    assert await modes(ensemble) == ["follower", "follower", "leader"]
    assert ensemble.hosts == ",".join(server.hosts for server in ensemble.servers)
    write(ensemble.servers[0].hosts, path)
    assert [read(server.hosts, path) for server in ensemble.servers] == [b"kept"] * 3


async def test_an_ensemble_survives_its_leader(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """After kill −9 of the leader another server leads. The restarted server follows, and has the new writes."""
    path = f"/{unique('znode')}"
    dead = await leader_of(ensemble)
    await dead.kill()
    assert await leader_of(ensemble) is not dead
    write(ensemble.hosts, path)
    await dead.start()
    await await_mode(dead, "follower")
    assert read(dead.hosts, path) == b"kept"


async def test_a_frozen_leader_is_replaced(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """
    While the leader is frozen, the other servers elect a new leader. The former leader follows when it is resumed.
    """
    path = f"/{unique('znode')}"
    frozen = await leader_of(ensemble)
    frozen.pause()
    assert await mode_of(frozen) is None
    assert accepts(frozen.port)
    successor = await leader_of(ensemble)
    write(successor.hosts, path)
    frozen.resume()
    await await_mode(frozen, "follower")
    assert await leader_of(ensemble) is successor
    assert read(frozen.hosts, path) == b"kept"


async def test_a_minority_does_not_serve_until_there_is_a_quorum(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """
    With two of three servers down, the third server does not answer. When one of the two restarts, both running servers
    serve the earlier data.
    """
    path = f"/{unique('znode')}"
    write(ensemble.hosts, path)
    remaining, restarted, _ = ensemble.servers
    for server in ensemble.servers[1:]:
        await server.kill()
    await await_mode(remaining, None)
    assert not await asyncio.to_thread(zookeeper_client.answers, remaining.hosts, timeout_s=0.5)
    await restarted.start()
    assert await leader_of(ensemble) in (remaining, restarted)
    assert read(remaining.hosts, path) == b"kept"


@pytest.mark.slow
async def test_every_restarted_server_keeps_its_port_and_data(ensemble: ZooKeeperEnsemble, unique: Unique) -> None:
    """The servers restart one after another, then all at once. A wiped server gets its data from the others."""
    path = f"/{unique('znode')}"
    write(ensemble.hosts, path)
    before = ensemble.hosts
    for server in ensemble.servers:
        await server.restart()
    await asyncio.gather(*map(ZooKeeperServer.stop, ensemble.servers))
    await asyncio.gather(*map(ZooKeeperServer.start, ensemble.servers))
    wiped = ensemble.servers[0]
    await wiped.stop()
    shutil.rmtree(wiped.folder / "data")
    await wiped.start()
    assert ensemble.hosts == before
    assert [read(server.hosts, path) for server in ensemble.servers] == [b"kept"] * 3


async def test_a_cluster_runs_on_an_ensemble(start_cluster: Callable[..., Cluster], zookeeper_version: str) -> None:
    """A broker registers under a chroot. After a kill of the ensemble's leader it serves a new topic."""
    # An election took up to 20 s. A broker of 0.8 whose session ends meanwhile leads nothing for a while.
    lasting = {"max_session_timeout_ms": 60_000, "broker_overrides": {"zookeeper.session.timeout.ms": 60_000}}
    cluster = start_cluster(zookeeper=zookeeper_version, zookeepers=3, chroot="/a/chroot", **lasting)
    assert cluster.zk_hosts == f"{cluster.ensemble.hosts}/a/chroot"
    await (await leader_of(cluster.ensemble)).kill()
    await leader_of(cluster.ensemble)
    await cluster.create_topic("t", 2)
    async with Producer(cluster.brokers) as producer:
        await producer.produce("t", b"value")
    async with SingleConsumer(cluster.brokers) as consumer, asyncio.timeout(60):
        await consumer.subscribe("t", start=BEGINNING)
        assert (await anext(consumer)).value == b"value"


async def test_a_single_server_is_an_ensemble_of_one(cluster_39: Cluster) -> None:
    """The mode of a server without peers is standalone, and it counts as the leader."""
    assert cluster_39.ensemble.servers == [cluster_39.zookeeper]
    assert await mode_of(cluster_39.zookeeper) == "standalone"
    assert await leader_of(cluster_39.ensemble) is cluster_39.zookeeper
    assert await followers_of(cluster_39.ensemble) == []


@pytest.mark.slow
def test_a_closed_ensemble_starts_again() -> None:
    """A closed ensemble has released its ports. It starts again, possibly on other ports."""
    ensemble = ZooKeeperEnsemble(3)
    with ExitStack() as stack:
        stack.enter_context(ensemble)
        stack.pop_all().close()
        assert not any(server.is_running for server in ensemble.servers)
        stack.enter_context(ensemble)
        write(ensemble.hosts, "/written")
