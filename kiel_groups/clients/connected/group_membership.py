"""The member of a consumer, whatever coordinates its group: ZooKeeper, or the brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from kiel_groups.allocators import Allocator, round_robin
from kiel_groups.allocators.assignors import Assignor
from kiel_groups.clients.coordinated.consumer_member import ConsumerMember
from kiel_groups.clients.coordinated.offset_reads import read_offsets
from kiel_groups.clients.coordinated.stored_in_kafka import check_kafka_offsets
from kiel_groups.clients.coordinator.coordinator_brokers import CoordinatorBrokers
from kiel_groups.clients.coordinator.group_versions import GroupVersions
from kiel_groups.clients.coordinator.member_hooks import CoordinatedContext
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import check_offset_api, fetch_offsets
from kiel_groups.config import (
    BROKER_V0,
    BROKER_V1,
    ZOOKEEPER_STORE,
    CoordinatorConfig,
    GroupConfig,
    HostPort,
    ZooKeeperConfig,
)
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.partition_handler import PartitionHandler
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.group.member.pending_reset import PendingReset
from kiel_groups.group.member.subscription import SubscriptionState
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.offsets_v0 import FetchedOffset
from kiel_groups.wire.groups.coordinator_offsets import OffsetFetchRequestV1

__all__ = ["BrokerCoordination", "Coordination", "Member", "Process", "ZooKeeperCoordination"]


class Member(Protocol):
    """The member of a consumer in its group; ``GroupMember`` and ``ConsumerMember`` document the methods."""

    @property
    def member_id(self) -> str | None: ...
    @property
    def leads(self) -> bool: ...
    @property
    def settled(self) -> bool: ...
    async def start(self) -> None: ...
    def check_subscription(self, topics: Collection[str]) -> None: ...
    async def resubscribe(self) -> None: ...
    async def commit_on_session(self, metadata: str = "") -> frozenset[TopicPartition]: ...
    async def commit_chosen(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]: ...
    async def partitions_with_offsets(self) -> list[TopicPartition]: ...
    async def stored_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]: ...
    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None: ...
    async def confirm_leaders(self) -> None: ...
    async def brokers(self) -> list[HostPort]: ...
    def abandon(self, timeout_s: float) -> None: ...
    async def close(self, limit: CloseLimit | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Process:
    """
    What a member needs of its consumer.

    ``on_failure`` is called with the error of a member that stops for good.
    """

    group: GroupConfig
    cluster: ClusterMetadata
    handler: PartitionHandler
    subscription: SubscriptionState
    on_failure: Callable[[KielGroupsError], None]
    metrics: Metrics
    runtime: Runtime


class Coordination(Protocol):
    """What coordinates a group: it makes members, and knows which questions its brokers answer."""

    def new_member(self, process: Process) -> Member:
        """Return a member that has not started."""

    async def check_brokers(self, process: Process) -> None:
        """
        Check that the connected brokers can do their part.

        Raises:
            ConfigError: They cannot.
            NoBrokersError: No broker answered.
        """

    async def group_offsets(
        self, cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """
        Read a group's offsets without a member.

        Raises:
            ConfigError: The brokers cannot return them, as those of Kafka 0.8.0.
            KielGroupsError: They cannot be read.
        """


@dataclass(frozen=True, slots=True)
class ZooKeeperCoordination:
    """
    The members coordinate themselves through ZooKeeper.

    ``allocator`` computes the assignments while this process leads, and ``store`` is where the group's offsets are.
    """

    zookeeper: ZooKeeperConfig
    allocator: Allocator = round_robin
    store: str = ZOOKEEPER_STORE

    def new_member(self, process: Process) -> Member:
        """Return a member with a session in ZooKeeper."""
        context = ProcessContext(process.group, self.zookeeper, process.metrics, process.runtime)
        return GroupMember(context, process.handler, process.subscription, self.allocator, process.on_failure)

    async def check_brokers(self, process: Process) -> None:
        """Check that brokers store offsets where they are to do so."""
        if process.group.store == BROKER_V0:
            await check_offset_api(process.cluster, process.group.group)
        if process.group.store == BROKER_V1:
            await check_kafka_offsets(process.cluster, process.group.group)

    async def group_offsets(
        self, cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ask the brokers, which read the offset znodes, or Kafka; raises as ``Coordination.group_offsets``."""
        if self.store == BROKER_V1:
            return await _offsets_in_kafka(cluster, group, partitions)
        try:
            return await fetch_offsets(cluster, group, partitions)
        except KielGroupsError as error:
            try:
                await check_offset_api(cluster, group)
            except ConfigError:
                raise ConfigError(
                    "assign(): these brokers cannot return the group's offsets, as those of Kafka 0.8.0; seek() to an"
                    " offset in each partition"
                ) from error
            raise


@dataclass(frozen=True, slots=True)
class BrokerCoordination:
    """
    The brokers coordinate the members, from Kafka 0.9 on.

    ``assignors`` are what a member offers, the preferred one first.
    """

    timing: CoordinatorConfig
    assignors: tuple[Assignor, ...]
    versions: GroupVersions

    def new_member(self, process: Process) -> Member:
        """Return a member that the group's coordinator will know."""
        context = CoordinatedContext(
            group=process.group,
            timing=self.timing,
            transport=CoordinatorBrokers(process.cluster, process.group.group),
            versions=self.versions,
            metrics=process.metrics,
            runtime=process.runtime,
        )
        return ConsumerMember(
            context, process.handler, process.subscription, process.cluster, self.assignors, process.on_failure
        )

    async def check_brokers(self, process: Process) -> None:
        """Find out what the brokers know; raises as ``GroupVersions.probe``."""
        await self.versions.probe(process.cluster)
        process.cluster.asks_ids = self.versions.has_topic_ids

    async def group_offsets(
        self, cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ask the group's coordinator; raises as ``read_offsets``."""
        return await _offsets_in_kafka(cluster, group, partitions)


async def _offsets_in_kafka(
    cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    transport = CoordinatorBrokers(cluster, group)
    timeout_s = cluster.config.request_timeout_ms / 1000

    async def send(request: OffsetFetchRequestV1) -> Mapping[TopicPartition, FetchedOffset]:
        return await transport.send(await transport.find(), request, timeout_s, aside=True)

    return await read_offsets(group, partitions, send)
