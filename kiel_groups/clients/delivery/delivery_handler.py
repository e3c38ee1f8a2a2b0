"""The PartitionHandler of a grouped consumer: it applies the decisions of the group to delivery and to the brokers."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from kiel_groups.clients.calls.eager_methods import spawn
from kiel_groups.clients.delivery.listener_calls import ListenerCalls
from kiel_groups.clients.delivery.owned_records import OwnedRecords
from kiel_groups.clients.delivery.value_delivery import ValueDelivery
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.log_marks import look_at_logs
from kiel_groups.clients.net.offset_requests import GroupBrokers
from kiel_groups.errors import NoOffsetsError
from kiel_groups.group.seen_topics import LogSight
from kiel_groups.listeners import Stall
from kiel_groups.members.brokers.offset_requests import StoredInKafka
from kiel_groups.members.partition_handler import Gate, Work
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

__all__ = ["DeliveryHandler"]


class DeliveryHandler(GroupBrokers):
    """
    The PartitionHandler of a grouped consumer.

    It starts and stops the delivery of partitions, and notifies the listener.
    """

    def __init__(
        self,
        owned: OwnedRecords,
        values: ValueDelivery,
        calls: ListenerCalls,
        cluster: ClusterMetadata,
        group: str,
        metrics: Metrics,
    ) -> None:
        super().__init__(cluster, group, metrics, StoredInKafka(cluster, group, metrics))
        self._owned = owned
        self._values = values
        self._calls = calls

    async def look_at_logs(self, positions: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogSight]:
        """Compare the logs of these partitions with what was read from them."""
        return await look_at_logs(self._cluster, self._owned.read_logs(positions))

    def gate_changed(self, gate: Gate) -> None:
        """Deliver only while the gate of the new session is open."""
        self._owned.gate = gate

    def assigned(self, partitions: Collection[TopicPartition]) -> Coroutine[Any, Any, None]:
        """Run the assigned hook, then fetch these partitions, unless ``stop`` or ``lost`` is called before that."""
        self._owned.accept(partitions)
        return self._owned.ready.assigned(partitions)

    def stop(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Stop fetching and delivering these partitions, and return the partitions with records in flight."""
        self._owned.ready.remove(partitions)
        self._owned.drop(partitions)
        return self._owned.in_flight.in_flight_of(partitions)

    async def drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until these partitions have no records in flight, then notify the listener of the revocation."""
        dropping = spawn(self._values.drop_unclaimed({tp.topic for tp in partitions}), "drop of unclaimed values")
        try:
            await self._owned.progress.until(lambda: not self._owned.in_flight.in_flight_of(partitions))
        finally:
            dropping.cancel()
        await self._calls.revoked(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the buffered records of these partitions, stop counting those in flight, and notify the listener."""
        self._owned.ready.remove(partitions)
        self._owned.drop(partitions)
        self._owned.in_flight.stop_counting(partitions)
        self._calls.lost(partitions)
        self._cluster.drop_overrides(partitions)

    def offset_changed(self, partition: TopicPartition, offset: int) -> None:
        """Resume at ``offset`` once the assigned hook has ended. Stop counting the partition's records in flight."""
        self._owned.resume_at(partition, offset)

    def start_unknown(self, topic: str, error: NoOffsetsError) -> None:
        """Raise ``error`` at the application's next request for the topic, whose start position is unknown."""
        self._owned.refuse(topic, error)

    def in_progress(self) -> list[Work]:
        """Return the records, values and hook that the application is processing. Safe on any thread."""
        return self._calls.in_progress() + self._owned.in_flight.works()

    def stalled(self, stall: Stall) -> None:
        """Notify the listener of a stall, on the calling thread."""
        self._calls.stalled(stall)
