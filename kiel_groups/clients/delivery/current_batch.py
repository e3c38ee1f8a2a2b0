"""Track the batch that a loop is delivering, record by record."""

from __future__ import annotations

from collections.abc import Collection

from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.model import Record, TopicPartition

__all__ = ["CurrentBatch"]


class CurrentBatch:
    """
    A batch of one partition, or none. Its records from the index ``next`` on are not delivered yet.

    ``state`` is the state of the partition's claim under which the batch is delivered, or None without a batch.
    """

    __slots__ = ("_fetched", "_partition", "next", "records", "state")

    def __init__(self) -> None:
        self._fetched: FetchedBatch | None = None
        self._partition: TopicPartition | None = None
        self.state: PartitionOffsets | None = None
        self.records: list[Record] = []
        self.next = 0

    def start(self, fetched: FetchedBatch, state: PartitionOffsets) -> None:
        """Replace the batch by another one."""
        self._fetched, self._partition, self.state = fetched, fetched.topic_partition, state
        self.records, self.next = fetched.records, 0

    def clear(self) -> None:
        """Drop the batch."""
        self._fetched = self._partition = self.state = None
        self.records, self.next = [], 0

    def take_rest(self, partition: TopicPartition) -> tuple[FetchedBatch, int] | None:
        """
        Drop a batch of this partition that has records left.

        Returns:
            The batch, and how many of its records are delivered; None if there is no such batch.
        """
        fetched = self._fetched
        if fetched is None or not self.has_records_of(partition):
            return None
        rest = fetched._replace(records=self.records), self.next
        self.clear()
        return rest

    @property
    def used_up(self) -> bool:
        """Whether all records are delivered, or there is no batch."""
        return self.next >= len(self.records)

    def has_records_of(self, partition: TopicPartition) -> bool:
        """Return whether some records of this partition are not delivered yet."""
        return self._partition == partition and not self.used_up

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the batch if it belongs to one of these partitions."""
        if self._partition in partitions:
            self.clear()

    def truncate(self, partition: TopicPartition, end: int) -> int:
        """Drop a partition's records at and after the offset ``end``. Return how many of them were not delivered."""
        if self._partition != partition:
            return 0
        before = len(self.records)
        self.records = [record for record in self.records if record.offset < end]
        return before - max(len(self.records), self.next)
