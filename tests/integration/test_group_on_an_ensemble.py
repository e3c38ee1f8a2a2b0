"""A group on three ZooKeeper servers: a member outlives the one that it is connected to."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster, ZooKeeperServer
from tests.integration.members import Member, eventually, group_of, owners, produce, zookeeper

pytestmark = pytest.mark.integration


def server_of(cluster: Cluster, member: Member) -> ZooKeeperServer:
    """The server that a member's session is connected to."""
    session = member.consumer._consuming.member._membership.session  # type: ignore[union-attr]
    port = session.client._connection._socket.getpeername()[1]
    assert cluster.ensemble is not None
    return next(server for server in cluster.ensemble.servers if server.port == port)


async def test_a_member_outlives_its_servers(start_cluster: Callable[..., Cluster], zookeeper_version: str) -> None:
    """One freezes, the next is killed: session and claims are the same afterwards, on another server; records flow."""
    # A lease of 15 s: where the lost server led, the others need 2 s to miss it, and then elect, on a busy machine.
    session_timeout_ms = 30_000
    cluster = start_cluster(zookeeper=zookeeper_version, zookeepers=3, max_session_timeout_ms=session_timeout_ms)
    await cluster.create_topic("t", 4)
    async with group_of(cluster, "g", ["t"], session_timeout_ms=session_timeout_ms) as group:
        first, second = await group.join(), await group.join()
        await group.balanced("t", 4)
        ids = [first.consumer.member_id, second.consumer.member_id]
        with zookeeper(cluster) as client:
            before = owners(client, "g", "t")
        values: list[bytes] = []
        for lose in (ZooKeeperServer.pause, kill):
            server = server_of(cluster, first)
            suspensions = first.consumer.metrics.total("zookeeper_suspensions")
            lose(server)
            await eventually(
                lambda seen=suspensions: first.consumer.metrics.total("zookeeper_suspensions") > seen, "it is noticed"
            )
            await eventually(lambda lost=server: server_is_another(cluster, first, lost), "another server is found")
            values += await produce(cluster, "t", 100, first=len(values))
            assert await group.delivered(values) == Counter(values)
            assert [first.consumer.member_id, second.consumer.member_id] == ids
            assert first.consumer.metrics.total("sessions_lost") == 0
            if server.is_running:
                server.resume()
                await back_in_the_quorum(server)
        with zookeeper(cluster) as client:
            assert owners(client, "g", "t") == before


def kill(server: ZooKeeperServer) -> None:
    os.kill(server.pid, signal.SIGKILL)


async def back_in_the_quorum(server: ZooKeeperServer) -> None:
    async with asyncio.timeout(60):
        while await server.mode() is None:  # noqa: ASYNC110 - a server's role has no event to wait for
            await asyncio.sleep(0.05)


def server_is_another(cluster: Cluster, member: Member, server: ZooKeeperServer) -> bool:
    session = member.consumer._consuming.member._membership.session  # type: ignore[union-attr]
    return bool(session.connected) and server_of(cluster, member) is not server
