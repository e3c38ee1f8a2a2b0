"""The address of a cluster, and the objects that read and change its groups, offsets and topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from kiel_groups.ops.actions.broker_topics import BrokerTopics
    from kiel_groups.ops.actions.offset_sources import OffsetSource
    from kiel_groups.ops.actions.topics import ZooKeeperTopics
    from kiel_groups.ops.broker_reader import BrokerGroups, BrokerSession
    from kiel_groups.ops.zookeeper_client import Client
    from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups


T = TypeVar("T")

#: The names of the two coordinations of groups.
BROKERS, ZOOKEEPER = "brokers", "zookeeper"


class ClusterAddress(NamedTuple):
    """
    The coordination of the groups of a cluster, and the hosts to ask: ZooKeeper's servers, or some brokers.

    ``timeout_s`` is how long to wait for the first answer of ZooKeeper, or for each answer of a broker, in seconds.
    ``worker_zookeeper`` names the ZooKeeper in which workers register if brokers coordinate the groups, or is "" if it
    is not known.
    """

    coordination: str
    hosts: str
    timeout_s: float
    worker_zookeeper: str = ""

    @property
    def is_of_brokers(self) -> bool:
        return self.coordination == BROKERS

    @property
    def place(self) -> str:
        """The name of the cluster in texts for users, such as ``in ZooKeeper at z:2181/x``."""
        return f"at brokers {self.hosts}" if self.is_of_brokers else f"in ZooKeeper at {self.hosts}"

    def ask(self, in_zookeeper: Callable[[Client], T], at_brokers: Callable[[BrokerSession], Awaitable[T]]) -> T:
        """Open a session, call the function for this coordination with the session, and return its result."""
        if self.is_of_brokers:
            from kiel_groups.ops.broker_reader import in_session

            return in_session(self.hosts, self.timeout_s, at_brokers)
        from kiel_groups.ops.zookeeper_client import zookeeper

        with zookeeper(self.hosts, timeout_s=self.timeout_s) as client:
            return in_zookeeper(client)

    def groups(self) -> ZooKeeperGroups | BrokerGroups:
        """Return the reader of the groups."""
        if self.is_of_brokers:
            from kiel_groups.ops.broker_reader import BrokerGroups

            return BrokerGroups(self.hosts, timeout_s=self.timeout_s)
        from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups

        return ZooKeeperGroups(self.hosts, timeout_s=self.timeout_s)

    def offsets(self) -> OffsetSource:
        """Return the object that reads and changes the offsets of groups."""
        from kiel_groups.ops.actions.offset_sources import BrokerOffsets, ZooKeeperOffsets

        kind = BrokerOffsets if self.is_of_brokers else ZooKeeperOffsets
        return kind(self.hosts, timeout_s=self.timeout_s)

    def topics(self) -> ZooKeeperTopics | BrokerTopics:
        """Return the object that reads and changes the topics."""
        if self.is_of_brokers:
            from kiel_groups.ops.actions.broker_topics import BrokerTopics

            return BrokerTopics(self.hosts, timeout_s=self.timeout_s)
        from kiel_groups.ops.actions.topics import ZooKeeperTopics

        return ZooKeeperTopics(self.hosts, timeout_s=self.timeout_s)
