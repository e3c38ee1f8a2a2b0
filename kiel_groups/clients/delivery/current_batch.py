"""Track the batch that a loop is delivering, record by record."""

from __future__ import annotations

from collections.abc import Collection

from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.model import Record, TopicPartition

__all__ = ["CurrentBatch"]


class CurrentBatch:
    """
    A batch of one partition, or none. Its records from the index ``next`` on are not delivered yet.

    ``state`` is the state of the partition's claim under which the batch is delivered, or None without a batch.
    """

    __slots__ = ("_partition", "next", "records", "state")

    def __init__(self) -> None:
        self._partition: TopicPartition | None = None
        self.state: PartitionOffsets | None = None
        self.records: list[Record] = []
        self.next = 0

    def start(self, partition: TopicPartition, records: list[Record], state: PartitionOffsets) -> None:
        """Replace the batch by another one."""
        self._partition, self.state = partition, state
        self.records, self.next = records, 0

    def clear(self) -> None:
        """Drop the batch."""
        self._partition = self.state = None
        self.records, self.next = [], 0

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
