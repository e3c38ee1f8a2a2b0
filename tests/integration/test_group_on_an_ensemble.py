"""A group on three ZooKeeper servers: a member outlives the one that it is connected to."""

from __future__ import annotations

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


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_a_member_outlives_its_server(
    start_cluster: Callable[..., Cluster], zookeeper_version: str, fault: str
) -> None:
    """Its session and its claims are the same afterwards, on another server, and records flow on."""
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
        server = server_of(cluster, first)
        try:
            if fault == "killed":
                await server.kill()
            else:
                server.pause()
            metrics = first.consumer.metrics
            await eventually(lambda: metrics.total("zookeeper_suspensions"), "the break is noticed")
            await eventually(lambda: server_is_another(cluster, first, server), "another server is found")
            values = await produce(cluster, "t", 100)
            assert await group.delivered(values) == Counter(values)
            assert [first.consumer.member_id, second.consumer.member_id] == ids
            assert metrics.total("sessions_lost") == 0
        finally:
            if fault == "frozen":
                server.resume()
        with zookeeper(cluster) as client:
            assert owners(client, "g", "t") == before


def server_is_another(cluster: Cluster, member: Member, server: ZooKeeperServer) -> bool:
    session = member.consumer._consuming.member._membership.session  # type: ignore[union-attr]
    return bool(session.connected) and server_of(cluster, member) is not server
