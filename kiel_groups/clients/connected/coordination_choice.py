"""Make what coordinates a consumer's group out of the consumer's arguments, and refuse those that do not fit it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, cast

from kiel_groups.allocators import Allocator, allocator_of
from kiel_groups.allocators.assignors import AssignorChoice, assignors_of
from kiel_groups.clients.connected.group_membership import BrokerCoordination, Coordination, ZooKeeperCoordination
from kiel_groups.clients.coordinator.group_versions import GroupVersions
from kiel_groups.config import ZOOKEEPER_STORE, BrokerConfig, CoordinatorConfig, GroupConfig, ZooKeeperConfig
from kiel_groups.errors import ConfigError

__all__ = ["CoordinationChoice", "CoordinationName", "Timeouts"]

CoordinationName: TypeAlias = Literal["zookeeper", "brokers"]

_ZOOKEEPER_SESSION_MS = 10_000
_SESSION_MS, _HEARTBEAT_MS = 30_000, 3_000

#: How long a coordinator waits in a rebalance for a member whose application may take any time, in milliseconds.
_NO_LIMIT_MS = 2**31 - 1


class Timeouts(NamedTuple):
    """
    A consumer's timeouts in milliseconds, as they are given; None: what fits the coordination.

    ``join_ms`` limits a join through ZooKeeper.
    """

    session_ms: int | None
    heartbeat_ms: int | None
    join_ms: int


@dataclass(frozen=True, slots=True)
class CoordinationChoice:
    """The arguments of a consumer that depend on what coordinates its group; ``GroupedConsumer`` describes them."""

    group: GroupConfig
    connections: BrokerConfig
    timeouts: Timeouts
    zk_hosts: str | Iterable[str] | None
    api_version: tuple[int, ...] | None
    partition_allocator: AssignorChoice | Sequence[AssignorChoice] | None

    def named(self, coordination: str) -> Coordination:
        """
        Return the coordination of this name.

        Raises:
            ConfigError: The name is unknown, or an argument is not valid or does not fit it.
        """
        if coordination == "brokers":
            return self._by_brokers()
        if coordination != "zookeeper":
            raise ConfigError(f"coordination: {coordination!r} given; expected 'zookeeper' or 'brokers'")
        return self._by_zookeeper()

    def _by_zookeeper(self) -> ZooKeeperCoordination:
        if self.zk_hosts is None:
            raise ConfigError(
                "zk_hosts: none given; expected ZooKeeper's servers, or coordination='brokers' (Kafka 0.9 or later)"
            )
        if self.api_version is not None:
            raise ConfigError("api_version: given without coordination='brokers'; the versions of Kafka 0.8 are used")
        session_ms, heartbeat_ms, join_ms = self.timeouts
        zookeeper = ZooKeeperConfig.parse(
            self.zk_hosts,
            session_timeout_ms=_ZOOKEEPER_SESSION_MS if session_ms is None else session_ms,
            connect_timeout_ms=join_ms,
            heartbeat_interval_ms=heartbeat_ms,
        )
        # ``allocator_of`` refuses what only coordinating brokers accept.
        chosen = cast(Allocator | str | None, self.partition_allocator)
        return ZooKeeperCoordination(zookeeper, allocator_of(chosen, "partition_allocator"), self.group.store)

    def _by_brokers(self) -> BrokerCoordination:
        if self.zk_hosts is not None:
            raise ConfigError(
                f"zk_hosts: {self.zk_hosts!r} given, and coordination='brokers' needs no ZooKeeper; leave one out"
            )
        if self.group.store != ZOOKEEPER_STORE:
            raise ConfigError(
                f"store: {self.group.store!r} given; with coordination='brokers', brokers store the offsets;"
                " leave it out"
            )
        if self.group.instance_id is not None:
            raise ConfigError(
                f"instance_id: {self.group.instance_id!r} given; groups with coordination='brokers' have no static"
                " members yet; leave it out"
            )
        session_ms, heartbeat_ms, _ = self.timeouts
        session_ms = _SESSION_MS if session_ms is None else session_ms
        if heartbeat_ms is None and isinstance(session_ms, int):
            heartbeat_ms = max(1, min(_HEARTBEAT_MS, session_ms // 3))
        timing = CoordinatorConfig(
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=heartbeat_ms,
            rebalance_timeout_ms=self.group.max_poll_interval_ms or _NO_LIMIT_MS,
            find_timeout_ms=self.connections.request_timeout_ms,
            metadata_max_age_ms=self.connections.metadata_max_age_ms,
        )
        return BrokerCoordination(timing, assignors_of(self.partition_allocator), GroupVersions(self.api_version))
