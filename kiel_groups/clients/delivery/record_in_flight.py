"""Track the record in flight of a loop."""

from __future__ import annotations

from collections.abc import Collection

from kiel_groups.group.member.partition_offsets import PartitionOffsets
from kiel_groups.model import Record, TopicPartition

__all__ = ["RecordInFlight"]


class RecordInFlight:
    """The record in flight of a loop, if any, and its partition's state (None if the record is no longer counted)."""

    __slots__ = ("record", "state")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.state: PartitionOffsets | None = None

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        if self.record is None or self.record.topic_partition not in partitions:
            return frozenset()
        return frozenset({self.record.topic_partition})

    def count(self) -> None:
        """Count the record as finished, and keep it in flight."""
        if self.record is not None and self.state is not None:
            self.state.finished = self.record.offset + 1

    def fencing_token_of(self, record: Record) -> int | None:
        """Return the fencing token of ``record``, or None if ``record`` is not in flight, or is no longer counted."""
        # Compare identities, not offsets: the same offset may be in flight again, under a later claim.
        return self.state.token if record is self.record and self.state is not None else None

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        if self.record is not None and self.record.topic_partition in partitions:
            self.state = None

    def truncate(self, partition: TopicPartition, end: int) -> None:
        if self.record is not None and self.record.topic_partition == partition and self.record.offset >= end:
            self.state = None

    def clear(self) -> None:
        self.record = self.state = None
