"""The leaders that ZooKeeper names for the partitions of one member, where they outweigh the brokers' word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kiel_groups.config import HostPort
from kiel_groups.model import TopicPartition

__all__ = ["BelievedLeaders"]


class BelievedLeaders:
    """
    What ZooKeeper said of leaders at one moment.

    A broker writes nothing there once it is cut off, so its word counts less than this. A leader that fails or refuses
    has lost the partition since, or does not know of it yet: then this is forgotten, and the brokers' word counts.
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
