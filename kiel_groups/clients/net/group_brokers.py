"""The brokers of a group, as its members ask them: the same for all handlers of partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import policy_offsets
from kiel_groups.clients.net.offset_requests import commit_offsets, fetch_offsets
from kiel_groups.config import HostPort
from kiel_groups.coordination.partition_handler import KafkaOffsets, LogOffsets
from kiel_groups.group.coordinated.seen_topics import LogSight
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["GroupBrokers"]


class GroupBrokers:
    """
    The methods of a PartitionHandler that ask brokers, for handlers to inherit.

    Args:
        cluster: The brokers that look up and store offsets.
        group: The group's name.
        metrics: Counts commits that brokers refuse.
        kafka_offsets: The group's offsets in Kafka.
    """

    def __init__(self, cluster: ClusterMetadata, group: str, metrics: Metrics, kafka_offsets: KafkaOffsets) -> None:
        self._cluster = cluster
        self._group = group
        self._metrics = metrics
        self.kafka_offsets = kafka_offsets

    async def log_offsets(self, partitions: Collection[TopicPartition], policy: str) -> LogOffsets:
        """Look up the first offsets ("earliest") or next offsets ("latest") of partitions whose leaders answer."""
        return await policy_offsets(self._cluster, partitions, policy)

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        """Return nothing: ZooKeeper says when a topic was created again."""
        return {}

    async def fetch_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Fetch the group's committed offsets from the brokers."""
        return await fetch_offsets(self._cluster, self._group, partitions)

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Have the brokers store the group's next offsets."""
        await commit_offsets(self._cluster, self._metrics, self._group, offsets, metadata)

    def leaders_changed(self, leaders: Mapping[TopicPartition, int], brokers: Mapping[int, HostPort]) -> None:
        """Ask the leaders that ZooKeeper names, even if brokers name others."""
        self._cluster.override_leaders(leaders, brokers)
