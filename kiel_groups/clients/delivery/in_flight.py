"""
Track records in flight: records that a loop or ``consume()`` delivered, and that the application has not finished.

While records are in flight, automatic commits do not store their offsets, and their partitions are not released. Once
the application has finished them, the offset that a commit stores advances. Unfinished records are delivered again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kiel_groups.model import TopicPartition

__all__ = ["InFlight"]


class InFlight(Protocol):
    """The records in flight of one loop, or of the callers of one topic. There may be none."""

    def in_flight_of(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the given partitions that have records in flight."""

    def stop_counting(self, partitions: Collection[TopicPartition]) -> None:
        """Stop counting in-flight records of these partitions. The application may still be processing them."""

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """Stop counting a partition's in-flight records at and after the offset ``end``."""
