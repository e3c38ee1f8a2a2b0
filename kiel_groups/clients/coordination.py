"""Create a consumer's member, for a group that is coordinated through ZooKeeper or by brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

from kiel_groups.allocators import Allocator, allocator_of, round_robin
from kiel_groups.allocators.assignors import Assignor, AssignorChoice, assignors_of, with_capacity
from kiel_groups.broker_security import broker_security
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_requests import check_offset_api, fetch_offsets
from kiel_groups.config import (
    BROKER_V0,
    BROKER_V1,
    ZOOKEEPER_STORE,
    BrokerConfig,
    CoordinatorConfig,
    GroupConfig,
    ZooKeeperConfig,
)
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.members.brokers.consumer_member import ConsumerMember
from kiel_groups.members.brokers.hooks import CoordinatedContext
from kiel_groups.members.brokers.offset_requests import check_kafka_offsets, read_offsets
from kiel_groups.members.brokers.transport import ClusterTransport
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.offsets import FetchedOffset, OffsetFetchRequestV1
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.tasks import ProcessContext

#: The member of a consumer in its group.
Member: TypeAlias = GroupMember | ConsumerMember


@dataclass(frozen=True, slots=True)
class Process:
    """
    The parts of a consumer that its member uses.

    The member calls ``on_failure`` with the error if the member stops for good.
    """

    group: GroupConfig
    cluster: ClusterMetadata
    handler: PartitionHandler
    subscription: SubscriptionState
    on_failure: Callable[[KielGroupsError], None]
    metrics: Metrics
    runtime: Runtime


@dataclass(frozen=True, slots=True)
class ZooKeeperCoordination:
    """
    The coordination of a group whose members coordinate themselves through ZooKeeper.

    ``allocator`` computes the assignments while this member is the leader. ``store`` is where the group's offsets are.
    """

    zookeeper: ZooKeeperConfig
    allocator: Allocator = round_robin
    store: str = ZOOKEEPER_STORE

    def new_member(self, process: Process) -> GroupMember:
        """Create a member that joins the group through a session in ZooKeeper."""
        context = ProcessContext(process.group, self.zookeeper, process.metrics, process.runtime)
        return GroupMember(
            context, process.handler, process.subscription, self.allocator, process.on_failure, process.cluster
        )

    async def check_brokers(self, process: Process) -> None:
        """
        Check that the brokers can store offsets in the place that the settings name.

        Raises:
            ConfigError: The brokers cannot store offsets there.
            NoBrokersError: No broker answered.
        """
        if process.group.store == BROKER_V0:
            await check_offset_api(process.cluster, process.group.group)
        if process.group.store == BROKER_V1:
            await check_kafka_offsets(process.cluster, process.group.group)

    async def group_offsets(
        self, cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """
        Read a group's offsets without a member: the brokers read them from the offset znodes or from Kafka.

        Raises:
            ConfigError: The brokers do not support offset requests, as brokers of Kafka 0.8.0.
            KielGroupsError: The offsets cannot be read.
        """
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
    The coordination of a group by brokers, from Kafka 0.9 on.

    ``assignors`` are the assignors that a member offers, the preferred assignor first.
    """

    timing: CoordinatorConfig
    assignors: tuple[Assignor, ...]
    versions: GroupVersions

    def new_member(self, process: Process) -> ConsumerMember:
        """Create a member that joins the group through the group's coordinator."""
        context = CoordinatedContext(
            group=process.group,
            timing=self.timing,
            transport=ClusterTransport(process.cluster, process.group.group),
            versions=self.versions,
            metrics=process.metrics,
            runtime=process.runtime,
        )
        return ConsumerMember(
            context, process.handler, process.subscription, process.cluster, self.assignors, process.on_failure
        )

    async def check_brokers(self, process: Process) -> None:
        """Ask the brokers which requests they support. Raise the errors of ``GroupVersions.probe``."""
        await self.versions.probe(process.cluster)
        process.cluster.asks_ids = self.versions.has_topic_ids

    async def group_offsets(
        self, cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Read a group's offsets from its coordinator, without a member. Raise the errors of ``read_offsets``."""
        return await _offsets_in_kafka(cluster, group, partitions)


async def _offsets_in_kafka(
    cluster: ClusterMetadata, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    transport = ClusterTransport(cluster, group)
    timeout_s = cluster.config.request_timeout_ms / 1000

    async def send(request: OffsetFetchRequestV1) -> Mapping[TopicPartition, FetchedOffset]:
        return await transport.send(await transport.find(), request, timeout_s, aside=True)

    return await read_offsets(group, partitions, send)


#: The coordination of a group: creates members, checks the brokers, and reads the group's offsets.
Coordination: TypeAlias = ZooKeeperCoordination | BrokerCoordination

CoordinationName: TypeAlias = Literal["zookeeper", "brokers"]

_ZOOKEEPER_SESSION_MS = 10_000
_SESSION_MS, _HEARTBEAT_MS = 30_000, 3_000

#: How long a coordinator waits in a rebalance for a member whose application may take any time, in milliseconds.
_NO_LIMIT_MS = 2**31 - 1


class Timeouts(NamedTuple):
    """
    A consumer's timeouts in milliseconds, as the application gave them. None means the coordination's default.

    ``join_ms`` limits a join through ZooKeeper.
    """

    session_ms: int | None
    heartbeat_ms: int | None
    join_ms: int


def coordination_of(
    name: str,
    group: GroupConfig,
    connections: BrokerConfig,
    zk_hosts: str | Iterable[str] | None,
    api_version: tuple[int, ...] | None,
    partition_allocator: AssignorChoice | Sequence[AssignorChoice] | None,
    timeouts: Timeouts,
) -> Coordination:
    """
    Create the coordination of this name. ``GroupedConsumer`` describes the other arguments.

    Raises:
        ConfigError: The name is unknown, or an argument is not valid or does not fit this coordination.
    """
    if name == "brokers":
        _check_by_brokers(group, zk_hosts)
        assignors = with_capacity(assignors_of(partition_allocator), group.capacity)
        return BrokerCoordination(_timing(group, connections, timeouts), assignors, GroupVersions(api_version))
    if name != "zookeeper":
        raise ConfigError(f"coordination: {name!r} given; expected 'zookeeper' or 'brokers'")
    if zk_hosts is None:
        raise ConfigError(
            "zk_hosts: none given; expected ZooKeeper's servers, or coordination='brokers' (Kafka 0.9 or later)"
        )
    if api_version is not None:
        raise ConfigError("api_version: given without coordination='brokers'; the versions of Kafka 0.8 are used")
    zookeeper = ZooKeeperConfig.parse(
        zk_hosts,
        session_timeout_ms=_ZOOKEEPER_SESSION_MS if timeouts.session_ms is None else timeouts.session_ms,
        connect_timeout_ms=timeouts.join_ms,
        heartbeat_interval_ms=timeouts.heartbeat_ms,
        security=connections.security,
        broker_protocol=broker_security(connections).protocol,
    )
    # ``allocator_of`` refuses what only coordinating brokers accept.
    chosen = cast(Allocator | str | None, partition_allocator)
    return ZooKeeperCoordination(zookeeper, allocator_of(chosen, "partition_allocator"), group.store)


def _check_by_brokers(group: GroupConfig, zk_hosts: str | Iterable[str] | None) -> None:
    if zk_hosts is not None:
        raise ConfigError(f"zk_hosts: {zk_hosts!r} given, and coordination='brokers' needs no ZooKeeper; leave one out")
    if group.store != ZOOKEEPER_STORE:
        raise ConfigError(
            f"store: {group.store!r} given; with coordination='brokers', brokers store the offsets; leave it out"
        )
    if group.instance_id is not None:
        raise ConfigError(
            f"instance_id: {group.instance_id!r} given; groups with coordination='brokers' have no static"
            " members yet; leave it out"
        )
    if group.rack is not None:
        raise ConfigError(
            f"rack: {group.rack!r} given; with coordination='brokers', no leader knows the racks of partitions;"
            " leave it out"
        )


def _timing(group: GroupConfig, connections: BrokerConfig, timeouts: Timeouts) -> CoordinatorConfig:
    session_ms, heartbeat_ms, _ = timeouts
    session_ms = _SESSION_MS if session_ms is None else session_ms
    if heartbeat_ms is None and isinstance(session_ms, int):
        heartbeat_ms = max(1, min(_HEARTBEAT_MS, session_ms // 3))
    return CoordinatorConfig(
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        rebalance_timeout_ms=group.max_poll_interval_ms or _NO_LIMIT_MS,
        find_timeout_ms=connections.request_timeout_ms,
        metadata_max_age_ms=connections.metadata_max_age_ms,
    )
