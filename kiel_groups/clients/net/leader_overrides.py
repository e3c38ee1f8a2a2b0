"""The leaders that ZooKeeper names for the partitions of one member, where they outweigh the brokers' word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kiel_groups.config import HostPort
from kiel_groups.model import TopicPartition

__all__ = ["LeaderOverrides"]


class LeaderOverrides:
    """
    The leaders that ZooKeeper named in one read.

    They outweigh the brokers' metadata, because a broker that is cut off from ZooKeeper keeps naming itself the leader.
    A leader that fails or refuses has lost the partition since the read, or does not know yet that it leads it. It is
    then dropped by ``forget``, and the brokers' metadata counts.
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
        """Where these leaders are registered."""
        return frozenset(self._brokers.values())

    def leader_of(self, topic_partition: TopicPartition, heard: int | None) -> int | None:
        """The believed leader, or the one that was ``heard`` of from a broker where none is believed."""
        return self._leaders.get(topic_partition, heard)

    def address_of(self, node_id: int) -> HostPort | None:
        """The address of a believed leader; None of any other broker."""
        return self._brokers.get(node_id)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Believe no leader of these partitions any more."""
        for topic_partition in partitions:
            self._leaders.pop(topic_partition, None)
