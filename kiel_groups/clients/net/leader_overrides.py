"""Keep the leaders that ZooKeeper names for one member's partitions, which override the brokers' metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kiel_groups.config import HostPort
from kiel_groups.model import TopicPartition

__all__ = ["LeaderOverrides"]


class LeaderOverrides:
    """
    The leaders that ZooKeeper named in one read.

    They override the brokers' metadata, because a broker that is cut off from ZooKeeper keeps naming itself the leader.
    A leader that fails or refuses a request has lost the partition since the read, or does not know yet that it leads
    the partition. The caller then drops this leader with ``forget``, and the brokers' metadata applies.
    """

    def __init__(
        self,
        leaders: Mapping[TopicPartition, int] = MappingProxyType({}),
        brokers: Mapping[int, HostPort] = MappingProxyType({}),
    ) -> None:
        self._leaders = dict(leaders)
        self._brokers = {node_id: brokers[node_id] for node_id in set(leaders.values())}

    @property
    def addresses(self) -> frozenset[HostPort]:
        """The addresses of the leaders that ZooKeeper named."""
        return frozenset(self._brokers.values())

    def leader_of(self, topic_partition: TopicPartition, reported: int | None) -> int | None:
        """Return the leader that ZooKeeper named, or else ``reported``, the leader in the brokers' metadata."""
        return self._leaders.get(topic_partition, reported)

    def address_of(self, node_id: int) -> HostPort | None:
        """Return the address of a leader that ZooKeeper named, or None for any other broker."""
        return self._brokers.get(node_id)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the leaders of these partitions."""
        for topic_partition in partitions:
            self._leaders.pop(topic_partition, None)
