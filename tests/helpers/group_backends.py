"""
What coordinates the groups of a test and stores their offsets, and fixtures with which a test runs in each way.

A test of the consumer's behaviour takes a ``GroupBackend`` in place of a cluster, makes its consumers by it, and asks
it for what a group has stored. Only the backend knows of znodes, or of requests to a coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from kiel_groups import GroupedConsumer, sync
from kiel_groups.config import BrokerConfig, HostPort, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.brokers.transport import HeartbeatConnection
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import DescribeGroupsRequest, FindCoordinatorRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.cluster_data import members, stored_offsets, zookeeper
from tests.helpers.members import LASTING
from tests.helpers.servers import COORDINATING_KAFKAS, ZOOKEEPERS, played_kafkas
from tests.helpers.waiting import eventually, eventually_blocking

__all__ = ["GroupBackend", "backend", "every_backend", "release_backend", "store_backend", "zookeeper_backend"]

T = TypeVar("T")

#: More partitions than any topic of these tests has.
_MOST_PARTITIONS = 16

#: How long a broker may take for an answer, in seconds.
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class GroupBackend:
    """A cluster, what coordinates groups on it, and how their offsets are stored."""

    cluster: Cluster
    coordination: str = "zookeeper"
    store: str = "zookeeper"

    @property
    def by_brokers(self) -> bool:
        """Whether brokers coordinate the groups."""
        return self.coordination == "brokers"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a consumer that choose this backend. Frequent heartbeats make rebalances quick."""
        if self.by_brokers:
            return {"coordination": "brokers", "zk_hosts": None, "heartbeat_interval_ms": 100, "retry_backoff_ms": 20}
        return {"zk_hosts": self.cluster.zk_hosts, "store": self.store, **LASTING}

    def consumer(self, group: str, **settings: Any) -> GroupedConsumer:
        """Return a consumer that is not connected."""
        return GroupedConsumer(group=group, **{"brokers": self.cluster.brokers, **self.settings, **settings})

    def blocking(self, group: str, **settings: Any) -> sync.GroupedConsumer:
        """Return a blocking consumer that is not connected."""
        arguments = {"brokers": self.cluster.brokers, **self.settings, **settings}
        return sync.GroupedConsumer(group=group, **arguments)  # type: ignore[call-arg]

    # ------------------------------------------------------------------ what is stored

    def stored(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets by partition."""
        if not self.by_brokers:
            with zookeeper(self.cluster) as client:
                return stored_offsets(client, group, topic)
        partitions = tuple(TopicPartition(topic, number) for number in range(_MOST_PARTITIONS))
        found = self._ask(group, OffsetFetchRequestV1(group, partitions))
        return {each.partition: value.offset for each, value in found.items() if value.offset >= 0}

    def committed(self, group: str, topic: str) -> int:
        """Return the number of records that a group has committed in all partitions, if their logs start at 0."""
        return sum(self.stored(group, topic).values())

    async def await_committed(self, group: str, topic: str, total: int) -> None:
        """Wait until the committed offsets add up to ``total``."""
        await eventually(lambda: self.committed(group, topic) == total, f"offsets add up to {total}")

    def store_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Store offsets of a group without members."""
        if not self.by_brokers:
            with zookeeper(self.cluster) as client:
                for number, offset in offsets.items():
                    path = GroupLayout(group).offset(TopicPartition(topic, number))
                    client.create(path, b"%d" % offset, makepath=True)
            return
        values = {TopicPartition(topic, number): OffsetAndMetadata(offset, "") for number, offset in offsets.items()}
        request = OffsetCommitRequestV2(group, -1, "", values)

        def are_stored() -> bool:
            return all(code == NO_ERROR for code in self._ask(group, request).values())

        eventually_blocking(are_stored, "the coordinator stores the offsets")

    def members(self, group: str) -> list[str]:
        """Return the ids of a group's members."""
        if not self.by_brokers:
            return members(self.cluster, group)
        (described,) = self._ask(group, DescribeGroupsRequest((group,)))
        return [member.member_id for member in described.members]

    def _ask(self, group: str, request: Request[T]) -> T:
        """Send a request to the group's coordinator, and return its answer."""
        connection = HeartbeatConnection(BrokerConfig(hosts=(), client_id="test"))
        (broker,) = parse_hosts(self.cluster.brokers[:1], 9092, "brokers")
        try:
            by_s = time.monotonic() + 60
            while (found := connection.request(broker, FindCoordinatorRequest(group), _ANSWER_S)).error != NO_ERROR:
                assert time.monotonic() < by_s, f"no coordinator: {found.error}"
                time.sleep(0.05)
            return connection.request(HostPort(found.broker.host, found.broker.port), request, _ANSWER_S)
        finally:
            connection.close()


def _backend(name: str, clusters: Callable[..., Cluster]) -> GroupBackend:
    """Return the backend of a parameter: a version of ZooKeeper and a store, or the release of coordinating brokers."""
    if name not in COORDINATING_KAFKAS:
        zookeeper, _, store = name.partition(" ")
        return GroupBackend(clusters(zookeeper), "zookeeper", store)
    return GroupBackend(clusters("3.9.5" if kafka_release(name).uses_zookeeper else None, name), "brokers")


#: Most tests run on the first of the played releases.
_PLAYED = played_kafkas()


@pytest.fixture(params=["3.9.5 zookeeper", *_PLAYED[:1]])
def backend(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> GroupBackend:
    """Run the test in groups that ZooKeeper coordinates, and in groups that brokers coordinate."""
    return _backend(request.param, shared_clusters)


@pytest.fixture(params=["3.9.5 zookeeper", "3.9.5 broker-v0", *_PLAYED[:1]])
def store_backend(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> GroupBackend:
    """Run the test as ``backend`` does, and with each store of groups that ZooKeeper coordinates."""
    return _backend(request.param, shared_clusters)


@pytest.fixture(params=[*(f"{version} zookeeper" for version in ZOOKEEPERS), "3.9.5 broker-v0", *_PLAYED[:1]])
def every_backend(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> GroupBackend:
    """Run the test as ``store_backend`` does, and with each version of ZooKeeper."""
    return _backend(request.param, shared_clusters)


@pytest.fixture(params=[*(f"{version} zookeeper" for version in ZOOKEEPERS), *_PLAYED[:1]])
def zookeeper_backend(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> GroupBackend:
    """Run the test as ``backend`` does, and with each version of ZooKeeper."""
    return _backend(request.param, shared_clusters)


@pytest.fixture(params=["3.9.5 zookeeper", *_PLAYED])
def release_backend(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> GroupBackend:
    """Run the test as ``backend`` does, with each played release whose brokers coordinate groups."""
    return _backend(request.param, shared_clusters)
