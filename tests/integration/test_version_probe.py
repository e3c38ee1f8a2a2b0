"""What the search for the brokers' versions costs other clients."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, HostPort, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.wire.group_requests import ListGroupsRequest

pytestmark = pytest.mark.integration


async def test_the_search_for_versions_costs_no_other_client_a_request(coordinating_cluster: Cluster) -> None:
    """
    Six busy clients get all their answers while another one looks for the broker's versions forty times. A broker of
    0.9 that is asked for its versions drops the requests that it takes together with this one.
    """
    (address,) = parse_hosts(coordinating_cluster.brokers, 9092, "brokers")
    over = False

    def be_busy(address: HostPort) -> int:
        connection, count = HeartbeatConnection(BrokerConfig(hosts=(), client_id="busy")), 0
        while not over:
            connection.request(address, ListGroupsRequest(), 10.0)
            count += 1
        connection.close()
        return count

    busy = [asyncio.create_task(asyncio.to_thread(be_busy, address)) for _ in range(6)]
    cluster = ClusterMetadata(BrokerConfig(hosts=(address,)), Metrics())
    try:
        await cluster.refresh((), "test")
        for _ in range(40):
            await GroupVersions().probe(cluster)
    finally:
        over = True
        answered = await asyncio.gather(*busy)
        cluster.close()
    assert min(answered) > 0
